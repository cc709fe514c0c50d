package doctor_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
)

// fakeRedis is a server with the answers of a test.
type fakeRedis struct {
	ping, scripts, info, time, keys error
	turnLock, sessions              error
	class                           string
	fields                          map[string]string // instead of those of a server as it should be
	found                           []string
	skew                            time.Duration
	closed                          bool
}

func (f *fakeRedis) Ping(context.Context) error         { return f.ping }
func (f *fakeRedis) CheckScripts(context.Context) error { return f.scripts }

func (f *fakeRedis) CheckTurnLock(context.Context) error { return f.turnLock }

func (f *fakeRedis) CheckSessions(context.Context) error { return f.sessions }
func (f *fakeRedis) Class(error) string                  { return f.class }
func (f *fakeRedis) Close() error                        { f.closed = true; return nil }

func (f *fakeRedis) Info(context.Context) (map[string]string, error) {
	fields := map[string]string{"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction", "maxmemory": "1000", "aof_enabled": "1"}
	maps.Copy(fields, f.fields)
	return fields, f.info
}

func (f *fakeRedis) Time(context.Context) (time.Time, error) { return time.Now().Add(f.skew), f.time }

func (f *fakeRedis) Keys(context.Context, string, int) ([]string, error) { return f.found, f.keys }

// sighted is a replica that has just been seen.
func sighted(id, store string, edit ...func(*health.Sighting)) health.Sighting {
	s := health.Sighting{Replica: health.Replica{ID: id, Version: "v1", KeyFormat: 1, Config: "aaaa", Store: store, Seen: time.Now()}}
	for _, e := range edit {
		e(&s)
	}
	return s
}

const redisConfig = `
gateway: {push: {redis: {url: "redis://localhost:6379", prefix: "prod:"}}, turn_lock: {backend: redis}}
hooks: {idempotency: {store_backend: redis}}
`

// newDoctor returns a doctor on a file with text, a state directory inside
// dir, and backends that find nothing wrong.
func newDoctor(t *testing.T, text, dir string) *doctor.Doctor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &doctor.Doctor{
		Path: path,
		Env: func(name string) (string, bool) {
			if name == "STATE_DIRECTORY" {
				return filepath.Join(dir, "state"), true
			}
			return "", false
		},
		Now: time.Now,
		Backends: doctor.Backends{
			Health: func(_ context.Context, _ string, token secret.String) (health.Report, error) {
				return health.Report{
					Status: health.StatusHealthy, Replica: "r1", Version: "v1", Backends: map[string]string{"idempotency": "redis", "turn_lock": "redis", "sessions": "redis"},
					Replicas: []health.Sighting{sighted("r1", "redis")},
				}, nil
			},
			FileSystem: func(string) (string, error) { return "", nil },
			Database:   func(context.Context, string) (string, error) { return "", nil },
			Redis:      func(context.Context, redisconf.Config) (doctor.Redis, error) { return &fakeRedis{}, nil },
			Store: func(context.Context, config.Config) (idempotency.Store, error) {
				return idempotency.NewMemory(time.Now), nil
			},
		},
	}
}

