package hooks_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

const (
	unauthorized = `{"ok":false,"error":"unauthorized"}`
	testSecret   = "test-secret"
)

// sign returns the value of X-Hub-Signature-256.
func sign(key, body string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func TestB84_TheBytesAsReceivedAreVerified(t *testing.T) {
	t.Parallel()
	raw := "{\"t\":\"caf\\u00e9 \\u2028\",  \"n\": 1.0 ,\"t2\":\"é\"}\n"
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Signature = github(testSecret) })
	post := func(body string) int {
		return f.post(t, body, func(r *http.Request) { r.Header.Set("X-Hub-Signature-256", sign(testSecret, raw)) }).StatusCode
	}
	if got := post(raw); got != http.StatusOK {
		t.Errorf("status of the bytes that were signed = %d, want 200", got)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(raw)); err != nil {
		t.Fatal(err)
	}
	if got := post(compact.String()); got != http.StatusUnauthorized {
		t.Errorf("status of the same JSON in other bytes = %d, want 401", got)
	}
}

func TestB97_MalformedSignaturesAreRefusedLikeWrongOnes(t *testing.T) {
	t.Parallel()
	const body = `{"a":1}`
	right := sign(testSecret, body)
	digits := strings.TrimPrefix(right, "sha256=")
	raw, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		values []string
		status int
	}{
		{"right", []string{right}, 200},
		{"upper-case digits", []string{"sha256=" + strings.ToUpper(digits)}, 200},
		{"missing", nil, 401},
		{"empty", []string{""}, 401},
		{"only the prefix", []string{"sha256="}, 401},
		{"no hex", []string{"sha256=zz"}, 401},
		{"no hex of the right length", []string{"sha256=" + strings.Repeat("z", 64)}, 401},
		{"odd length", []string{right[:len(right)-1]}, 401},
		{"one byte short", []string{right[:len(right)-2]}, 401},
		{"one byte long", []string{right + "00"}, 401},
		{"no prefix", []string{digits}, 401},
		{"another prefix", []string{"sha1=" + digits}, 401},
		{"an upper-case prefix", []string{"SHA256=" + digits}, 401},
		{"base64", []string{"sha256=" + base64.StdEncoding.EncodeToString(raw)}, 401},
		{"unpadded base64", []string{"sha256=" + base64.RawStdEncoding.EncodeToString(raw)}, 401},
		{"outside ASCII", []string{"sha256=" + strings.Repeat("é", 32)}, 401},
		{"a megabyte", []string{"sha256=" + strings.Repeat("a", 1<<20)}, 401},
		{"twice", []string{right, right}, 200},
		{"of another body", []string{sign(testSecret, "{}")}, 401},
		{"under another secret", []string{sign("another-secret", body)}, 401},
		{"under the empty secret", []string{sign("", body)}, 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Signature = github(testSecret) })
			resp := f.post(t, body, func(r *http.Request) {
				if test.values != nil {
					r.Header["X-Hub-Signature-256"] = test.values
				}
			})
			answer := readAll(t, resp)
			if resp.StatusCode != test.status || test.status == 401 && answer != unauthorized {
				t.Errorf("answer = %d %s, want %d", resp.StatusCode, answer, test.status)
			}
			for _, told := range []string{digits, testSecret} {
				if strings.Contains(answer, told) || strings.Contains(f.logs.String(), told) {
					t.Errorf("%q is in the answer or the log:\n%s\n%s", told, answer, f.logs)
				}
			}
			if ran := f.runs() == 1; ran != (test.status == 200) {
				t.Errorf("ran = %t with status %d", ran, resp.StatusCode)
			}
		})
	}
}

