package hooks_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

// Whatever a stranger sends, the answer is one of ours, nothing runs that is
// not authenticated, and nothing ends in a 5xx or a panic.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "sha256=zz", "application/json; charset", "gzip", "1", "a=%zz", `{"id":1}`)
	f.Add("GET", "t=1,v1=00", "", "", "k", "hub.challenge=42&hub.verify_token=wrong", "")
	f.Add("POST", "v1,AAAA v1a,x", "application/x-www-form-urlencoded", "deflate", "\x00", "", "payload=%7B")
	f.Add("POST", "", "text/plain", "identity", strings.Repeat("k", 256), "", "\xff\xfe{")
	f.Add("OPTIONS", "HMAC é", "application/xml", "br", "", "?&=", "<x/>")
	open := build(f, func(h *hooks.Hook, _ *hooks.Deps) {
		h.AcceptIdempotencyKey, h.Message = true, "{{ payload.a[0] }}{{ header.X-Id }}{{ query.a }}"
		h.Event, h.Events = "{{ payload.id }}", []string{"1"}
	})
	guarded := build(f, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Auth = &hooks.Tokens{Only: secret.New("a token that no input knows")}
		h.Signature = &signature.Config{Scheme: signature.Standard, SecretEncoding: signature.SecretRaw, Secrets: secrets("a secret that no input knows")}
		h.Challenge = &hooks.Challenge{Param: "hub.challenge", VerifyParam: "hub.verify_token", VerifyToken: secret.New("nor this")}
	})
	f.Fuzz(func(t *testing.T, method, credential, contentType, coding, key, query, body string) {
		for _, fx := range []*fixture{open, guarded} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/x", strings.NewReader(body))
			r.Method, r.URL = method, &url.URL{Path: "/hooks/x", RawQuery: query}
			r.Header = http.Header{
				"Content-Type": {contentType}, "Content-Encoding": {coding}, "Idempotency-Key": {key}, "X-Id": {key},
				"Authorization": {credential}, "Webhook-Id": {key}, "Webhook-Timestamp": {key}, "Webhook-Signature": {credential}, "X-Gateway-Token": {credential},
			}
			w := httptest.NewRecorder()
			fx.handler.ServeHTTP(w, r)
			if w.Code >= 500 || w.Code < 200 {
				t.Errorf("status %d", w.Code)
			}
			if fx == guarded && w.Code == 200 {
				t.Errorf("a stranger got %d %s", w.Code, w.Body)
			}
		}
		if guarded.runs() != 0 {
			t.Error("a stranger's message ran")
		}
	})
}