func find(t *testing.T, checks []health.Check, id string) health.Check {
	t.Helper()
	for _, c := range checks {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("no check %q among %+v", id, checks)
	return health.Check{}
}

// unwritable returns a directory that this user may not write. Only a file
// system that nobody may write stops root.
func unwritable(t *testing.T) string {
	t.Helper()
	own := filepath.Join(t.TempDir(), "read-only")
	if err := os.Mkdir(own, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{own, "/proc/sys", "/sys"} {
		if unix.Access(dir, unix.W_OK) != nil {
			return dir
		}
	}
	t.Fatal("this user may write everywhere, so the check cannot be made to fail")
	return ""
}

func TestCheck(t *testing.T) {
	t.Parallel()

	t.Run("nothing wrong: every check is ok, the ids stand in their order", func(t *testing.T) {
		t.Parallel()
		checks := newDoctor(t, redisConfig, t.TempDir()).Check(t.Context())
		var ids []string
		for _, c := range checks {
			ids = append(ids, c.ID)
			if c.Status != health.CheckOK || c.Detail == "" || c.Source == "" || c.Hint != "" {
				t.Errorf("check %+v, want ok with detail and source and without a hint", c)
			}
		}
		if got := strings.Join(ids, " "); got != strings.Join(strings.Fields(mustReadText(t, "testdata/ids.txt")), " ") || doctor.Failed(checks, true) {
			t.Errorf("checks %s, failed %t", got, doctor.Failed(checks, true))
		}
		if d := find(t, checks, doctor.CheckRedis).Detail; !strings.Contains(d, `"prod:"`) {
			t.Errorf("redis: %s; want the prefix in it", d)
		}
	})

	t.Run("a configuration that does not load fails, the rest is skipped with the reason", func(t *testing.T) {
		t.Parallel()
		checks := newDoctor(t, "gatewya: {}\n", t.TempDir()).Check(t.Context())
		if c := checks[1]; c.ID != doctor.CheckConfig || c.Status != health.CheckFail || !strings.Contains(c.Detail, ":1: gatewya: ") || c.Hint == "" {
			t.Errorf("config check = %+v", c)
		}
		for _, c := range slices.Delete(slices.Clone(checks), 1, 2) {
			if c.Status != health.CheckSkipped || c.Detail == "" {
				t.Errorf("check %+v, want it skipped with its reason", c)
			}
		}
		if !doctor.Failed(checks, false) {
			t.Error("not failed")
		}
	})

	t.Run("without Redis in the configuration its checks are skipped", func(t *testing.T) {
		t.Parallel()
		checks := newDoctor(t, "", t.TempDir()).Check(t.Context())
		for _, id := range []string{doctor.CheckRedis, doctor.CheckRedisScripts} {
			if c := find(t, checks, id); c.Status != health.CheckSkipped || c.Detail != "gateway.push.redis is not configured" {
				t.Errorf("%+v", c)
			}
		}
	})

	t.Run("a Redis that refuses is named by class with its remedy", func(t *testing.T) {
		t.Parallel()
		for class, hint := range map[string]string{"auth": "password", "permission": "docs/operations.md", "tls": "ca_file", "unreachable": "address", "misconf": "repair the disk", "other": "look at the log of Redis"} {
			d := newDoctor(t, redisConfig, t.TempDir())
			server := &fakeRedis{ping: errors.New("the server's words"), class: class}
			d.Backends.Redis = func(context.Context, redisconf.Config) (doctor.Redis, error) { return server, nil }
			checks := d.Check(t.Context())
			c := find(t, checks, doctor.CheckRedis)
			if c.Status != health.CheckFail || c.Detail != class+": the server's words" || !strings.Contains(c.Hint, hint) {
				t.Errorf("%s: %+v", class, c)
			}
			if s := find(t, checks, doctor.CheckRedisScripts); s.Status != health.CheckSkipped || !server.closed {
				t.Errorf("%s: scripts %+v, connection closed %t", class, s, server.closed)
			}
		}
	})

	t.Run("B59 refused scripts fail, and EVALSHA is named", func(t *testing.T) {
		t.Parallel()
		d := newDoctor(t, redisConfig, t.TempDir())
		d.Backends.Redis = func(context.Context, redisconf.Config) (doctor.Redis, error) {
			return &fakeRedis{scripts: errors.New("NOPERM")}, nil
		}
		checks := d.Check(t.Context())
		if c := find(t, checks, doctor.CheckRedisScripts); c.Status != health.CheckFail || !strings.Contains(c.Detail, "EVALSHA") || !strings.Contains(c.Hint, "WATCH and MULTI") || !doctor.Failed(checks, false) {
			t.Errorf("%+v", c)
		}
	})

	t.Run("a state directory that is a file fails with the way out", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "state"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if c := find(t, newDoctor(t, "", dir).Check(t.Context()), doctor.CheckStateDir); c.Status != health.CheckFail || !strings.Contains(c.Detail, "is not a directory") || c.Hint == "" {
			t.Errorf("%+v", c)
		}
	})

	t.Run("a damaged database fails and is not touched", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		d := newDoctor(t, "", dir)
		path := filepath.Join(dir, "state", doctor.DatabaseName)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("junk"), 0o600); err != nil {
			t.Fatal(err)
		}
		d.Backends.Database = func(_ context.Context, got string) (string, error) {
			if got != path {
				t.Errorf("looked at %s, want %s", got, path)
			}
			return "corrupt", errors.New("is not a database")
		}
		if c := find(t, d.Check(t.Context()), doctor.CheckDatabase); c.Status != health.CheckFail || c.Detail != "corrupt: is not a database" || !strings.Contains(c.Hint, "move it away") {
			t.Errorf("%+v", c)
		}
		if kept, err := os.ReadFile(path); err != nil || string(kept) != "junk" {
			t.Errorf("the file holds %q, %v", kept, err)
		}
	})

	t.Run("only for a damaged database is the remedy to move it away", func(t *testing.T) {
		t.Parallel()
		for class, hint := range map[string]string{"locked": "end the process", "not_writable": "writable", "full": "free space", "io": "look at the disk", "unusable": "keep gateway.db"} {
			dir := t.TempDir()
			d := newDoctor(t, "", dir)
			if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "state", doctor.DatabaseName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			d.Backends.Database = func(context.Context, string) (string, error) { return class, errors.New("the driver's words") }
			c := find(t, d.Check(t.Context()), doctor.CheckDatabase)
			if c.Status != health.CheckFail || c.Detail != class+": the driver's words" || !strings.Contains(c.Hint, hint) || strings.Contains(c.Hint, "move") {
				t.Errorf("%s: %+v", class, c)
			}
		}
	})

	t.Run("a state directory that cannot be made fails and names what is in the way", func(t *testing.T) {
		t.Parallel()
		parent := unwritable(t)
		if c := find(t, newDoctor(t, "", filepath.Join(parent, "new")).Check(t.Context()), doctor.CheckStateDir); c.Status != health.CheckFail || !strings.Contains(c.Detail, parent+" cannot be written") || c.Hint == "" {
			t.Errorf("below a directory that cannot be written: %+v", c)
		}
		if c := find(t, newDoctor(t, "", os.DevNull).Check(t.Context()), doctor.CheckStateDir); c.Status != health.CheckFail || !strings.Contains(c.Detail, os.DevNull) || c.Hint == "" {
			t.Errorf("below a file: %+v", c)
		}
	})

	t.Run("looking makes no state directory", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if c := find(t, newDoctor(t, "", dir).Check(t.Context()), doctor.CheckStateDir); c.Status != health.CheckOK || !strings.Contains(c.Detail, "does not exist yet") {
			t.Errorf("%+v", c)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("doctor left %v, %v", entries, err)
		}
	})
}