func TestRotatedSecrets(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Signature = github("new-secret", "old-secret") })
	for key, want := range map[string]int{"new-secret": 200, "old-secret": 200, "older-secret": 401} {
		resp := f.post(t, `{}`, func(r *http.Request) { r.Header.Set("X-Hub-Signature-256", sign(key, `{}`)) })
		if resp.StatusCode != want {
			t.Errorf("status under %s = %d, want %d", key, resp.StatusCode, want)
		}
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	own, gateway := secret.New("hook-token"), secret.New("gateway-token")
	hookToken := func(h *hooks.Hook, d *hooks.Deps) { h.Auth, d.Token = &hooks.Tokens{Only: own}, gateway }
	both := func(h *hooks.Hook, d *hooks.Deps) { h.Auth, h.Signature = &hooks.Tokens{Only: own}, github(testSecret) }
	gatewayToken := func(_ *hooks.Hook, d *hooks.Deps) { d.Token = gateway }
	signed := sign(testSecret, `{}`)
	for _, test := range []struct {
		name          string
		change        func(*hooks.Hook, *hooks.Deps)
		authorization []string
		signature     string
		status        int
	}{
		{"the hook's token", hookToken, []string{"Bearer hook-token"}, "", 200},
		{"any case of the scheme", hookToken, []string{"bEARER hook-token"}, "", 200},
		{"another token", hookToken, []string{"Bearer hook-tokem"}, "", 401},
		{"a prefix of the token", hookToken, []string{"Bearer hook-toke"}, "", 401},
		{"no token", hookToken, nil, "", 401},
		{"an empty token", hookToken, []string{"Bearer "}, "", 401},
		{"another scheme", hookToken, []string{"Basic hook-token"}, "", 401},
		{"two tokens", hookToken, []string{"Bearer hook-token", "Bearer hook-token"}, "", 401},
		{"the gateway's token on a hook that has its own", hookToken, []string{"Bearer gateway-token"}, "", 401},
		{"token and signature", both, []string{"Bearer hook-token"}, signed, 200},
		{"only the token of both", both, []string{"Bearer hook-token"}, "", 401},
		{"only the signature of both", both, nil, signed, 401},
		{"the gateway's token on a hook without", gatewayToken, []string{"Bearer gateway-token"}, "", 200},
		{"no token on a hook without", gatewayToken, nil, "", 401},
		{"no token anywhere, on loopback", func(_ *hooks.Hook, _ *hooks.Deps) {}, nil, "", 200},
		{"no token anywhere, reachable by strangers", func(_ *hooks.Hook, d *hooks.Deps) { d.Private = false }, []string{"Bearer "}, "", 401},
		{
			"a signed hook wants no gateway token",
			func(h *hooks.Hook, d *hooks.Deps) { h.Signature, d.Token = github(testSecret), gateway },
			nil, signed, 200,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, test.change)
			resp := f.post(t, `{}`, func(r *http.Request) {
				if test.authorization != nil {
					r.Header["Authorization"] = test.authorization
				}
				if test.signature != "" {
					r.Header.Set("X-Hub-Signature-256", test.signature)
				}
			})
			answer := readAll(t, resp)
			if resp.StatusCode != test.status || test.status == 401 && answer != unauthorized {
				t.Errorf("answer = %d %s, want %d", resp.StatusCode, answer, test.status)
			}
			if logs := f.logs.String(); strings.Contains(logs, "-token") || strings.Contains(logs, testSecret) {
				t.Errorf("a secret is in the log:\n%s", logs)
			}
		})
	}
}

func TestForgedRequestsLearnNothingFromTheirBody(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Signature = github(testSecret) })
	for _, body := range []string{``, `{`, `{}`, "\xff"} {
		resp := f.post(t, body, func(r *http.Request) {
			r.Header.Set("Content-Type", "image/png")
			r.Header.Set("Idempotency-Key", "")
		})
		wantAnswer(t, resp, 401, unauthorized)
		if got := resp.Header.Get("X-Idempotency-Status"); got != "none" {
			t.Errorf("X-Idempotency-Status = %q, want none", got)
		}
	}
}

func TestSign(t *testing.T) {
	t.Parallel()
	own, gateway := secret.New("hook-token"), secret.New("gateway-token")
	for _, test := range []struct {
		name   string
		change func(*hooks.Hook)
	}{
		{"nothing configured", func(*hooks.Hook) {}},
		{"a token", func(h *hooks.Hook) { h.Auth = &hooks.Tokens{Only: own} }},
		{"a signature", func(h *hooks.Hook) { h.Signature = github("new-secret", "old-secret") }},
		{"both", func(h *hooks.Hook) { h.Auth, h.Signature = &hooks.Tokens{Only: own}, github("new-secret") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var hook hooks.Hook
			f := build(t, func(h *hooks.Hook, d *hooks.Deps) {
				test.change(h)
				d.Token, hook = gateway, *h
			})
			resp := f.post(t, `{"a":1}`, func(r *http.Request) {
				if err := hook.Sign(r.Header, signature.Content{Body: []byte(`{"a":1}`)}, gateway, time.Now()); err != nil {
					t.Fatal(err)
				}
			})
			if resp.StatusCode != http.StatusOK {
				t.Errorf("status of a signed request = %d, want 200", resp.StatusCode)
			}
		})
	}
}

func TestAWebPageCannotUseAnOpenHook(t *testing.T) {
	t.Parallel()
	page := func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }
	f := build(t, nil)
	wantAnswer(t, f.post(t, `{"text":"hi"}`, page), http.StatusUnauthorized, unauthorized)
	if n := f.runs(); n != 0 {
		t.Errorf("%d messages of a web page reached the pipeline", n)
	}
	if resp := f.post(t, `{"text":"hi"}`, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("a program of this machine got %d, want 200", resp.StatusCode)
	}
	f = build(t, func(_ *hooks.Hook, d *hooks.Deps) { d.Token = secret.New("gateway-token") })
	withToken := func(r *http.Request) {
		page(r)
		r.Header.Set("Authorization", "Bearer gateway-token")
	}
	if resp := f.post(t, `{"text":"hi"}`, withToken); resp.StatusCode != http.StatusOK {
		t.Errorf("a page that knows the token got %d, want 200", resp.StatusCode)
	}
}
