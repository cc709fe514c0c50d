package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// planted is a configuration with a marker in every secret, and in the name of
// the Redis user and host, which are nobody's business either. Nothing listens
// there.
const planted = `
gateway:
  auth_token: MARKER-gateway-token
  push: {redis: {host: 127.66.77.88, port: 1, username: MARKER-user, password: MARKER-password}}
hooks:
  idempotency: {store_backend: redis, claim_timeout: 20ms}
  hooks:
    - {path: token, agent: one, auth: MARKER-hook-token}
    - {path: named, agent: one, auth: {alice: MARKER-alice, bob: MARKER-bob}}
    - {path: github, agent: one, signature: {scheme: github, secrets: [MARKER-github, MARKER-rotated]}}
    - {path: slack, agent: one, signature: {scheme: slack, secrets: [MARKER-slack]}}
    - {path: stripe, agent: one, signature: {scheme: stripe, secrets: [MARKER-stripe]}}
    - {path: standard, agent: one, signature: {scheme: standard, secrets: [BASE64]}}
    - {path: hmac, agent: one, signature: {scheme: hmac-base64, header: X-Mine, secrets: [MARKER-hmac]}}
    - {path: asked, agent: one, challenge: {param: c, verify_param: v, verify_token: MARKER-verify}}
    - {path: away, action: forward, target: 'http://127.66.77.88:1/', headers: {X-Key: MARKER-header}}
    - {path: model, agent: model}
    - {path: service, agent: service}
    - {path: program, agent: program}
agents:
  one: {}
  model: {kind: openai, base_url: 'http://127.66.77.88:1/v1', api_key: MARKER-api, model: m}
  service: {kind: http, url: 'http://127.66.77.88:1/turn', headers: {X-Key: MARKER-header}}
  program: {kind: exec, command: [/bin/sh, -c, 'exit 3'], env: {TOKEN: MARKER-env}}
`

// redisURL is the other form of the settings of Redis.
const redisURL = "gateway: {auth_token: MARKER-gateway-token, push: {redis: {url: 'redis://MARKER-user:MARKER-password@127.66.77.88:1/0'}}}\n" +
	"hooks: {idempotency: {store_backend: redis, claim_timeout: 20ms}}\n"

// wrong is one in which no secret can be used.
const wrong = `
gateway: {auth_token: [MARKER], push: {redis: {url: 'redis://MARKER-user:MARKER%zz@127.66.77.88'}}}
hooks:
  hooks:
    - {path: a, auth: {x: MARKER, y: MARKER}, signature: {scheme: standard, secrets: ['MARKER!', "MARKER\n", whpk_MARKER]}}
    - {path: b, action: forward, target: 'http://MARKER:MARKER@127.66.77.88/', headers: {X: "MARKER\n"}}
    - {path: c, signature: {scheme: hmac-hex, header: X, secrets: [MARKER, MA]}, challenge: {param: c, verify_token: MARKER}}
`

var markers = []string{"MARKER", "TUFSS0VS", "127.66.77.88"} // the second is the first in base64

// leaks collects everything that somebody could read.
type leaks struct {
	mu    sync.Mutex
	texts bytes.Buffer
}

func (l *leaks) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.texts.Write(p)
}

func (l *leaks) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.texts.Len() == 0 {
		t.Fatal("nothing was collected")
	}
	for line := range strings.Lines(l.texts.String()) {
		for _, marker := range markers {
			if strings.Contains(line, marker) {
				t.Errorf("%q is in: %s", marker, line)
			}
		}
	}
}

func plantedText() string {
	return strings.Replace(planted, "BASE64", base64.StdEncoding.EncodeToString([]byte("MARKER-standard")), 1)
}

// unplanted returns the keys of secrets that hold no marker anywhere.
func unplanted(v reflect.Value) []string {
	found := make(map[string]bool)
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		if s, ok := v.Interface().(secret.String); ok {
			found[path] = found[path] || !s.IsEmpty()
			return
		}
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() {
				v = reflect.New(v.Type().Elem())
			}
			walk(path, v.Elem())
		case reflect.Slice:
			for i := range v.Len() {
				walk(path+"[]", v.Index(i))
			}
		case reflect.Map:
			for _, key := range v.MapKeys() {
				walk(path+"{}", v.MapIndex(key))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					walk(path+"."+v.Type().Field(i).Name, v.Field(i))
				}
			}
		}
	}
	walk("", v)
	var missing []string
	for path, is := range found {
		if !is {
			missing = append(missing, path)
		}
	}
	return missing
}