// generous lets two owners win every key: the fault that Prove looks for.
type generous struct {
	idempotency.Store
	reserves atomic.Int32
}

func (g *generous) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	if g.reserves.Add(1)%8 == 0 {
		return req.Won(key, "generous", time.Now()), nil
	}
	return g.Store.Reserve(ctx, key, req)
}

// counted counts the claims of each key.
type counted struct {
	idempotency.Store
	mu     sync.Mutex
	claims map[idempotency.Key]int
}

func (c *counted) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	c.mu.Lock()
	c.claims[key]++
	c.mu.Unlock()
	return c.Store.Reserve(ctx, key, req)
}

func TestProve(t *testing.T) {
	t.Parallel()
	silent := func(int, int) {}

	t.Run("one winner per round", func(t *testing.T) {
		t.Parallel()
		d := newDoctor(t, "", t.TempDir())
		store := &counted{Store: idempotency.NewMemory(time.Now), claims: make(map[idempotency.Key]int)}
		d.Backends.Store = func(context.Context, config.Config) (idempotency.Store, error) { return store, nil }
		var rounds []int
		c := d.Prove(t.Context(), 50, func(done, total int) {
			if total != 10 {
				t.Errorf("progress of %d rounds, want 10", total)
			}
			rounds = append(rounds, done)
		})
		if c.Status != health.CheckOK || c.Detail != "10 rounds of 50 claims at once by 1 replica: one winner per round" || c.Hint != "" {
			t.Errorf("%+v", c)
		}
		if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(rounds, want) {
			t.Errorf("progress told %v, want %v", rounds, want)
		}
		if len(store.claims) != 10 {
			t.Errorf("%d keys, want a new one in each of 10 rounds", len(store.claims))
		}
		for key, n := range store.claims {
			if n != 50 {
				t.Errorf("%d claims of %s, want 50", n, key)
			}
		}
	})

	t.Run("a claim that the store cannot answer fails with the store's words", func(t *testing.T) {
		t.Parallel()
		d := newDoctor(t, "", t.TempDir())
		d.Backends.Store = func(context.Context, config.Config) (idempotency.Store, error) {
			store := &idempotencytest.Faulty{Store: idempotency.NewMemory(time.Now)}
			store.Fail(errors.New("OOM command not allowed"))
			return store, nil
		}
		if c := d.Prove(t.Context(), 4, silent); c.Status != health.CheckFail || c.Detail != "round 1 of 10: OOM command not allowed" || c.Hint == "" {
			t.Errorf("%+v", c)
		}
	})

	t.Run("a store with two winners fails", func(t *testing.T) {
		t.Parallel()
		d := newDoctor(t, "", t.TempDir())
		d.Backends.Store = func(context.Context, config.Config) (idempotency.Store, error) {
			return &generous{Store: idempotency.NewMemory(time.Now)}, nil
		}
		if c := d.Prove(t.Context(), 10, silent); c.Status != health.CheckFail || !strings.Contains(c.Detail, "did not have exactly one winner") {
			t.Errorf("%+v", c)
		}
	})

	t.Run("a store that does not open fails with its reason", func(t *testing.T) {
		t.Parallel()
		d := newDoctor(t, "", t.TempDir())
		d.Backends.Store = func(context.Context, config.Config) (idempotency.Store, error) { return nil, errors.New("locked") }
		if c := d.Prove(t.Context(), 10, silent); c.Status != health.CheckFail || c.Detail != "locked" {
			t.Errorf("%+v", c)
		}
	})
}

func TestText(t *testing.T) {
	t.Parallel()
	got := doctor.Text([]health.Check{
		{ID: "config", Status: health.CheckOK, Detail: "valid"},
		{ID: "redis", Status: health.CheckFail, Detail: "unreachable", Hint: "start Redis"},
		{ID: "redis_role", Status: health.CheckSkipped, Detail: "Redis cannot be used"},
		{ID: "redis_clock", Status: health.CheckSkipped, Detail: "Redis cannot be used"},
		{ID: "prove", Status: health.CheckSkipped, Detail: "another reason"},
	})
	want := "ok       config            valid\nfail     redis             unreachable\n                           → start Redis\n" +
		"skipped  2 checks          Redis cannot be used: redis_role, redis_clock\nskipped  prove             another reason\n"
	if got != want {
		t.Errorf("Text = %q, want %q", got, want)
	}
}

func mustReadText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
