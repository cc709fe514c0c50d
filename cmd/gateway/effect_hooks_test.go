package main

import (
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

// hookEffects are the effects of hooks.hooks.
var hookEffects = map[string]func(*testing.T){
	"hooks.hooks[].path": func(t *testing.T) {
		r := assembled(t, echoHook())
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		want(t, r.post("b", `{"text":"hi"}`), 404, "not found")
	},
	"hooks.hooks[].agent": func(t *testing.T) {
		r := assembled(t, "agents: {one: {}, two: {}}\nhooks: {hooks: [{path: a, agent: two}]}\n")
		want(t, r.post("a", `{"text":"hi"}`), 200, `"agent":"two"`)
	},
	"hooks.hooks[].action": func(t *testing.T) {
		url := target(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
		want(t, assembled(t, echoHook("action: forward", "target: "+url)).post("a", `{}`), http.StatusTeapot, "")
	},
	"hooks.hooks[].auth": func(t *testing.T) {
		r := assembled(t, echoHook("auth: hook-token"))
		want(t, r.post("a", `{}`), 401, "unauthorized")
		want(t, r.post("a", `{}`, header("Authorization", "Bearer hook-token")), 200, "")
	},
	"hooks.hooks[].signature.scheme":  signatureEffect,
	"hooks.hooks[].signature.secrets": signatureEffect,
	"hooks.hooks[].platform":          partEffect("platform"),
	"hooks.hooks[].account":           partEffect("account"),
	"hooks.hooks[].channel":           partEffect("channel"),
	"hooks.hooks[].idempotency_key": func(t *testing.T) {
		r := assembled(t, echoHook("idempotency_key: '{{ payload.id }}'"))
		for i, state := range []string{"new", "processed"} {
			if got := idempotencyStatus(r.post("a", fmt.Sprintf(`{"id":"1","text":"%d"}`, i))); got != state {
				t.Errorf("delivery %d is %s, want %s", i, got, state)
			}
		}
	},
	"hooks.hooks[].accept_idempotency_key": func(t *testing.T) {
		r := assembled(t, echoHook("accept_idempotency_key: true"))
		want(t, r.post("a", `{"text":"a"}`, header("Idempotency-Key", "k")), 200, `"a"`)
		want(t, r.post("a", `{"text":"b"}`, header("Idempotency-Key", "k")), 422, "different request")
	},
	"hooks.hooks[].require_key": func(t *testing.T) {
		r := assembled(t, echoHook("idempotency_key: '{{ payload.id }}'", "require_key: true"))
		want(t, r.post("a", `{}`), 400, "no idempotency key")
	},
	"hooks.hooks[].session": func(t *testing.T) {
		want(t, assembled(t, echoHook("session: 's:{{ payload.user }}'")).post("a", `{"user":"ann"}`), 200, `"session":"s:ann"`)
	},
	"hooks.hooks[].message": func(t *testing.T) {
		want(t, assembled(t, echoHook("message: 'from {{ payload.user }}'")).post("a", `{"user":"ann"}`), 200, `"reply":"from ann"`)
	},
	"hooks.hooks[].on_duplicate": waitEffect(200, "wait_timeout: 1m"),
	"hooks.hooks[].wait_timeout": waitEffect(409, "wait_timeout: 20ms"),
	"hooks.hooks[].on_unavailable": func(t *testing.T) {
		for policy, status := range map[string]int{"open": 200, "closed": 503} {
			r := assembled(t, "gateway: {state_dir: /dev/null/state}\n"+echoHook("on_unavailable: "+policy))
			if got := r.post("a", `{"text":"hi"}`).Code; got != status {
				t.Errorf("%s: got %d without a usable store, want %d", policy, got, status)
			}
		}
	},
	"hooks.hooks[].lease": leaseEffect(echoHook("action: forward", "target: %s", "idempotency_key: '{{ payload.id }}'", "lease: 77s"), 77*time.Second),
	"hooks.hooks[].ttl":   windowEffect(echoHook("idempotency_key: '{{ payload.id }}'", "ttl: 1s")),
	"hooks.hooks[].target": func(t *testing.T) {
		url := target(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
		want(t, assembled(t, echoHook("action: forward", "target: "+url+"/in")).post("a", `{}`), 200, "/in")
	},
	"hooks.hooks[].headers{}": func(t *testing.T) {
		url := target(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-Api-Key")) })
		want(t, assembled(t, echoHook("action: forward", "target: "+url, "headers: {X-Api-Key: api-key}")).post("a", `{}`), 200, "api-key")
	},
	"hooks.hooks[].response_headers": func(t *testing.T) {
		url := target(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Kept", "yes")
			w.Header().Set("X-Other", "no")
		})
		w := assembled(t, echoHook("action: forward", "target: "+url, "response_headers: [X-Kept]")).post("a", `{}`)
		if w.Header().Get("X-Kept") != "yes" || w.Header().Get("X-Other") != "" {
			t.Errorf("headers %v, want X-Kept and not X-Other", w.Header())
		}
	},
	"hooks.hooks[].auth{}": func(t *testing.T) {
		r := assembled(t, echoHook("auth: {alice: token-a, bob: token-b}", "accept_idempotency_key: true"))
		want(t, r.post("a", `{}`), 401, "unauthorized")
		for _, token := range []string{"token-a", "token-b"} {
			w := r.post("a", `{}`, header("Authorization", "Bearer "+token), header("Idempotency-Key", "k"))
			if got := idempotencyStatus(w); got != "new" {
				t.Errorf("the key k that came with %s is %s, want new: it is another one's", token, got)
			}
		}
	},
	"hooks.hooks[].signature.header": func(t *testing.T) {
		r := assembled(t, echoHook("signature: {scheme: hmac-hex, header: X-Mine, secrets: [old-secret]}"))
		want(t, r.post("a", `{}`, header("X-Mine", hexMAC("old-secret", `{}`))), 200, "")
		want(t, r.post("a", `{}`, header("X-Signature", hexMAC("old-secret", `{}`))), 401, "")
	},
	"hooks.hooks[].signature.prefix": func(t *testing.T) {
		r := assembled(t, echoHook("signature: {scheme: hmac-hex, header: Authorization, prefix: 'HMAC ', secrets: [old-secret]}"))
		want(t, r.post("a", `{}`, header("Authorization", "HMAC "+hexMAC("old-secret", `{}`))), 200, "")
		want(t, r.post("a", `{}`, header("Authorization", hexMAC("old-secret", `{}`))), 401, "")
	},
	"hooks.hooks[].signature.algo": func(t *testing.T) {
		r := assembled(t, echoHook("signature: {scheme: hmac-hex, header: X-Mine, algo: sha1, secrets: [old-secret]}"))
		mac := hmac.New(sha1.New, []byte("old-secret"))
		mac.Write([]byte(`{}`))
		want(t, r.post("a", `{}`, header("X-Mine", hex.EncodeToString(mac.Sum(nil)))), 200, "")
		want(t, r.post("a", `{}`, header("X-Mine", hexMAC("old-secret", `{}`))), 401, "")
	},
	"hooks.hooks[].signature.secret_encoding": func(t *testing.T) {
		encoded := base64.StdEncoding.EncodeToString([]byte("the key's own bytes"))
		r := assembled(t, echoHook("signature: {scheme: hmac-hex, header: X-Mine, secret_encoding: base64, secrets: ['"+encoded+"']}"))
		want(t, r.post("a", `{}`, header("X-Mine", hexMAC("the key's own bytes", `{}`))), 200, "")
		want(t, r.post("a", `{}`, header("X-Mine", hexMAC(encoded, `{}`))), 401, "")
	},
	"hooks.hooks[].signature.signed_body": func(t *testing.T) {
		var wire bytes.Buffer
		w := gzip.NewWriter(&wire)
		if _, err := io.WriteString(w, `{"text":"hi"}`); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r := assembled(t, echoHook("signature: {scheme: github, signed_body: decoded, secrets: [old-secret]}"))
		compressed := header("Content-Encoding", "gzip")
		want(t, r.post("a", wire.String(), compressed, header("X-Hub-Signature-256", "sha256="+hexMAC("old-secret", `{"text":"hi"}`))), 200, "hi")
		want(t, r.post("a", wire.String(), compressed, header("X-Hub-Signature-256", "sha256="+hexMAC("old-secret", wire.String()))), 401, "")
	},
	"hooks.hooks[].signature.signed_url": func(t *testing.T) {
		r := assembled(t, "gateway: {public_url: 'https://bot.example/api/'}\n"+
			echoHook("signature: {scheme: hmac-hex, header: X-Mine, signed_url: before, secrets: [old-secret]}"))
		mac := hexMAC("old-secret", `https://bot.example/api/hooks/a{"text":"hi"}`)
		want(t, r.post("a", `{"text":"hi"}`, header("X-Mine", mac)), 200, "hi")
		want(t, r.post("a", `{"text":"hi"}`, header("X-Mine", hexMAC("old-secret", `{"text":"hi"}`))), 401, "")
	},
	"hooks.hooks[].signature.max_age":    freshnessEffect("max_age: 30m", -20*time.Minute),
	"hooks.hooks[].signature.max_future": freshnessEffect("max_future: 30m", 20*time.Minute),
	"hooks.hooks[].event":                eventEffect,
	"hooks.hooks[].events":               eventEffect,
	"hooks.hooks[].caller_key": func(t *testing.T) {
		r := assembled(t, echoHook("idempotency_key: '{{ payload.id }}'", "caller_key: true"))
		want(t, r.post("a", `{"id":1,"text":"a"}`), 200, `"a"`)
		want(t, r.post("a", `{"id":1,"text":"b"}`), 422, "different request")
	},
	"hooks.hooks[].fingerprint": func(t *testing.T) {
		for keys, second := range map[string]string{"fingerprint: off": "none", "message: '{{ payload.text }}'": "processed"} {
			r := assembled(t, echoHook(keys))
			r.post("a", `{"text":"hi"}`)
			if got := idempotencyStatus(r.post("a", `{"text":"hi"}`)); got != second {
				t.Errorf("%s: the same content again is %s, want %s", keys, got, second)
			}
		}
	},
	"hooks.hooks[].fingerprint.fields": func(t *testing.T) {
		r := assembled(t, echoHook("fingerprint: {fields: ['{{ payload.text }}']}"))
		want(t, r.post("a", `{"text":"hi","sent":1}`), 200, "hi")
		want(t, r.post("a", `{"text":"hi","sent":2}`), 200, `"deduplicated":true`)
	},
	"hooks.hooks[].fingerprint.window": windowEffect(echoHook("fingerprint: {window: 1s}")),
	"hooks.hooks[].challenge.param": func(t *testing.T) {
		r := assembled(t, echoHook("auth: hook-token", "challenge: {param: challenge}"))
		want(t, r.get("/hooks/a?challenge=42"), 200, "42")
	},
	"hooks.hooks[].challenge.verify_param": challengeEffect,
	"hooks.hooks[].challenge.verify_token": challengeEffect,
	"hooks.hooks[].soft_failure": func(t *testing.T) {
		url := target(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"ok":false}`) })
		for setting, status := range map[string]int{"true": 502, "false": 200} {
			want(t, assembled(t, echoHook("action: forward", "target: "+url, "soft_failure: "+setting)).post("a", `{}`), status, "")
		}
	},
}

func hexMAC(key, text string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func (r *rig) get(url string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

// freshnessEffect checks that a request signed at a time outside the default
// window passes with the setting.
func freshnessEffect(setting string, offset time.Duration) func(*testing.T) {
	return func(t *testing.T) {
		sender := hooks.Hook{Signature: &signature.Config{Scheme: signature.Stripe, Secrets: []secret.String{secret.New("old-secret")}}}
		for settings, status := range map[string]int{"": 401, ", " + setting: 200} {
			r := assembled(t, echoHook("signature: {scheme: stripe, secrets: [old-secret]"+settings+"}"))
			want(t, r.post("a", `{}`, func(req *http.Request) {
				if err := sender.Sign(req.Header, signature.Content{Body: []byte(`{}`)}, secret.String{}, time.Now().Add(offset)); err != nil {
					t.Fatal(err)
				}
			}), status, "")
		}
	}
}

func eventEffect(t *testing.T) {
	r := assembled(t, echoHook("event: '{{ payload.type }}.{{ payload.action }}'", "events: [issue.opened]"))
	want(t, r.post("a", `{"type":"issue","action":"opened"}`), 200, `"reply"`)
	want(t, r.post("a", `{"type":"issue","action":"closed"}`), 200, `{"ok":true,"skipped":"event"}`)
}

func challengeEffect(t *testing.T) {
	r := assembled(t, echoHook("challenge: {param: c, verify_param: token, verify_token: vt}"))
	want(t, r.get("/hooks/a?token=vt&c=42"), 200, "42")
	want(t, r.get("/hooks/a?token=other&c=42"), 403, "forbidden")
	want(t, r.get("/hooks/a?c=42"), 403, "forbidden")
}

func signatureEffect(t *testing.T) {
	r := assembled(t, echoHook("signature: {scheme: github, secrets: [old-secret, new-secret]}"))
	const body = `{"text":"hi"}`
	want(t, r.post("a", body), 401, "unauthorized")
	for _, key := range []string{"old-secret", "new-secret"} {
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(body))
		want(t, r.post("a", body, header("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))), 200, "hi")
	}
}

// partEffect checks that a key part keeps two messages with one id apart.
func partEffect(part string) func(*testing.T) {
	return func(t *testing.T) {
		r := assembled(t, echoHook("idempotency_key: '{{ payload.id }}'", part+": '{{ payload.part }}'"))
		for _, body := range []string{`{"id":"1","part":"x"}`, `{"id":"1","part":"y"}`} {
			if got := idempotencyStatus(r.post("a", body)); got != "new" {
				t.Errorf("%s is %s, want new", body, got)
			}
		}
	}
}

// waitEffect delivers a message twice, the second time while the first runs.
func waitEffect(status int, keys ...string) func(*testing.T) {
	return func(t *testing.T) {
		url, arrived, release := blocking(t)
		r := assembled(t, echoHook(append(keys, "on_duplicate: wait", "action: forward", "target: "+url)...))
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- r.post("a", `{"id":1}`) }()
		<-arrived
		if status == 200 {
			time.AfterFunc(50*time.Millisecond, release)
		}
		want(t, r.post("a", `{"id":1}`), status, "")
		if status != 200 {
			release()
		}
		want(t, <-first, 200, "")
	}
}
