package health_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/health"
)

// fleet is a fleet under test, on a clock of its own.
type fleet struct {
	*health.Fleet
	t      *testing.T
	health *health.Registry
	now    time.Time
}

func newFleet(t *testing.T, replicas int) *fleet {
	t.Helper()
	r, _ := newReady()
	f := &fleet{t: t, health: r, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	f.Fleet = health.NewFleet(health.FleetConfig{Replicas: replicas, Health: r, Now: func() time.Time { return f.now }})
	return f
}

// live is a replica that claims where it is configured to.
func live(id, store string, edit ...func(*health.Replica)) health.Replica {
	r := health.Replica{ID: id, Version: "v1", KeyFormat: 1, Config: "aaaa", Store: store, Backends: map[string]string{"idempotency": store}}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func config(hash string) func(*health.Replica) { return func(r *health.Replica) { r.Config = hash } }

// wantOwner wants the owner gateway/replicas alone, with parts of its hint; no
// class: none.
func (f *fleet) wantOwner(when, state, class, reason string, hints ...string) {
	f.t.Helper()
	owners := f.health.Owners()
	if class == "" {
		if len(owners) != 0 {
			f.t.Errorf("%s: degraded owners %+v, want none", when, owners)
		}
		return
	}
	if len(owners) != 1 {
		f.t.Errorf("%s: degraded owners %+v, want one", when, owners)
		return
	}
	o := owners[0]
	if o.Kind != "gateway" || o.ID != "replicas" || o.State != state || o.Class != class || o.Reason != reason {
		f.t.Errorf("%s: %+v, want %s %s: %s", when, o, state, class, reason)
	}
	for _, hint := range hints {
		if !strings.Contains(o.RetryHint, hint) {
			f.t.Errorf("%s: the hint %q lacks %q", when, o.RetryHint, hint)
		}
	}
}

const (
	ownStore  = "fewer replicas than configured share the idempotency store (running per-replica)"
	notRedis  = "other replicas claim in redis, this one does not (running per-replica)"
	elsewhere = "other replicas claim in stores of their own (running per-replica)"
	formats   = "live replicas write keys in different formats (they do not see each other's claims)"
	configs   = "live replicas run with different configurations"
)

func TestB82_ReplicasOnStoresOfTheirOwn(t *testing.T) {
	t.Parallel()
	remedy := []string{"hooks.idempotency.store_backend: redis", "gateway.push.redis"}
	failingOver := live("a", "redis", func(r *health.Replica) { r.Backends = map[string]string{"idempotency": "sqlite"} })
	inMemory := live("a", "sqlite", func(r *health.Replica) { r.Backends = map[string]string{"idempotency": "memory"} })
	for name, test := range map[string]struct {
		replicas      int
		own           health.Replica
		others        []health.Replica
		class, reason string
	}{
		"one replica in memory":                           {1, live("a", "memory"), nil, "", ""},
		"two configured in memory":                        {2, live("a", "memory"), nil, "unshared", ownStore},
		"one replica on a file":                           {1, live("a", "sqlite"), nil, "", ""},
		"two configured, a file of its own":               {2, live("a", "sqlite"), nil, "unshared", ownStore},
		"two configured on one file":                      {2, live("a", "sqlite"), []health.Replica{live("b", "sqlite")}, "", ""},
		"three configured, two on one file":               {3, live("a", "sqlite"), []health.Replica{live("b", "sqlite")}, "unshared", ownStore},
		"one of the two on the file is silent":            {2, live("a", "sqlite"), []health.Replica{{ID: "b"}}, "", ""},
		"more than configured on one file":                {1, live("a", "sqlite"), []health.Replica{live("b", "sqlite")}, "", ""},
		"a file beside one in redis":                      {1, live("a", "sqlite"), []health.Replica{live("b", "redis")}, "unshared", notRedis},
		"memory beside one in redis":                      {1, live("a", "memory"), []health.Replica{live("b", "redis")}, "unshared", notRedis},
		"one that is in redis itself":                     {2, live("a", "redis"), []health.Replica{live("b", "sqlite")}, "", ""},
		"fewer than configured in redis":                  {3, live("a", "redis"), nil, "", ""},
		"failing over from redis":                         {2, failingOver, nil, "", ""},
		"beside one that fails over from redis":           {1, live("b", "sqlite"), []health.Replica{failingOver}, "unshared", notRedis},
		"a file of its own that cannot even be used":      {2, inMemory, nil, "unshared", ownStore},
		"a shared file that this one cannot use just now": {2, inMemory, []health.Replica{live("b", "sqlite")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, test.replicas)
			f.Seen(test.own, append([]health.Replica{test.own}, test.others...))
			f.wantOwner("at once", health.Cold, test.class, test.reason, remedy...)
		})
	}
	t.Run("it clears by itself, and is stale when it comes back", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, 2)
		a, b := live("a", "sqlite"), live("b", "sqlite")
		f.Seen(a, []health.Replica{a})
		f.wantOwner("alone", health.Cold, "unshared", ownStore, "1 of them claim in this one's sqlite store")
		f.Seen(a, []health.Replica{a, b})
		f.wantOwner("with the other", "", "", "")
		f.Seen(a, []health.Replica{a})
		f.wantOwner("alone again", health.Stale, "unshared", ownStore)
	})
	t.Run("without any view the configuration alone tells", func(t *testing.T) {
		t.Parallel()
		for store, class := range map[string]string{"memory": "unshared", "sqlite": "", "redis": ""} {
			f := newFleet(t, 2)
			f.Alone(live("a", store))
			f.wantOwner(store, health.Cold, class, ownStore, remedy...)
			if got := f.Replicas(live("a", store)); len(got) != 1 || got[0].ID != "a" {
				t.Errorf("%s: Replicas = %v before the first view, want this one", store, got)
			}
		}
		f := newFleet(t, 1)
		f.Alone(live("a", "memory"))
		f.wantOwner("a single replica in memory", "", "", "")
	})
}

