package main

import (
	"bytes"
	"context"

	"fmt"

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
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/message"
)

// inRedis leaves a busy test machine the time for a claim.
const inRedis = "store_backend: redis, claim_timeout: 5s"

// effects, hookEffects and agentEffects have a test for every key that the loader accepts:
// what a user would see of it. [] stands for a list's element and {} for a map's.
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
	"gateway.public_url": func(t *testing.T) {
		r := assembled(t, "gateway: {public_url: 'https://bot.example/api/'}\n"+echoHook("auth: hook-token"))
		for _, path := range []string{"/hooks/a", "/api/hooks/a"} {
			req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"text":"hi"}`))
			req.Header.Set("Authorization", "Bearer hook-token")
			w := httptest.NewRecorder()
			r.handler.ServeHTTP(w, req)
			want(t, w, 200, "hi")
		}
		want(t, r.get("/metrics"), 401, "unauthorized") // others can reach it
	},
	"gateway.trusted_proxies": func(t *testing.T) {
		r := assembled(t, "gateway: {trusted_proxies: [192.0.2.0/24, 10.0.0.1], auth_failures: {limit: 1}}\n"+echoHook("auth: hook-token"))
		for client, status := range map[string]int{"198.51.100.1": 401, "198.51.100.2": 401} { // the peer of a test is 192.0.2.1
			want(t, r.post("a", `{}`, header("X-Forwarded-For", "1.1.1.1, "+client+", 10.0.0.1")), status, "")
		}
		want(t, r.post("a", `{}`, header("X-Forwarded-For", "2.2.2.2, 198.51.100.1")), 429, "too many requests")
	},
	"gateway.auth_failures.limit": func(t *testing.T) {
		r := assembled(t, "gateway: {auth_failures: {limit: 2}}\n"+echoHook("auth: hook-token"))
		for _, status := range []int{401, 401, 429} {
			want(t, r.post("a", `{}`), status, "")
		}
		want(t, r.post("a", `{"text":"hi"}`, header("Authorization", "Bearer hook-token")), 200, "hi")
	},
	"gateway.auth_failures.window": func(t *testing.T) {
		r := assembled(t, "gateway: {auth_failures: {limit: 1, window: 1s}}\n"+echoHook("auth: hook-token"))
		want(t, r.post("a", `{}`), 401, "")
		want(t, r.post("a", `{}`), 429, "")
		time.Sleep(1100 * time.Millisecond) // the gateway's clock is the real one
		want(t, r.post("a", `{}`), 401, "")
	},
	"gateway.state_dir": func(t *testing.T) {
		r := assembled(t, "gateway: {state_dir: STATE/elsewhere}\n")
		if _, err := os.Stat(filepath.Join(r.state, "gateway.db")); err != nil || filepath.Base(r.state) != "elsewhere" {
			t.Errorf("the database in %s: %v; want it in the configured directory", r.state, err)
		}
	},
	"gateway.replicas": func(t *testing.T) {
		for replicas, code := range map[string]int{"1": exitOK, "2": exitError} {
			file := writeFile(t, "gateway: {port: 0, replicas: "+replicas+", state_dir: "+filepath.Join(t.TempDir(), "state")+"}\n"+echoHook())
			if c := diagnose(t, code, "-c", file)["replicas"]; (c.Status == health.CheckFail) != (replicas == "2") {
				t.Errorf("%s replicas on a file: %+v", replicas, c)
			}
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
	"gateway.push.redis.url":             reachesRedis(func(addr string) string { return "url: redis://" + addr }),
	"gateway.push.redis.host":            reachesRedis(fields),
	"gateway.push.redis.port":            reachesRedis(fields),
	"gateway.push.redis.sentinel.master": reachesRedisBySentinel,
	"gateway.push.redis.sentinel.addrs":  reachesRedisBySentinel,
	"gateway.push.redis.cluster.addrs": func(t *testing.T) {
		nodes := redistest.StartCluster(t, 2)
		r := assembled(t, fmt.Sprintf("gateway: {push: {redis: {cluster: {addrs: [%q, %q]}, prefix: '{stage}:'}}}\n", nodes[0].Addr(), nodes[1].Addr())+
			withIdempotency(inRedis))
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		if got := r.store.Backend(); got != "redis" {
			t.Errorf("claims go to %s, want redis: %+v", got, r.health.Owners())
		}
	},
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
	"hooks.idempotency.takeover_after": func(t *testing.T) {
		s := redistest.StartTCP(t)
		r := assembled(t, "gateway: {push: {redis: {"+fields(s.Addr())+"}}}\n"+withIdempotency(inRedis+", takeover_after: 77s"))
		left, err := s.Client().PTTL(t.Context(), "gateway:replica:"+r.replica).Result()
		if err != nil || left > 77*time.Second || left < 60*time.Second {
			t.Errorf("the heartbeat lives for another %s, %v; want about 77s", left, err)
		}
	},
	"hooks.idempotency.max_stored_reply": func(t *testing.T) {
		r := assembled(t, withIdempotency("max_stored_reply: 4"))
		want(t, r.post("a", `{"text":"hello"}`), 200, `"reply":"hello"`)
		want(t, r.post("a", `{"text":"hello"}`), 200, `"reply":null,"delivered":null,"reply_omitted":true`)
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

func reachesRedisBySentinel(t *testing.T) {
	s := redistest.StartSentinel(t)
	r := assembled(t, fmt.Sprintf("gateway: {push: {redis: {sentinel: {master: %s, addrs: [%q]}}}}\n", redistest.Master, s.Addr())+withIdempotency(inRedis))
	want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
	if keys, err := s.Primary().Client().Keys(t.Context(), "gateway:hookidem:hook:*").Result(); err != nil || len(keys) != 1 {
		t.Errorf("the primary has keys %v, %v; want the message's", keys, err)
	}
	r = assembled(t, fmt.Sprintf("gateway: {push: {redis: {sentinel: {master: other, addrs: [%q]}}}}\n", s.Addr())+withIdempotency(inRedis))
	if owners := r.health.Owners(); len(owners) != 1 || owners[0].Class != "unreachable" {
		t.Errorf("a primary that the Sentinel does not know: %+v, want class unreachable", owners)
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
	all := maps.Clone(effects)
	maps.Copy(all, hookEffects)
	maps.Copy(all, agentEffects)
	accepted := keys(reflect.TypeFor[config.Config](), "")
	slices.Sort(accepted)
	if tested := slices.Sorted(maps.Keys(all)); !slices.Equal(accepted, tested) {
		t.Errorf("the loader accepts\n%s\nthere are tests for\n%s", strings.Join(accepted, "\n"), strings.Join(tested, "\n"))
	}
	for key, test := range all {
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
			switch typ.Field(i).Tag.Get("config") { // forms of the section that are no keys in it
			case "scalar":
				all = append(all, path)
			case "entries":
				all = append(all, path+"{}")
			}
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
