package hooks

import (
	"errors"
	"net/http"
	"time"

	"github.com/oncegate/oncegate/hooks/payload"
	"github.com/oncegate/oncegate/hooks/signature"
)

// authenticate checks everything that the hook configures against the request
// as received. It returns the body without its compression, which is not undone
// for a stranger unless the signature covers the result, and the name of the
// token.
func (h *Handler) authenticate(rt *route, r *http.Request, wire []byte, now time.Time) (body []byte, tokenName string, refusal *answer) {
	tokenName, ok := rt.guard.tokenName(r.Header)
	if !ok || rt.closed || rt.guard.isOpen() && fromBrowser(r.Header) {
		return nil, "", h.unauthenticated(r, unauthorized)
	}
	decode := func() *answer {
		var err error
		if body, err = payload.Decode(r.Header["Content-Encoding"], wire, h.deps.MaxBody); err != nil {
			a := unreadableAnswer(err)
			return &a
		}
		return nil
	}
	content := signature.Content{Body: wire}
	if rt.guard.signsDecoded {
		if decode() != nil { // so that nothing can be verified
			return nil, "", h.unauthenticated(r, unauthorized)
		}
		content.Body = body
	}
	if rt.guard.signsURL {
		content.URL = h.deps.PublicURL(r)
	}
	switch err := rt.guard.verify(r.Header, content, now); {
	case errors.Is(err, signature.ErrStale):
		return nil, "", h.unauthenticated(r, stale)
	case err != nil:
		return nil, "", h.unauthenticated(r, unauthorized)
	}
	if !rt.guard.signsDecoded {
		refusal = decode()
	}
	return body, tokenName, refusal
}

// unauthenticated counts the failure of r's client, and refuses it in another
// way once it has failed too often. Whoever verifies never comes here, so that
// nobody is locked out by the failures of others.
func (h *Handler) unauthenticated(r *http.Request, res result) *answer {
	a := answer{result: res}
	if a.retryAfter = h.deps.Clients.Fail(r); a.retryAfter > 0 {
		a.result = tooManyFailures
	}
	return &a
}

// fromBrowser reports whether a web page sent the request. Any page can make
// its visitor's browser post to a loopback address, so that a hook without
// authentication is open to programs of this machine only.
func fromBrowser(header http.Header) bool { return len(header["Origin"]) > 0 }

// challenge answers a GET by which a sender asks whether the path is its own.
// It comes before any signature, because such a request has none, and neither
// claims nor runs anything.
func (h *Handler) challenge(rt *route, r *http.Request) answer {
	c, query := rt.challenge, r.URL.Query()
	if c.VerifyParam != "" && !c.VerifyToken.Equal(query.Get(c.VerifyParam)) {
		return *h.unauthenticated(r, wrongChallenge)
	}
	text := query.Get(c.Param)
	if text == "" {
		return answer{result: noChallenge, detail: c.Param}
	}
	return answer{result: challenged, challenge: text}
}
