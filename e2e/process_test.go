package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/redistest"
)

func TestServeStopsGracefully(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	tg.delay = time.Second
	p := start(t, writeConfig(t, config(tg.URL, sqliteStore)))
	var got answer
	var wg sync.WaitGroup
	wg.Go(func() { got = p.post("count", "delivery-1", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	wg.Wait()
	if got.status != 201 {
		t.Errorf("the delivery under way got %s, want its answer", got)
	}
}

func TestServeReleasesWhatTheDrainCannotFinish(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay = time.Hour
	text := config(tg.URL, redisStore(redis.Addr(), "gateway:"))
	a := start(t, writeConfig(t, replaceOnce(t, text, "port: 0", "port: 0\n  drain_timeout: 200ms")))
	b := start(t, writeConfig(t, text))
	var got answer
	var wg sync.WaitGroup
	wg.Go(func() { got = a.post("count", "delivery-1", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	if code := a.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	wg.Wait()
	if got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("the stopped delivery got %s, want 503 with Retry-After", got)
	}
	wg.Go(func() { b.post("count", "delivery-1", "{}") })
	eventually(t, "the other replica runs it at once", func() bool { return tg.runs.Load() == 2 })
	b.kill()
	wg.Wait()
}

func TestRedisMissingAtStartIsServedLocallyAndSaidSo(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	missing := filepath.Join(t.TempDir(), "no-redis.sock")
	cfg := writeConfig(t, config(tg.URL, redisStore(missing, "gateway:")))
	p := start(t, cfg)
	report := p.health(t)
	if len(report.Owners) != 1 || report.Status != "degraded" || report.Backends["idempotency"] != "sqlite" {
		t.Fatalf("/health before the first message = %+v", report)
	}
	owner := report.Owners[0]
	if owner.ID != "durability:idempotency" || owner.State != "cold" || owner.Reason != "redis idempotency backend not available (running per-replica)" || owner.Class != "unreachable" {
		t.Errorf("owner = %+v", owner)
	}
	for range 2 {
		p.mustPost(t, "count", "delivery-1", "{}")
	}
	if n := tg.runs.Load(); n != 1 {
		t.Errorf("%d runs on one replica without Redis, want 1", n)
	}
	out, _, code := gateway(t, "", "doctor", "-c", cfg, "--json")
	if code != 1 || checkOf(t, out, "redis").Status != "fail" {
		t.Errorf("doctor exits with %d and %s, want 1 and a failed redis check", code, out)
	}
}

func TestRedisLostAndBackWithoutRestart(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	p := start(t, writeConfig(t, config(tg.URL, redisStore(redis.Addr(), "gateway:"))))
	if report := p.health(t); report.Status != "healthy" || report.Backends["idempotency"] != "redis" {
		t.Fatalf("/health = %+v", report)
	}
	redis.Stop()
	p.mustPost(t, "count", "during", "{}")
	report := p.health(t)
	if len(report.Owners) != 1 || report.Owners[0].State != "stale" ||
		report.Owners[0].Reason != "redis idempotency backend unreachable at runtime (dedup best-effort until it recovers)" {
		t.Errorf("/health during the outage = %+v", report)
	}
	redis.Restart()
	eventually(t, "health is green again", func() bool { return p.health(t).Status == "healthy" })
	if got := p.mustPost(t, "count", "during", "{}"); got.idempotency() != "processed" {
		t.Errorf("a message answered during the outage got %s after it, want processed", got)
	}
	if n := tg.runs.Load(); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
}

// check is one check of `doctor --json`.
type check struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
	Source string `json:"source"`
}

func checkOf(t *testing.T, out, id string) check {
	t.Helper()
	var report struct {
		Checks []check `json:"checks"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("doctor --json printed %q: %v", out, err)
	}
	for _, c := range report.Checks {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("no check %q in %s", id, out)
	return check{}
}

func TestDoctorProvesOneWinnerPerRound(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	for name, store := range map[string]string{"redis": redisStore(redis.Addr(), "gateway:"), "sqlite": sqliteStore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, stderr, code := gateway(t, "", "doctor", "-c", writeConfig(t, config("http://127.0.0.1:1", store)), "--json", "--prove", "200")
			if c := checkOf(t, out, "prove"); code != 0 || c.Status != "ok" || c.Detail != "10 rounds of 200 claims at once by 1 replica: one winner per round" {
				t.Errorf("exit %d, %+v\n%s", code, c, stderr)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "gateway.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	port := taken.Addr().(*net.TCPAddr).Port
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"help", []string{"--help"}, 0, ""},
		{"unknown command", []string{"sreve"}, 2, "unknown command"},
		{"unknown flag", []string{"serve", "--prot", "1"}, 2, "unknown flag"},
		{"nothing to race", []string{"doctor", "--prove", "1"}, 2, "at least 2 claims"},
		{"port in use", []string{"serve", "-c", write(fmt.Sprintf("gateway: {port: %d}\n", port))}, 1, fmt.Sprintf("127.0.0.1:%d", port)},
		{"bad configuration", []string{"serve", "-c", write("gatewya: {}\n")}, 78, "gateway.yaml:1: gatewya: "},
		{"missing file", []string{"config", "check", "-c", "absent.yaml"}, 78, "absent.yaml: does not exist"},
		{"open to the world", []string{"serve", "-c", write("gateway: {host: 0.0.0.0}\n")}, 78, "auth_token"},
		{"doctor on a bad configuration", []string{"doctor", "-c", write("gatewya: {}\n")}, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, stderr, code := gateway(t, "", c.args...)
			if code != c.code || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit %d, want %d; stderr %q, want it to hold %q; stdout %q", code, c.code, stderr, c.stderr, out)
			}
		})
	}
}

func TestHooksSendSignsAndSeesTheDuplicate(t *testing.T) {
	t.Parallel()
	cfg := writeConfig(t, config("http://127.0.0.1:1", sqliteStore))
	p := start(t, cfg)
	body := bodies(t)["github-redelivery"]
	for _, want := range []string{"new", "processed"} {
		out, stderr, code := gateway(t, body, "hooks", "send", "github", "-c", cfg, "--url", p.url, "--body", "-", "-H", "X-GitHub-Delivery: d-1", "--json")
		if code != 0 || !strings.Contains(out, fmt.Sprintf(`"idempotency_status": %q`, want)) || !strings.Contains(out, "@gw please triage") {
			t.Errorf("exit %d, want status %s: %s%s", code, want, out, stderr)
		}
	}
	_, stderr, code := gateway(t, "", "hooks", "send", "nothere", "-c", cfg, "--url", p.url)
	if code != 1 || !strings.Contains(stderr, "github, repository, count") {
		t.Errorf("an unknown hook: exit %d, %s", code, stderr)
	}
}
