package doctor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
)

// report is what the replica with the first id tells.
func report(replicas ...health.Sighting) health.Report {
	return health.Report{Status: health.StatusHealthy, Replica: replicas[0].ID, Version: "v1", Replicas: replicas, Backends: map[string]string{"idempotency": replicas[0].Store}}
}

// diagnose returns the checks of a file when the gateways at http://0,
// http://1 and so on give the reports; without any nobody answers.
func diagnose(t *testing.T, text string, reports ...health.Report) []health.Check {
	t.Helper()
	d := newDoctor(t, text, t.TempDir())
	if len(reports) > 1 {
		d.URLs = []string{"http://0", "http://1"}
	}
	d.Backends.Health = func(_ context.Context, url string, _ secret.String) (health.Report, error) {
		switch {
		case len(reports) == 0:
			return health.Report{}, errors.New("connection refused")
		case url == "http://1":
			return reports[1], nil
		}
		return reports[0], nil
	}
	return d.Check(t.Context())
}

// sharing is a configuration of so many replicas.
func sharing(replicas, store string) string {
	return "gateway: {replicas: " + replicas + ", push: {redis: {host: h}}}\nhooks: {idempotency: {store_backend: " + store + "}}\n"
}

func version(v, config string) func(*health.Sighting) {
	return func(s *health.Sighting) { s.Version, s.Config = v, config }
}

func TestReplicasCheck(t *testing.T) {
	t.Parallel()
	a, b := sighted("a", "redis"), sighted("b", "redis")
	fileA, fileB := sighted("a", "sqlite"), sighted("b", "sqlite")
	silent := health.Sighting{Replica: health.Replica{ID: "b"}}
	old := func(s *health.Sighting) { s.Age = 31 }
	beside := func(s *health.Sighting) { s.Beside = true }
	for _, test := range []struct {
		name, replicas, store string
		reports               []health.Report
		want                  finding
	}{
		{"B82 two in memory", "2", "memory", nil, finding{"fail", "each of them claims for itself"}},
		{"B82 two on a file, none running", "2", "sqlite", nil, finding{"fail", "no running gateway tells that so many use the file"}},
		{"B82 two on a file, one there", "2", "sqlite", []health.Report{report(fileA)}, finding{"fail", "sees 1 replica on its file, gateway.replicas says 2"}},
		{"two on a file, the running gateway on Redis", "2", "sqlite", []health.Report{report(a, b)}, finding{"fail", "no running gateway tells"}},
		{"two on a file, both there", "2", "sqlite", []health.Report{report(fileA, fileB)}, finding{"ok", "sees 2 live replicas, as configured"}},
		{"two on a file, one of them silent", "2", "sqlite", []health.Report{report(fileA, silent)}, finding{"ok", "sees 2 live replicas, as configured"}},
		{"B82 two on files of their own beside one unused Redis", "2", "sqlite", []health.Report{report(fileA, sighted("b", "sqlite", beside))}, finding{"fail", "sees 1 replica on its file"}},
		{"one on a file, none running", "1", "sqlite", nil, finding{"skipped", "no running gateway tells"}},
		{"one in memory, none running", "1", "memory", nil, finding{"skipped", "no running gateway tells"}},
		{"one on a file", "1", "sqlite", []health.Report{report(fileA)}, finding{"ok", "sees 1 live replica, as configured"}},
		{"two in Redis, none running", "2", "redis", nil, finding{"skipped", "no running gateway tells"}},
		{"B130 two in Redis", "2", "redis", []health.Report{report(a, b)}, finding{"ok", "http://127.0.0.1:8765 sees 2 live replicas, as configured"}},
		{"two in Redis, one there", "2", "redis", []health.Report{report(a)}, finding{"warn", "sees 1 live replica, gateway.replicas says 2"}},
		{"one in Redis, two there", "1", "redis", []health.Report{report(a, b)}, finding{"ok", "sees 2 live replicas; with gateway.replicas: 2"}},
		{"Redis long away", "2", "redis", []health.Report{report(sighted("a", "redis", old), sighted("b", "redis", old))}, finding{"skipped", "no running gateway tells"}},
		{"a gateway that does not know the token", "2", "redis", []health.Report{{Status: health.StatusHealthy}}, finding{"skipped", "no running gateway tells"}},
		{"two configurations", "2", "redis", []health.Report{report(a, sighted("b", "redis", version("v1", "bbbb")))}, finding{"warn", "different configurations: aaaa: a; bbbb: b"}},
		{"a rollout", "2", "redis", []health.Report{report(a, sighted("b", "redis", version("v2", "bbbb")))}, finding{"ok", "several versions run: v1: a; v2: b"}},
		{"B130 both asked", "2", "redis", []health.Report{report(a, b), report(b, a)}, finding{"ok", "http://1 sees 2 live replicas, as configured"}},
		{"both asked, of two Redis servers", "1", "redis", []health.Report{report(a), report(b)}, finding{"fail", "http://0 does not see the replica b of http://1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := find(t, diagnose(t, sharing(test.replicas, test.store), test.reports...), doctor.CheckReplicas)
			wantFinding(t, c, test.want)
			if !strings.Contains(c.Source, "gateway.yaml") || test.want.status == "ok" && !strings.Contains(c.Source, "http://") {
				t.Errorf("the source is %q, want the file and who was asked", c.Source)
			}
			if test.want.status == "fail" && (!strings.Contains(c.Hint, "store_backend: redis") || !strings.Contains(c.Hint, "gateway.push.redis")) {
				t.Errorf("the hint %q does not name Redis as the remedy", c.Hint)
			}
		})
	}
}

