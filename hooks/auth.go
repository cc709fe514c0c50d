package hooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"net/http"
	"strings"
	"sync"

	"github.com/oncegate/oncegate/internal/secret"
)

const (
	githubHeader = "X-Hub-Signature-256"
	githubPrefix = "sha256="
	bearer       = "Bearer "
)

// guard decides whether a request comes from who it should. Everything that
// is set must pass; with nothing set every request does.
type guard struct {
	token     secret.String
	signature []*signer // any may match
}

// newGuard returns the guard of a hook. A hook that configures nothing wants
// the gateway's own token.
func newGuard(h Hook, gatewayToken secret.String) guard {
	var g guard
	if h.Auth != nil {
		g.token = *h.Auth
	}
	if h.Signature != nil {
		for _, s := range h.Signature.Secrets {
			g.signature = append(g.signature, newSigner(s))
		}
	}
	if g.isOpen() {
		g.token = gatewayToken
	}
	return g
}

func (g guard) isOpen() bool { return g.token.IsEmpty() && len(g.signature) == 0 }

// admits checks the request against its body as received, before anything
// reads a meaning into it.
func (g guard) admits(header http.Header, body []byte) bool {
	if !g.token.IsEmpty() {
		token, ok := bearerToken(header)
		if !ok || !g.token.Equal(token) {
			return false
		}
	}
	return len(g.signature) == 0 || g.signed(header, body)
}

func (g guard) signed(header http.Header, body []byte) bool {
	claimed, ok := githubSignature(header)
	if !ok {
		return false
	}
	for _, s := range g.signature {
		if mac := s.sum(body); hmac.Equal(mac[:], claimed[:]) {
			return true
		}
	}
	return false
}

// bearerToken returns the token of the one Authorization header.
func bearerToken(header http.Header) (string, bool) {
	values := header["Authorization"]
	if len(values) != 1 || len(values[0]) <= len(bearer) || !strings.EqualFold(values[0][:len(bearer)], bearer) {
		return "", false
	}
	return strings.TrimSpace(values[0][len(bearer):]), true
}

// githubSignature decodes the one signature header. Lengths are compared
// before decoding, so that an oversized value costs nothing.
func githubSignature(header http.Header) (mac [sha256.Size]byte, ok bool) {
	values := header[githubHeader]
	if len(values) != 1 {
		return mac, false
	}
	digits, ok := strings.CutPrefix(values[0], githubPrefix)
	if !ok || len(digits) != hex.EncodedLen(len(mac)) {
		return mac, false
	}
	_, err := hex.Decode(mac[:], []byte(digits))
	return mac, err == nil
}

// signer computes HMAC-SHA256 under one secret. Setting up the key costs as
// much as hashing a short body, so keyed hashes are kept for reuse.
type signer struct{ hashes sync.Pool }

func newSigner(key secret.String) *signer {
	return &signer{hashes: sync.Pool{New: func() any { return hmac.New(sha256.New, []byte(key.Reveal())) }}}
}

func (s *signer) sum(body []byte) (mac [sha256.Size]byte) {
	h := s.hashes.Get().(hash.Hash)
	h.Reset()
	h.Write(body)
	h.Sum(mac[:0])
	s.hashes.Put(h)
	return mac
}

// Sign adds to header what the hook demands of a sender of body: its
// signature, made with the first secret, and its token or else, if the hook
// configures neither, gatewayToken.
func (h Hook) Sign(header http.Header, body []byte, gatewayToken secret.String) {
	g := newGuard(h, gatewayToken)
	if !g.token.IsEmpty() {
		header.Set("Authorization", bearer+g.token.Reveal())
	}
	if len(g.signature) > 0 {
		mac := g.signature[0].sum(body)
		header.Set(githubHeader, githubPrefix+hex.EncodeToString(mac[:]))
	}
}
