package hooks

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

const (
	authorization = "Authorization"
	bearer        = "Bearer "
)

// tokenHeaders carry a token for senders that cannot set Authorization:
// X-Gitlab-Token is the only one that GitLab's own setting sends.
var tokenHeaders = []string{"X-Gateway-Token", "X-Gitlab-Token"}

// guard decides whether a request comes from who it should. Everything that
// is set must pass; with nothing set every request does.
type guard struct {
	tokens       []token             // any may match
	signature    *signature.Verifier // nil: none demanded
	signsDecoded bool                // the signature covers the body without its compression
	signsURL     bool                // and what the sender called
}

type token struct {
	name string // empty for one that stands alone
	text secret.String
}

// newGuard returns the guard of a hook. A hook that configures nothing wants
// the gateway's own token.
func newGuard(h Hook, gatewayToken secret.String) (guard, error) {
	var g guard
	if h.Auth != nil {
		if !h.Auth.Only.IsEmpty() {
			g.tokens = append(g.tokens, token{text: h.Auth.Only})
		}
		for _, name := range slices.Sorted(maps.Keys(h.Auth.Named)) {
			g.tokens = append(g.tokens, token{name, h.Auth.Named[name]})
		}
	}
	if h.Signature != nil {
		var err error
		if g.signature, err = signature.New(*h.Signature); err != nil {
			return guard{}, err
		}
		g.signsDecoded = h.Signature.SignedBody == signature.BodyDecoded
		g.signsURL = h.Signature.SignedURL != ""
	}
	if g.isOpen() && !gatewayToken.IsEmpty() {
		g.tokens = []token{{text: gatewayToken}}
	}
	return g, nil
}

func (g guard) isOpen() bool { return len(g.tokens) == 0 && g.signature == nil }

func (g guard) isSigned() bool { return g.signature != nil }

// tokenName returns the name of the token that a request carries; ok is false
// if one is demanded and none of them is there. Every token is compared, so
// that the time says nothing about which one came close.
func (g guard) tokenName(header http.Header) (name string, ok bool) {
	if len(g.tokens) == 0 {
		return "", true
	}
	for _, given := range givenTokens(header) {
		for _, t := range g.tokens {
			if t.text.Equal(given) && !ok {
				name, ok = t.name, true
			}
		}
	}
	return name, ok
}

// givenTokens returns what a request offers as a token, at most one for each
// header. A header that occurs twice offers nothing: a proxy in front may have
// looked at the other one.
func givenTokens(header http.Header) []string {
	given := make([]string, 0, 1+len(tokenHeaders))
	if values := header[authorization]; len(values) == 1 && len(values[0]) > len(bearer) && strings.EqualFold(values[0][:len(bearer)], bearer) {
		given = append(given, strings.TrimSpace(values[0][len(bearer):]))
	}
	for _, name := range tokenHeaders {
		if values := header[name]; len(values) == 1 {
			given = append(given, values[0])
		}
	}
	return given
}

// verify checks the signature. content is the body as received, or without its
// compression where that is what the sender signs.
func (g guard) verify(header http.Header, content signature.Content, now time.Time) error {
	if g.signature == nil {
		return nil
	}
	return g.signature.Verify(header, content, now)
}

// Sign adds to header what the hook demands of a sender: its signature over
// content, made with the first secret, and its first token or else, if the hook
// configures neither, gatewayToken.
func (h Hook) Sign(header http.Header, content signature.Content, gatewayToken secret.String, now time.Time) error {
	g, err := newGuard(h, gatewayToken)
	if err != nil {
		return err
	}
	if len(g.tokens) > 0 {
		header.Set(authorization, bearer+g.tokens[0].text.Reveal())
	}
	if g.signature != nil {
		g.signature.Sign(header, content, now)
	}
	return nil
}

func (t Tokens) problems() []error {
	if t.Named == nil && t.Only.IsEmpty() {
		return []error{errors.New("auth: is empty; leave the key out to require the gateway's token")}
	}
	if t.Named != nil && len(t.Named) == 0 {
		return []error{errors.New("auth: names no token; leave the key out to require the gateway's")}
	}
	if hasSpaceAround(t.Only) {
		return []error{errors.New("auth: " + spaceAround)}
	}
	var errs []error
	names := slices.Sorted(maps.Keys(t.Named))
	for i, name := range names {
		text := t.Named[name]
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !isAlphanumeric(r) && r != '_' && r != '-' && r != '.' }) {
			errs = append(errs, fmt.Errorf("auth: the name %q, which becomes a part of keys, may hold only letters, digits, \".\", \"_\" and \"-\"", name))
		}
		if text.IsEmpty() {
			errs = append(errs, fmt.Errorf("auth.%s: is empty; a secret that is set must not be", name))
			continue
		}
		if hasSpaceAround(text) {
			errs = append(errs, fmt.Errorf("auth.%s: %s", name, spaceAround))
		}
		for _, other := range names[:i] {
			if text.Equal(t.Named[other].Reveal()) {
				errs = append(errs, fmt.Errorf("auth.%s: is the token of %s too, so that nobody could tell who sent a request", name, other))
			}
		}
	}
	return errs
}

const spaceAround = "has space or a line break at an end, as texts read from a file often do; no request could carry it"

func hasSpaceAround(s secret.String) bool { return strings.TrimSpace(s.Reveal()) != s.Reveal() }
