package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/redistest"
)

// behindProxy starts a gateway whose Redis is reached through a proxy.
func behindProxy(t *testing.T, tg *target, policy, budget string) (*process, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	store := fmt.Sprintf(`
  push: {redis: {url: "redis://%s"}}
hooks:
  idempotency: {store_backend: redis, claim_timeout: %s, on_unavailable: %s}
`, proxy.Addr(), budget, policy)
	return start(t, writeConfig(t, config(tg.URL, store))), proxy
}

func TestB31ALostAnswerToAClaimIsAWinNotADuplicate(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	p, proxy := behindProxy(t, tg, "closed", "5s")
	proxy.CutReply("hookidem:hook::count:")
	if got := p.post("count", "delivery-1", "{}"); got.status != 201 || got.idempotency() != "new" {
		t.Errorf("got %s, want the message to run", got)
	}
	if n := tg.runs.Load(); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
	if report := p.health(t); report.Status != "healthy" {
		t.Errorf("/health = %+v, want it healthy: the client got over it by itself", report)
	}
}

func TestB65AClaimKeepsItsBudgetWhateverRedisTakes(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	p, proxy := behindProxy(t, tg, "open", "300ms")
	proxy.Delay(20 * time.Second)
	start := time.Now()
	got := p.post("count", "delivery-1", "{}")
	if took := time.Since(start); got.status != 201 || took > 5*time.Second {
		t.Errorf("got %s after %s, want it answered by the local store long before Redis", got, took)
	}
	if report := p.health(t); report.Backends["idempotency"] != "sqlite" || len(report.Owners) != 1 {
		t.Errorf("/health = %+v, want it degraded", report)
	}
}

func TestClosedRefusesWhileRedisIsAwayAndLosesNothing(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	p, proxy := behindProxy(t, tg, "closed", "300ms")
	proxy.Freeze(true)
	got := p.post("count", "delivery-1", "{}")
	if got.status != 503 || got.body != `{"ok":false,"error":"IDEMPOTENCY_UNAVAILABLE"}` || got.header.Get("Retry-After") == "" {
		t.Errorf("got %s, want 503 IDEMPOTENCY_UNAVAILABLE with Retry-After", got)
	}
	if report := p.health(t); report.Status != "degraded" || report.Backends["idempotency"] != "none" {
		t.Errorf("/health = %+v", report)
	}
	proxy.Freeze(false)
	eventually(t, "the sender's retry runs", func() bool { return p.post("count", "delivery-1", "{}").status == 201 })
	if n := tg.runs.Load(); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
}

func TestB36AClientThatHangsUpStopsNothing(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	tg.delay = time.Second
	p := start(t, writeConfig(t, config(tg.URL, sqliteStore)))
	p.postAndHangUp(t, "count", "delivery-1", 50*time.Millisecond)
	if got := p.mustPost(t, "count", "delivery-1", "{}"); got.idempotency() != "processed" || got.status != 201 {
		t.Errorf("the retry got %s, want the first run's answer", got)
	}
	if n := tg.runs.Load(); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
}

func TestB28ACrashDuringARunFreesTheMessageWithTheLease(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay = time.Hour
	text := config(tg.URL, redisStore(redis.Addr(), "gateway:"))
	short := writeConfig(t, replaceOnce(t, text, "store_backend: redis", "store_backend: redis, lease: 2s"))
	a, b := start(t, short), start(t, short)
	var wg sync.WaitGroup
	wg.Go(func() { a.post("count", "delivery-1", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	time.Sleep(3 * time.Second) // longer than the lease: a running claim is renewed
	if got := b.post("count", "delivery-1", "{}"); got.status != 409 || got.header.Get("Retry-After") == "" {
		t.Errorf("during the run the other replica answers %s, want 409 with Retry-After", got)
	}
	a.kill()
	wg.Wait()
	keys, err := redis.Client().Keys(t.Context(), "gateway:hookidem:hook:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	if left, err := redis.Client().PTTL(t.Context(), keys[0]).Result(); err != nil || left > 2*time.Second {
		t.Errorf("the claim lives %s, %v; want at most its lease of 2s", left, err)
	}
	wg.Go(func() {
		for tg.runs.Load() < 2 {
			b.post("count", "delivery-1", "{}")
		}
	})
	eventually(t, "the other replica runs it", func() bool { return tg.runs.Load() == 2 })
	b.kill()
	wg.Wait()
}