func TestClocksCheck(t *testing.T) {
	t.Parallel()
	seen := func(ago time.Duration) func(*health.Sighting) {
		return func(s *health.Sighting) { s.Seen = s.Seen.Add(-ago) }
	}
	aged := func(s *health.Sighting) { s.Age, s.Seen = 20, s.Seen.Add(-20*time.Second) }
	a := sighted("a", "redis")
	for _, test := range []struct {
		name   string
		report health.Report
		want   finding
	}{
		{"alike", report(a, sighted("b", "redis", seen(8*time.Second))), finding{"ok", "agree within 5s"}},
		{"a view that is 20 s old", report(sighted("a", "redis", aged), sighted("b", "redis", aged)), finding{"ok", "agree within 5s"}},
		{"a heartbeat that nobody can read", report(a, health.Sighting{Replica: health.Replica{ID: "b"}}), finding{"ok", "agree within 5s"}},
		{"B101 one that is ahead", report(a, sighted("b", "redis", seen(-10*time.Minute))), finding{"warn", "the clock of replica b is 10m0s ahead of that of replica a"}},
		{"B101 one that is behind", report(a, sighted("b", "redis", seen(10*time.Minute))), finding{"warn", "the last heartbeat of replica b was 10m0s old"}},
		{"the gateway's own clock behind this machine's", report(sighted("a", "redis", seen(time.Hour))), finding{"warn", "the clock of replica a is 1h0m0s behind this machine's"}},
		{"the gateway's own clock ahead", report(sighted("a", "redis", seen(-time.Hour))), finding{"warn", "the clock of replica a is 1h0m0s ahead of this machine's"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wantFinding(t, find(t, diagnose(t, sharing("1", "redis"), test.report), doctor.CheckClocks), test.want)
		})
	}
	wantFinding(t, find(t, diagnose(t, sharing("1", "redis")), doctor.CheckClocks), finding{"skipped", "no running gateway tells of heartbeats"})
}

func TestFailoverCheck(t *testing.T) {
	t.Parallel()
	waiting := func(s *health.Sighting) { s.Unsettled = 3 }
	closed := strings.Replace(sharing("1", "redis"), "redis}}", "redis, on_unavailable: closed}}", 1)
	for _, test := range []struct {
		name, text string
		reports    []health.Report
		want       finding
	}{
		{"open", sharing("1", "redis"), nil, finding{"ok", "is open for every hook: while Redis is away each replica claims in its own gateway.db"}},
		{"closed", closed, nil, finding{"ok", "is closed for every hook: while Redis is away their messages get 503"}},
		{"closed for one hook", "agents: {a: }\n" + strings.Replace(sharing("1", "redis"), "redis}}", "redis}, hooks: [{path: x}, {path: y, on_unavailable: closed}]}", 1), nil, finding{"ok", "is closed for hooks y: while Redis is away their messages get 503\non_unavailable is open for hooks x: "}},
		{"open for one hook", "agents: {a: }\n" + strings.Replace(closed, "closed}}", "closed}, hooks: [{path: x}, {path: y, on_unavailable: open}]}", 1), nil, finding{"ok", "is open for hooks y: "}},
		{"without Redis", sharing("1", "sqlite"), nil, finding{"skipped", "claims are not in Redis: store_backend is sqlite"}},
		{"unsettled messages", sharing("1", "redis"), []health.Report{report(sighted("a", "redis"), sighted("b", "redis", waiting))}, finding{"warn", "replica b has 3 messages of an outage that Redis lacks"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wantFinding(t, find(t, diagnose(t, test.text, test.reports...), doctor.CheckFailover), test.want)
		})
	}
	t.Run("a local file that cannot be used matters only where it would serve", func(t *testing.T) {
		t.Parallel()
		for text, want := range map[string]finding{
			sharing("1", "redis"): {"warn", "that file cannot be used"},
			closed:                {"ok", "get 503"},
		} {
			dir := t.TempDir()
			d := newDoctor(t, text, dir)
			if err := os.WriteFile(filepath.Join(dir, "state"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckFailover), want)
		}
	})
}

func TestAPlainClientOnACluster(t *testing.T) {
	t.Parallel()
	for _, words := range []string{"MOVED 3999 10.9.8.7:6381", "CROSSSLOT Keys in request don't hash to the same slot"} {
		d := newDoctor(t, redisConfig, t.TempDir())
		d.Backends.Redis = func(context.Context, redisconf.Config) (doctor.Redis, error) {
			return &fakeRedis{ping: errors.New(words), class: "other"}, nil
		}
		c := find(t, d.Check(t.Context()), doctor.CheckRedis)
		wantFinding(t, c, finding{"fail", "is a node of a cluster"})
		if !strings.Contains(c.Hint, "gateway.push.redis.cluster") || strings.Contains(c.Detail, "10.9.8.7") {
			t.Errorf("%+v, want the key that names a cluster, and no node", c)
		}
	}
}

func TestAClusterIsNoReplica(t *testing.T) {
	t.Parallel()
	d := newDoctor(t, "gateway: {push: {redis: {cluster: {addrs: ['h:1']}, prefix: '{a}:'}}}\nhooks: {idempotency: {store_backend: redis}}\n", t.TempDir())
	d.Backends.Redis = func(context.Context, redisconf.Config) (doctor.Redis, error) {
		return &fakeRedis{fields: map[string]string{"cluster_enabled": "1", "role": "slave"}}, nil // the node that happens to answer
	}
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckRedisRole), finding{"ok", "is a cluster"})
}