func TestARolloutIsQuiet(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	a, b, old := live("a", "redis"), live("b", "redis"), live("b", "redis", config("bbbb"))
	see := func(after time.Duration, other health.Replica) {
		f.now = f.now.Add(after)
		f.Seen(a, []health.Replica{other, a})
	}
	see(0, old)
	f.wantOwner("at once", "", "", "")
	see(10*time.Minute-time.Second, old)
	f.wantOwner("for less than 10 minutes", "", "", "")
	see(0, b)
	see(time.Second, old)
	f.wantOwner("after a break", "", "", "")
	see(10*time.Minute-time.Second, old)
	f.wantOwner("for less than 10 minutes since the break", "", "", "")
	see(time.Second, old)
	f.wantOwner("for 10 minutes", health.Stale, "config", configs, "restart", "configuration aaaa: a; configuration bbbb: b")
	see(time.Hour, b)
	f.wantOwner("alike again", "", "", "")
	for range 2 {
		see(time.Hour, health.Replica{ID: "b"})
		f.wantOwner("what cannot be read differs from nothing", "", "", "")
	}
}

func TestReplicasWithAnotherKeyFormat(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	a, next := live("a", "redis"), live("b", "redis", config("bbbb"), func(r *health.Replica) { r.KeyFormat, r.Version = 2, "v2" })
	for range 2 {
		f.Seen(a, []health.Replica{a, next})
		f.wantOwner("at once, and rather than another configuration", health.Cold, "key_format", formats, "b (version v2) writes format 2", "this replica writes format 1")
		f.now = f.now.Add(time.Hour)
	}
	onFile := live("a", "sqlite")
	f.Seen(onFile, []health.Replica{onFile, next})
	f.wantOwner("a store of its own is worse", health.Cold, "unshared", notRedis)
	f.Seen(a, []health.Replica{a, {ID: "b"}})
	f.wantOwner("with one that cannot be read", "", "", "")
}

func TestReplicasOnHealth(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	all := []health.Replica{live("b", "redis"), live("a", "redis")}
	f.Seen(all[1], all)
	if all[0].ID != "b" {
		t.Error("the caller's view was put into another order")
	}
	f.now = f.now.Add(1500 * time.Millisecond)
	h := f.health.Handler(func(r *http.Request) bool { return r.Header.Get("Authorization") != "" }, func() health.Report {
		return health.Report{Replica: "a", Replicas: f.Replicas(all[1])}
	})
	get := func(token string) string {
		req := httptest.NewRequest(http.MethodGet, "/health", nil)
		if token != "" {
			req.Header.Set("Authorization", token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w.Body.String()
	}
	var report struct {
		Replicas []struct {
			Replica, Store string
			Age            float64 `json:"age_seconds"`
		}
	}
	text := get("Bearer x")
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Replicas) != 2 || report.Replicas[0].Replica != "a" || report.Replicas[1].Replica != "b" ||
		report.Replicas[0].Store != "redis" || report.Replicas[0].Age != 0 || report.Replicas[1].Age != 1.5 {
		t.Errorf("/health with the token: %s, %v; want both in order, this one as it is now and the other seen 1.5 s ago", text, err)
	}
	if text := get(""); strings.Contains(text, "replicas") {
		t.Errorf("/health without the token tells %s", text)
	}
}

func TestReplicasBesideAnUnusedRedis(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	own, other, inRedis := live("b", "sqlite"), live("a", "sqlite"), live("c", "redis")
	f.Seen(own, []health.Replica{own})
	f.now = f.now.Add(time.Second)
	f.Beside(own, []health.Replica{inRedis, own, other})
	f.wantOwner("one claims in Redis", health.Stale, "unshared", notRedis)
	f.now = f.now.Add(time.Second)
	f.Beside(own, []health.Replica{own, other})
	f.wantOwner("one on a file of its own", health.Stale, "unshared", elsewhere)
	got := f.Replicas(own)
	if len(got) != 2 || got[0].ID != "a" || !got[0].Beside || got[0].Age != 0 || got[1].ID != "b" || got[1].Beside || got[1].Age != 0 {
		t.Errorf("Replicas = %+v, want the other beside and just seen, and this one as it is now", got)
	}
	one := newFleet(t, 1)
	one.Beside(own, []health.Replica{own})
	one.wantOwner("alone, before its file was looked at", "", "", "")
	two := newFleet(t, 2)
	two.Seen(own, []health.Replica{own})
	two.wantOwner("fewer on the file", health.Cold, "unshared", ownStore, "1 of them claim")
	two.Beside(own, []health.Replica{own, other})
	two.wantOwner("on files of their own", health.Cold, "unshared", elsewhere)
	two.now = two.now.Add(time.Second)
	two.Seen(own, []health.Replica{own, other})
	two.wantOwner("both on this file", "", "", "")
	late := other
	late.Started = two.now
	two.Seen(own, []health.Replica{own, live("d", "sqlite")})
	two.Beside(own, []health.Replica{own, late})
	two.wantOwner("one that started after the file was looked at", "", "", "")
}
