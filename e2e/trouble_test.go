package e2e

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/oncegate/oncegate/internal/redistest"
)

func TestB01RedisThatIsAwayAtTheStartIsNeverASilentGreen(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	redis.Stop()
	config := quickly(t, tg, socket(redis), "")
	a, b := start(t, config), start(t, quickly(t, tg, socket(redis), ""))
	for _, p := range []*process{a, b} {
		report := p.health(t)
		if len(report.Owners) != 1 || report.Status != "degraded" || report.Backends["idempotency"] != "sqlite" {
			t.Fatalf("/health before the first message = %+v, want the owner of the claims degraded", report)
		}
		o := report.Owners[0]
		if o.Kind != "gateway" || o.ID != "durability:idempotency" || o.State != "cold" || o.Class != "unreachable" ||
			o.Reason != "redis idempotency backend not available (running per-replica)" {
			t.Errorf("owner = %+v", o)
		}
	}
	if out, _, code := gateway(t, "", "doctor", "-c", config, "--url", a.url); code != 1 || !strings.Contains(out, "unreachable") {
		t.Errorf("doctor: exit %d, want 1:\n%s", code, out)
	}
	wantAnswer(t, a.post("count", "m", "{}"), 201, "new")
	redis.Restart()
	within(t, 10*time.Second, "both are on Redis without a restart", func() bool { return a.isHealthy(t) && b.isHealthy(t) })
	wantAnswer(t, b.post("count", "m", "{}"), 201, "processed")
	wantRuns(t, tg, 1)
}

func TestB59AServerThatRefusesScriptsIsNamedAndMessagesAreAnswered(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t, "--user", "gw", "on", ">pw", "~gateway:*", "+@all", "-@scripting"), newTarget(t)
	config := quickly(t, tg, "host: "+redis.Addr()+", username: gw, password: pw", "")
	p := start(t, config)
	wantAnswer(t, p.post("count", "m", "{}"), 201, "new")
	wantAnswer(t, p.post("count", "m", "{}"), 201, "processed")
	report := p.health(t)
	if report.Status != "degraded" || len(report.Owners) != 1 || report.Owners[0].ID != "redis:scripts" || report.Backends["idempotency"] != "redis" {
		t.Errorf("/health = %+v, want redis:scripts degraded, on redis", report)
	}
	if out, _, code := gateway(t, "", "doctor", "-c", config, "--url", p.url); code != 1 || !strings.Contains(out, "EVALSHA") {
		t.Errorf("doctor: exit %d, want 1 and EVALSHA named:\n%s", code, out)
	}
	if err := redis.Client().Do(t.Context(), "acl", "setuser", "gw", "+@scripting").Err(); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "it heals once they are allowed", func() bool { return p.isHealthy(t) })
}

// What a server says about itself is real; a stub would only repeat it.
func TestB54B71AServerThatRefusesWritesIsLeftAndComesBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		class   string
		on, off []any
	}{
		{"readonly", []any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}},
		{"oom", []any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}},
	} {
		t.Run(c.class, func(t *testing.T) {
			t.Parallel()
			redis, tg := redistest.Start(t), newTarget(t)
			p := start(t, quickly(t, tg, socket(redis), ""))
			wantAnswer(t, p.post("count", "before", "{}"), 201, "new")
			if err := redis.Client().Do(t.Context(), c.on...).Err(); err != nil {
				t.Fatal(err)
			}
			if err := redis.Client().Ping(t.Context()).Err(); err != nil {
				t.Fatalf("PING = %v, want it answered", err)
			}
			within(t, 5*time.Second, "its class is "+c.class, func() bool { return p.isDegraded(t, "stale", c.class) })
			wantAnswer(t, p.post("count", "during", "{}"), 201, "new")
			if err := redis.Client().Do(t.Context(), c.off...).Err(); err != nil {
				t.Fatal(err)
			}
			within(t, 5*time.Second, "it is back", func() bool { return p.isHealthy(t) })
			wantAnswer(t, p.post("count", "during", "{}"), 201, "processed")
		})
	}
}

