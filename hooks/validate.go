package hooks

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// minSecret is the shortest signing secret in bytes; a shorter one can be guessed.
const minSecret = 8

// Validate returns every problem of the list of hooks, joined; each begins
// with the key's name, such as "hooks[0].path". The section idempotency
// validates itself. Whether an agent exists is New's to say.
func (c Config) Validate() error {
	var errs []error
	paths := make(map[string]int, len(c.Hooks))
	for i, h := range c.Hooks {
		at := func(err error) { errs = append(errs, fmt.Errorf("hooks[%d].%w", i, err)) }
		for _, err := range h.problems() {
			at(err)
		}
		if first, taken := paths[h.Path]; taken {
			at(fmt.Errorf("path: %q is already the path of hooks[%d]", h.Path, first))
		} else {
			paths[h.Path] = i
		}
	}
	return errors.Join(errs...)
}

func (h Hook) problems() []error {
	var errs []error
	check := func(found ...error) {
		errs = append(errs, slices.DeleteFunc(found, func(err error) bool { return err == nil })...)
	}
	check(checkPath(h.Path))
	check(h.actionProblems()...)
	check(h.authProblems()...)
	for _, t := range h.templates() {
		if _, err := compile(t.text); err != nil {
			check(fmt.Errorf("%s: %w", t.key, err))
		}
	}
	check(h.keyProblems()...)
	if h.OnDuplicate != message.Conflict && h.OnDuplicate != message.Wait {
		check(fmt.Errorf("on_duplicate: %q is not one of %s, %s", h.OnDuplicate, message.Conflict, message.Wait))
	}
	if h.WaitTimeout <= 0 {
		check(fmt.Errorf("wait_timeout: %s is no time to wait; leave the key out for the default", h.WaitTimeout))
	}
	if h.Lease != nil {
		check(idempotency.CheckDuration("lease", *h.Lease))
	}
	if h.TTL != nil {
		check(idempotency.CheckDuration("ttl", *h.TTL))
	}
	return errs
}

// hookTemplate is a text of a hook that may refer to the request.
type hookTemplate struct {
	key  string // in the configuration
	text string
	of   func(*route) *template // where the compiled form goes
}

func (h Hook) templates() []hookTemplate {
	return []hookTemplate{
		{"platform", h.Platform, func(rt *route) *template { return &rt.platform }},
		{"account", h.Account, func(rt *route) *template { return &rt.account }},
		{"channel", cmp.Or(h.Channel, h.Path), func(rt *route) *template { return &rt.channel }},
		{"idempotency_key", h.IdempotencyKey, func(rt *route) *template { return &rt.id }},
		{"session", h.Session, func(rt *route) *template { return &rt.session }},
		{"message", h.Message, func(rt *route) *template { return &rt.message }},
	}
}

// checkPath wants segments that mean the same escaped and unescaped, and that
// no proxy or router cleans into another path.
func checkPath(path string) error {
	if path == "" {
		return errors.New("path: must not be empty")
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "":
			return fmt.Errorf("path: %q has an empty segment; write it without a slash at either end", path)
		case segment == "." || segment == "..":
			return fmt.Errorf("path: %q has the segment %q", path, segment)
		case strings.IndexFunc(segment, func(r rune) bool { return !isAlphanumeric(r) && !strings.ContainsRune("._~-", r) }) >= 0:
			return fmt.Errorf("path: %q may hold only letters, digits, \".\", \"_\", \"~\", \"-\" and \"/\" between segments", path)
		}
	}
	return nil
}

// actionProblems refuses keys that the action would ignore: whoever wrote one
// expects something of it.
func (h Hook) actionProblems() []error {
	var errs []error
	useless := func(key string, set bool) {
		if set {
			errs = append(errs, fmt.Errorf("%s: does nothing with action %s", key, h.Action))
		}
	}
	switch h.Action {
	case message.ActionAgent:
		useless("target", h.Target != "")
		useless("headers", len(h.Headers) > 0)
		useless("response_headers", len(h.ResponseHeaders) > 0)
	case message.ActionForward:
		useless("agent", h.Agent != "")
		useless("message", h.Message != "")
		errs = append(errs, checkTarget(h.Target))
		errs = append(errs, h.headerProblems()...)
	default:
		errs = append(errs, fmt.Errorf("action: %q is not one of %s, %s", h.Action, message.ActionAgent, message.ActionForward))
	}
	return errs
}

// checkTarget never quotes the target: it may hold a password.
func checkTarget(target string) error {
	if target == "" {
		return errors.New("target: is required with action forward")
	}
	u, err := url.Parse(target)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return errors.New("target: is not an http or https URL with a host")
	}
	if u.User != nil {
		return errors.New("target: holds a user or password, which would be printed; send an Authorization header with headers instead")
	}
	return nil
}

// ownHeaders are set by the gateway or belong to one connection only.
var ownHeaders = []string{
	"Connection", "Content-Length", "Idempotency-Key", "Idempotency-Replayed", "Keep-Alive", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "X-Idempotency-Status",
}

func (h Hook) headerProblems() []error {
	var errs []error
	checkName := func(key, name string) {
		switch {
		case !isToken(name):
			errs = append(errs, fmt.Errorf("%s: %q is not the name of a header", key, name))
		case slices.Contains(ownHeaders, http.CanonicalHeaderKey(name)):
			errs = append(errs, fmt.Errorf("%s: %s is set by the gateway", key, name))
		}
	}
	seen := make(map[string]string, len(h.Headers))
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		checkName("headers", name)
		if other, twice := seen[http.CanonicalHeaderKey(name)]; twice {
			errs = append(errs, fmt.Errorf("headers: %s and %s are the same header", other, name))
		}
		seen[http.CanonicalHeaderKey(name)] = name
		if strings.ContainsFunc(h.Headers[name].Reveal(), func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			errs = append(errs, fmt.Errorf("headers: the value of %s holds a line break or another control character", name))
		}
	}
	for _, name := range h.ResponseHeaders {
		checkName("response_headers", name)
	}
	return errs
}

func (h Hook) authProblems() []error {
	var errs []error
	if h.Auth != nil && h.Auth.IsEmpty() {
		errs = append(errs, errors.New("auth: is empty; leave the key out to require the gateway's token"))
	}
	if h.Signature == nil {
		return errs
	}
	if h.Signature.Scheme != SchemeGitHub {
		errs = append(errs, fmt.Errorf("signature.scheme: %q is not one of %s", h.Signature.Scheme, SchemeGitHub))
	}
	if len(h.Signature.Secrets) == 0 {
		errs = append(errs, errors.New("signature.secrets: must name at least one secret"))
	}
	for i, s := range h.Signature.Secrets {
		if n := len(s.Reveal()); n < minSecret {
			errs = append(errs, fmt.Errorf("signature.secrets[%d]: has %d bytes; use at least %d", i, n, minSecret))
		}
	}
	return errs
}

// keyProblems finds keys that would identify nothing, or everything alike.
func (h Hook) keyProblems() []error {
	var errs []error
	if id, err := compile(h.IdempotencyKey); err == nil && h.IdempotencyKey != "" && id.isConstant() {
		errs = append(errs, fmt.Errorf("idempotency_key: %q has no {{ }} part, so that every message would be a duplicate of the first", h.IdempotencyKey))
	}
	if h.TTL != nil && h.IdempotencyKey == "" && !h.AcceptIdempotencyKey {
		errs = append(errs, fmt.Errorf("ttl: does nothing without idempotency_key or accept_idempotency_key; content alone is known for %s", contentWindow))
	}
	return errs
}

// isToken reports whether name can be the name of a header.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !isAlphanumeric(r) && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}
