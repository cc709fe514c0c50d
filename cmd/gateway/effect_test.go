package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"

	"fmt"
	"io"

	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"testing"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/message"
)

// inRedis leaves a busy test machine the time for a claim.
const inRedis = "store_backend: redis, claim_timeout: 5s"

// effects has a test for every key that the loader accepts: what a user would
// see of it. [] stands for a list's element and {} for a map's.
var effects = map[string]func(*testing.T){
	"gateway.host": func(t *testing.T) {
		l, err := gateway.Listen(t.Context(), gateway.Config{Host: "127.0.0.2"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := l.Addr().(*net.TCPAddr).IP.String(); got != "127.0.0.2" {
			t.Errorf("listens on %s", got)
		}
	},
	"gateway.port": func(t *testing.T) {
		l, err := gateway.Listen(t.Context(), gateway.Config{Host: "127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if l, err = gateway.Listen(t.Context(), gateway.Config{Host: "127.0.0.1", Port: port}); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := l.Addr().(*net.TCPAddr).Port; got != port {
			t.Errorf("listens on %d, want %d", got, port)
		}
	},
	"gateway.auth_token": func(t *testing.T) {
		r := assembled(t, "gateway: {auth_token: operator-token}\n"+echoHook())
		want(t, r.post("a", `{}`), 401, "unauthorized")
		want(t, r.post("a", `{"text":"hi"}`, header("Authorization", "Bearer operator-token")), 200, "hi")
	},
	"gateway.state_dir": func(t *testing.T) {
		r := assembled(t, "gateway: {state_dir: STATE/elsewhere}\n")
		if _, err := os.Stat(filepath.Join(r.state, "gateway.db")); err != nil || filepath.Base(r.state) != "elsewhere" {
			t.Errorf("the database in %s: %v; want it in the configured directory", r.state, err)
		}
	},
	"gateway.max_body_bytes": func(t *testing.T) {
		r := assembled(t, "gateway: {max_body_bytes: 16}\n"+echoHook())
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		want(t, r.post("a", `{"text":"hello there"}`), 413, "")
	},
	"gateway.max_concurrent_turns": func(t *testing.T) {
		url, arrived, release := blocking(t)
		r := assembled(t, "gateway: {max_concurrent_turns: 1, queue_wait: 0}\n"+echoHook("action: forward", "target: "+url))
		done := make(chan struct{})
		go func() { defer close(done); r.post("a", `{"id":1}`) }()
		<-arrived
		want(t, r.post("a", `{"id":2}`), 503, "busy")
		release()
		<-done
		want(t, r.post("a", `{"id":3}`), 200, "")
	},
	"gateway.queue_wait": func(t *testing.T) {
		url, arrived, release := blocking(t)
		r := assembled(t, "gateway: {max_concurrent_turns: 1, queue_wait: 1m}\n"+echoHook("action: forward", "target: "+url))
		codes := make(chan int, 2)
		for i := range 2 {
			go func() { codes <- r.post("a", fmt.Sprintf(`{"id":%d}`, i)).Code }()
		}
		<-arrived
		release()
		if a, b := <-codes, <-codes; a != 200 || b != 200 {
			t.Errorf("got %d and %d, want the second to wait for the first", a, b)
		}
	},
	"gateway.turn_timeout": func(t *testing.T) {
		url, _, _ := blocking(t)
		r := assembled(t, "gateway: {turn_timeout: 50ms}\n"+echoHook("action: forward", "target: "+url))
		want(t, r.post("a", `{"id":1}`), 504, "run timed out")
	},
	"gateway.drain_timeout": func(t *testing.T) {
		url, arrived, _ := blocking(t)
		r := assembled(t, "gateway: {drain_timeout: 50ms}\n"+echoHook("action: forward", "target: "+url))
		got := make(chan *httptest.ResponseRecorder)
		go func() { got <- r.post("a", `{"id":1}`) }()
		<-arrived
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := r.server.Run(ctx, l); err != nil {
			t.Errorf("Run = %v", err)
		}
		want(t, <-got, 503, "draining")
	},
	"gateway.log.level": func(t *testing.T) {
		var out bytes.Buffer
		log := newLogger(gateway.LogConfig{Level: "warn", Format: "text"}, &out)
		log.Info("quiet")
		log.Warn("loud")
		if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, "loud") {
			t.Errorf("logged %q", got)
		}
	},
	"gateway.log.format": func(t *testing.T) {
		var out bytes.Buffer
		newLogger(gateway.LogConfig{Level: "info", Format: "json"}, &out).Info("hello")
		if got := out.String(); !strings.HasPrefix(got, "{") {
			t.Errorf("logged %q, want JSON", got)
		}
	},
	"gateway.push.redis.url":  reachesRedis(func(addr string) string { return "url: redis://" + addr }),
	"gateway.push.redis.host": reachesRedis(fields),
	"gateway.push.redis.port": reachesRedis(fields),
	"gateway.push.redis.db": func(t *testing.T) {
		s := redistest.StartTCP(t)
		r := assembled(t, "gateway: {push: {redis: {"+fields(s.Addr())+", db: 3}}}\n"+withIdempotency(inRedis))
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		if space, err := s.Client().Info(t.Context(), "keyspace").Result(); err != nil || !strings.Contains(space, "db3:") || strings.Contains(space, "db0:") {
			t.Errorf("keys are in %q, %v; want them in database 3", space, err)
		}
	},
	"gateway.push.redis.username": reachesRedis(func(addr string) string { return fields(addr) + ", username: gw, password: 'p@ss/#'" }, "--user", "gw", "on", ">p@ss/#", "~*", "&*", "+@all", "--user", "default", "off"),
	"gateway.push.redis.password": reachesRedis(func(addr string) string { return fields(addr) + ", password: 'p@ss/#'" }, "--requirepass", "p@ss/#"),
	"gateway.push.redis.prefix": func(t *testing.T) {
		s := redistest.Start(t)
		r := assembled(t, "gateway: {push: {redis: {url: 'unix://"+s.Addr()+"', prefix: 'stage:'}}}\n"+
			withIdempotency(inRedis))
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		if keys, err := s.Client().Keys(t.Context(), "stage:hookidem:hook:*").Result(); err != nil || len(keys) != 1 {
			t.Errorf("keys %v, %v; want one that begins with the prefix", keys, err)
		}
	},
	"gateway.push.redis.tls.ca_file":     reachesRedisOverTLS,
	"gateway.push.redis.tls.server_name": reachesRedisOverTLS,
	"gateway.turn_lock.backend": func(t *testing.T) {
		r := assembled(t, "gateway: {turn_lock: {backend: local}}\n")
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/health", nil))
		want(t, w, 200, `"turn_lock":"local"`)
	},

	"hooks.idempotency.store_backend": func(t *testing.T) {
		for _, backend := range []string{"sqlite", "memory"} {
			if got := assembled(t, "hooks: {idempotency: {store_backend: "+backend+"}}\n").store.Backend(); got != backend {
				t.Errorf("claims go to %s, want %s", got, backend)
			}
		}
	},
	"hooks.idempotency.lease": leaseEffect(withIdempotency("lease: 77s", "action: forward", "target: %s", "idempotency_key: '{{ payload.id }}'"), 77*time.Second),
	"hooks.idempotency.ttl":   windowEffect(withIdempotency("ttl: 1s", "idempotency_key: '{{ payload.id }}'")),
	"hooks.idempotency.on_unavailable": func(t *testing.T) {
		for policy, status := range map[string]int{"open": 200, "closed": 503} {
			r := assembled(t, "gateway: {state_dir: /dev/null/state}\n"+
				withIdempotency("on_unavailable: "+policy))
			if got := r.post("a", `{"text":"hi"}`).Code; got != status {
				t.Errorf("%s: got %d without a usable store, want %d", policy, got, status)
			}
		}
	},
	"hooks.idempotency.claim_timeout": func(t *testing.T) {
		proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
		r := assembled(t, "gateway: {push: {redis: {url: 'redis://"+proxy.Addr()+"'}}}\n"+
			withIdempotency("store_backend: redis, claim_timeout: 20ms, on_unavailable: closed"))
		proxy.Freeze(true)
		start := time.Now()
		want(t, r.post("a", `{"text":"hi"}`), 503, "IDEMPOTENCY_UNAVAILABLE")
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("a claim took %s of a frozen Redis's time, want about 20ms", took)
		}
	},
	"hooks.idempotency.max_stored_reply": func(t *testing.T) {
		r := assembled(t, withIdempotency("max_stored_reply: 4"))
		want(t, r.post("a", `{"text":"hello"}`), 200, `"reply":"hello"`)
		want(t, r.post("a", `{"text":"hello"}`), 200, `"reply":null,"delivered":null,"reply_omitted":true`)
	},

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
	"hooks.hooks[].lease":        leaseEffect(echoHook("action: forward", "target: %s", "idempotency_key: '{{ payload.id }}'", "lease: 77s"), 77*time.Second),
	"hooks.hooks[].ttl":          windowEffect(echoHook("idempotency_key: '{{ payload.id }}'", "ttl: 1s")),
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
	"agents{}.kind": func(t *testing.T) {
		want(t, assembled(t, "agents: {one: {kind: echo}}\nhooks: {hooks: [{path: a}]}\n").post("a", `{"text":"hi"}`), 200, `"reply":"hi"`)
	},
}

func fields(addr string) string {
	host, port, _ := strings.Cut(addr, ":")
	return "host: " + host + ", port: " + port
}

// reachesRedis checks that claims reach a server that was started with args
// through settings made of its address.
func reachesRedis(settings func(addr string) string, args ...string) func(*testing.T) {
	return func(t *testing.T) {
		s := redistest.StartTCP(t, args...)
		r := assembled(t, "gateway: {push: {redis: {"+settings(s.Addr())+"}}}\n"+withIdempotency(inRedis))
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		if got := r.store.Backend(); got != "redis" {
			t.Errorf("claims go to %s, want redis: %+v", got, r.health.Owners())
		}
	}
}

func reachesRedisOverTLS(t *testing.T) {
	s := redistest.StartTLS(t)
	r := assembled(t, fmt.Sprintf("gateway: {push: {redis: {%s, tls: {ca_file: %q, server_name: %s}}}}\nhooks: {idempotency: {"+inRedis+"}}\n",
		fields(s.Addr()), s.CAFile, redistest.ServerName))
	if got := r.store.Backend(); got != "redis" {
		t.Errorf("claims go to %s, want redis: %+v", got, r.health.Owners())
	}
	r = assembled(t, fmt.Sprintf("gateway: {push: {redis: {%s, tls: {ca_file: %q, server_name: other.test}}}}\nhooks: {idempotency: {"+inRedis+"}}\n",
		fields(s.Addr()), s.CAFile))
	if owners := r.health.Owners(); len(owners) != 1 || owners[0].Class != "tls" {
		t.Errorf("a certificate for another name: %+v, want class tls", owners)
	}
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

// leaseEffect looks at the claim of a running message; text has a place for
// the target that keeps it running.
func leaseEffect(text string, lease time.Duration) func(*testing.T) {
	return func(t *testing.T) {
		url, arrived, release := blocking(t)
		r := assembled(t, fmt.Sprintf(text, url))
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- r.post("a", `{"id":"1"}`) }()
		<-arrived
		key := idempotency.EncodeKey(message.Key{Platform: "hook", Channel: "a", ID: "1"})
		res, err := r.store.Reserve(t.Context(), key, idempotency.Request{Token: "observer", Lease: time.Second, TTL: time.Second})
		if err != nil || res.State != idempotency.InFlight || res.RetryAfter > lease || res.RetryAfter < lease-30*time.Second {
			t.Errorf("the claim is in state %d for another %s, %v; want in flight for about %s", res.State, res.RetryAfter, err, lease)
		}
		release()
		want(t, <-first, 200, "")
	}
}

// windowEffect checks that a record window of a second ends.
func windowEffect(text string) func(*testing.T) {
	return func(t *testing.T) {
		r := assembled(t, text)
		post := func() string { return idempotencyStatus(r.post("a", `{"id":"1"}`)) }
		if a, b := post(), post(); a != "new" || b != "processed" {
			t.Errorf("deliveries are %s and %s, want new and processed", a, b)
		}
		time.Sleep(1100 * time.Millisecond) // the store's clock is the real one
		if got := post(); got != "new" {
			t.Errorf("after the window a delivery is %s, want new", got)
		}
	}
}

// TestEveryKeyHasItsEffect fails for a key of the configuration without a test
// above, and for a test of a key that the loader does not know.
func TestEveryKeyHasItsEffect(t *testing.T) {
	t.Parallel()
	accepted := keys(reflect.TypeFor[config.Config](), "")
	slices.Sort(accepted)
	if tested := slices.Sorted(maps.Keys(effects)); !slices.Equal(accepted, tested) {
		t.Errorf("the loader accepts\n%s\nthere are tests for\n%s", strings.Join(accepted, "\n"), strings.Join(tested, "\n"))
	}
	for key, test := range effects {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// keys lists the paths of all settings below a type.
func keys(typ reflect.Type, path string) []string {
	switch {
	case typ.Kind() == reflect.Pointer:
		return keys(typ.Elem(), path)
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct && strings.HasSuffix(path, "hooks"):
		return keys(typ.Elem(), path+"[]")
	case typ.Kind() == reflect.Map:
		return keys(typ.Elem(), path+"{}")
	case typ.Kind() == reflect.Struct:
		var all []string
		for i := range typ.NumField() {
			if name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ","); name != "" {
				all = append(all, keys(typ.Field(i).Type, strings.TrimPrefix(path+"."+name, "."))...)
			}
		}
		if all != nil {
			return all
		}
	}
	return []string{path}
}