func TestB40ACrashedProcessesClaimsOnSQLiteAreFreeAtOnce(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	tg.delay, tg.slow = time.Hour, 1
	config := writeConfig(t, config(tg.URL, sqliteStore))
	a, b := start(t, config), start(t, config)
	var wg sync.WaitGroup
	wg.Go(func() { a.post("count", "m", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	wantAnswer(t, b.post("count", "m", "{}"), 409, "in_flight")
	a.kill()
	wg.Wait()
	wantAnswer(t, b.post("count", "m", "{}"), 201, "new")
	wantRuns(t, tg, 2)
}

func TestB78TroubleWithTheFileWhileRunning(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	config := writeConfig(t, config(tg.URL, sqliteStore))
	p := start(t, config)
	file := filepath.Join(filepath.Dir(config), "state", "gateway.db")
	wantAnswer(t, p.post("count", "m", "{}"), 201, "new")
	other := filepath.Join(filepath.Dir(config), "other")
	junk := strings.Repeat("no database ", 400)
	if err := os.WriteFile(other, []byte(junk), 0o600); err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(filepath.Dir(config), "moved.db")
	for from, to := range map[string]string{file: moved} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(other, file); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "the file that was put there is called corrupt", func() bool { return p.isDegraded(t, "cold", "corrupt") })
	wantAnswer(t, p.post("count", "m", "{}"), 201, "processed")
	wantAnswer(t, p.post("count", "n", "{}"), 201, "new")
	if data, err := os.ReadFile(file); err != nil || string(data) != junk {
		t.Errorf("its bytes were changed (%v)", err)
	}
	if err := os.Rename(moved, file); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "the old file is used again", func() bool { return p.health(t).Status == "healthy" })
	for _, delivery := range []string{"m", "n"} {
		wantAnswer(t, p.post("count", delivery, "{}"), 201, "processed")
	}
	wantRuns(t, tg, 2)
}

func TestAFileThatAnotherProcessHasLockedHoldsNobodyUpForLong(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	config := writeConfig(t, config(tg.URL, sqliteStore))
	p := start(t, config)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(filepath.Dir(config), "state", "gateway.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			begun := time.Now()
			wantAnswer(t, p.post("count", fmt.Sprint("locked-", i), "{}"), 201, "new")
			if took := time.Since(begun); took > 4*time.Second {
				t.Errorf("message %d was answered after %s", i, took)
			}
		})
	}
	within(t, 4*time.Second, "the owner of the claims is degraded", func() bool { return p.health(t).Status == "degraded" })
	wg.Wait()
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the file serves again", func() bool { return p.health(t).Status == "healthy" })
	wantAnswer(t, p.post("count", "locked-0", "{}"), 201, "processed")
	wantRuns(t, tg, 5)
}

func TestB82TwoReplicasWithSQLiteEach(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	config := writeConfig(t, replaceOnce(t, config(tg.URL, sqliteStore), "port: 0", "port: 0\n  replicas: 2"))
	a := start(t, config)
	owner := func() string {
		for _, o := range a.health(t).Owners {
			if o.ID == "replicas" {
				return o.Class
			}
		}
		return ""
	}
	within(t, 10*time.Second, "the owner of the replicas is degraded", func() bool { return owner() == "unshared" })
	if out, _, code := gateway(t, "", "doctor", "-c", config, "--url", a.url); code != 1 || !strings.Contains(out, "store_backend: redis") {
		t.Errorf("doctor: exit %d, want 1 with the remedy:\n%s", code, out)
	}
	start(t, config) // on the same file
	within(t, 20*time.Second, "two on one file are what was asked for", func() bool { return owner() == "" })
}

func TestAReplicaOnSQLiteBesideOneOnRedisIsDegradedAtOnce(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	good := quickly(t, tg, socket(redis), "")
	a := start(t, good)
	odd := writeConfig(t, config(tg.URL, fmt.Sprintf(`
  push: {redis: {%s}}
hooks:
  idempotency: {store_backend: sqlite, takeover_after: %s}
`, socket(redis), takeoverAfter)))
	b := start(t, odd)
	within(t, takeoverAfter, "it is degraded", func() bool {
		for _, o := range b.health(t).Owners {
			if o.ID == "replicas" && o.Class == "unshared" && strings.Contains(o.Reason, "redis") {
				return true
			}
		}
		return false
	})
	within(t, takeoverAfter, "both list both", func() bool { return len(a.health(t).Replicas) == 2 && len(b.health(t).Replicas) == 2 })
	a.stop()
	within(t, 2*takeoverAfter, "alone it is as configured", func() bool { return b.health(t).Status == "healthy" })
}

func TestHealthListsEveryReplica(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	a, b := pair(t, tg, socket(redis), "")
	ids := func(p *process) string {
		var list []string
		for _, r := range p.health(t).Replicas {
			list = append(list, r.ID)
		}
		return strings.Join(list, " ")
	}
	one, two := a.health(t).Replica, b.health(t).Replica
	if one > two {
		one, two = two, one
	}
	within(t, 2*takeoverAfter, "both list both", func() bool { return ids(a) == one+" "+two && ids(b) == one+" "+two })
	self := b.health(t).Replica
	if code := a.stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	within(t, takeoverAfter/2, "one that stopped is gone before its heartbeat would run out", func() bool { return ids(b) == self })
}