func TestB132_NothingTellsASecretAHostOrAUser(t *testing.T) {
	t.Parallel()
	var l leaks
	cfg := mustParse(t, plantedText())
	if missing := slices.DeleteFunc(unplanted(reflect.ValueOf(cfg)), func(path string) bool { return path == ".Gateway.Push.Redis.URL" }); len(missing) > 0 {
		t.Fatalf("no marker is planted in %v", missing)
	}
	log := slog.New(slog.NewTextHandler(&l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p, stop := runningOn(t, cfg, log, func(ctx context.Context, _ *process) error {
		<-ctx.Done()
		return nil
	})
	handler := p.server.Handler()
	send := func(r *http.Request) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		_, _ = fmt.Fprintf(&l, "%s %s: %d %v %s\n", r.Method, r.URL.Path, w.Code, w.Header(), w.Body)
	}
	for _, h := range cfg.Hooks.Hooks {
		for _, body := range []string{``, `{"id":1}`, `{`, `[1]`, "\xff"} {
			for _, value := range []string{"", "Bearer wrong", "sha256=00", "t=1,v1=zz", "v1,AAAA", "v0=é"} {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/"+h.Path, strings.NewReader(body))
				for _, name := range []string{"Authorization", "X-Gateway-Token", "X-Hub-Signature-256", "X-Slack-Signature", "Stripe-Signature", "Webhook-Signature", "X-Mine"} {
					r.Header.Set(name, value)
				}
				r.Header.Set("X-Slack-Request-Timestamp", "1")
				r.Header.Set("Webhook-Id", "1")
				r.Header.Set("Webhook-Timestamp", "1")
				send(r)
			}
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/"+h.Path, strings.NewReader(`{"id":2}`))
		r.Header.Set("Authorization", "Bearer MARKER-gateway-token")
		send(r)
		send(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/hooks/"+h.Path+"?v=wrong&c=1", nil))
	}
	for _, token := range []string{"", "Bearer wrong", "Bearer MARKER-gateway-token"} {
		for _, path := range []string{"/health", "/metrics", "/livez", "/readyz", "/", "/api/prove"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			r.Header.Set("Authorization", token)
			send(r)
		}
	}
	panics := func(context.Context, message.Turn) (message.Outcome, error) {
		panic(fmt.Sprintf("%v %+v %#v", cfg.Gateway.AuthToken, cfg.Gateway.Push.Redis.Password, cfg.Hooks.Hooks[:8]))
	}
	_, err := p.pipeline.Process(t.Context(), message.Message{Key: message.Key{Platform: "test", ID: "panic"}}, message.Policy{
		Route: "test", Runner: runnerFunc(panics), Lease: time.Minute, TTL: time.Minute, OnDuplicate: message.Conflict,
	})
	_, _ = fmt.Fprintln(&l, err)
	if err := stop(); err != nil {
		_, _ = fmt.Fprintln(&l, err)
	}
	l.check(t)
}

// runnerFunc is a Runner made of a function.
type runnerFunc func(context.Context, message.Turn) (message.Outcome, error)

func (f runnerFunc) Run(ctx context.Context, turn message.Turn) (message.Outcome, error) {
	return f(ctx, turn)
}

func TestNoCommandTellsASecretAHostOrAUser(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"planted": plantedText(), "a Redis URL": redisURL, "a wrong file": wrong} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l leaks
			// A target is printed as it is configured: the loader keeps credentials out of it.
			file := writeFile(t, strings.Replace(text, "'http://127.66.77.88:1/'", "'http://127.0.0.1:1/'", 1))
			for _, args := range [][]string{
				{"config", "check"}, {"config", "check", "--json"}, {"config", "show"}, {"config", "show", "--json"},
				{"doctor"}, {"doctor", "--json"}, {"doctor", "--prove", "2"}, {"doctor", "--fix"},
				{"hooks", "list"}, {"hooks", "list", "--json"}, {"hooks", "send", "github", "--url", "http://127.0.0.1:1"},
				{"messages", "list"}, {"messages", "show", "a:b:c:d"}, {"messages", "release", "a:b:c:d"},
			} {
				got := runIn(t, "", nil, append(slices.Clone(args), "-c", file)...)
				if args[0] == "config" && args[1] == "show" { // what is configured and no secret is what it is for
					got.out = strings.NewReplacer("127.66.77.88", "", "MARKER-user", "").Replace(got.out)
				}
				_, _ = fmt.Fprintf(&l, "%v: %d\n%s\n%s\n", args[:1], got.code, got.out, got.err)
			}
			l.check(t)
		})
	}
}
