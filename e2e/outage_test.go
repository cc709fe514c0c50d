package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redistest"
)

// takeoverAfter is that of the gateways here: the shortest there is.
const takeoverAfter = 3 * time.Second

// quickly is a gateway on Redis that takes over as early as it may. where names
// the server, as in gateway.push.redis; more goes into hooks.idempotency.
func quickly(t *testing.T, tg *target, where, more string) string {
	t.Helper()
	return writeConfig(t, config(tg.URL, fmt.Sprintf(`
  push: {redis: {%s}}
hooks:
  idempotency: {store_backend: redis, takeover_after: %s%s}
`, where, takeoverAfter, more)))
}

func socket(r *redistest.Server) string { return "url: 'unix://" + r.Addr() + "'" }

// pair starts two replicas, each with a state directory of its own.
func pair(t *testing.T, tg *target, where, more string) (a, b *process) {
	t.Helper()
	return start(t, quickly(t, tg, where, more)), start(t, quickly(t, tg, where, more))
}

func (p *process) isHealthy(t *testing.T) bool {
	r := p.health(t)
	return r.Status == "healthy" && r.Backends["idempotency"] == "redis"
}

func (p *process) isDegraded(t *testing.T, state, class string) bool {
	for _, o := range p.health(t).Owners {
		if o.ID == "durability:idempotency" {
			return o.State == state && o.Class == class
		}
	}
	return false
}

// within waits for at most d.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

func wantRuns(t *testing.T, tg *target, want int64) {
	t.Helper()
	if n := tg.runs.Load(); n != want {
		t.Errorf("%d runs, want %d", n, want)
	}
}

func wantAnswer(t *testing.T, got answer, status int, idempotency string) {
	t.Helper()
	if got.status != status || got.idempotency() != idempotency {
		t.Errorf("got %s, want %d %s", got, status, idempotency)
	}
}

func TestB64B67FrozenRedis(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	a, b := pair(t, tg, socket(redis), "")
	took := func(p *process, delivery string) time.Duration {
		begun := time.Now()
		if got := p.post("github", delivery, `{"comment":{"body":"hi"}}`); got.status != 200 {
			t.Errorf("%s: got %s", delivery, got)
		}
		return time.Since(begun)
	}
	wantAnswer(t, a.post("count", "before", "{}"), 201, "new")

	redis.Pause()
	for i := range 20 {
		if d := took(a, fmt.Sprint("frozen-", i)); d > time.Second {
			t.Errorf("message %d was answered after %s, want less than 1s", i, d)
		}
	}
	if !a.isDegraded(t, "stale", "unreachable") {
		t.Errorf("/health = %+v", a.health(t))
	}
	wantAnswer(t, a.post("count", "before", "{}"), 201, "processed")
	wantAnswer(t, a.post("count", "m-1", "{}"), 201, "new")
	wantAnswer(t, a.post("count", "m-1", "{}"), 201, "processed")

	redis.Resume()
	within(t, 5*time.Second, "both are back on Redis and healthy", func() bool { return a.isHealthy(t) && b.isHealthy(t) })
	wantAnswer(t, b.post("count", "m-1", "{}"), 201, "processed")
	wantAnswer(t, b.post("github", "frozen-7", `{"comment":{"body":"hi"}}`), 200, "processed")
	wantRuns(t, tg, 2)
}

func TestAnOutageAddsNothingToAClaim(t *testing.T) {
	redis, tg := redistest.Start(t), newTarget(t)
	local := start(t, writeConfig(t, config(tg.URL, sqliteStore)))
	away := start(t, quickly(t, tg, socket(redis), ""))
	redis.Pause()
	for away.health(t).Backends["idempotency"] == "redis" {
		away.post("github", "first", `{"comment":{"body":"hi"}}`)
	}
	// A machine that is busy with something else for a moment adds more than the
	// outage; the outage adds what it adds in each round.
	var added time.Duration
	for round := range 3 {
		if added = addedByOutage(t, local, away, round); added <= 2*time.Millisecond {
			return
		}
	}
	t.Errorf("the outage adds %s to a claim at p99, want 2ms at most", added)
}

// addedByOutage does the same work in the same store, once because it is
// configured and once because Redis is away, in turn.
func addedByOutage(t *testing.T, local, away *process, round int) time.Duration {
	const n = 400
	var configured, failing []time.Duration
	for i := range n {
		delivery := fmt.Sprint(round, "-", i)
		configured = append(configured, claimTime(t, local, delivery))
		failing = append(failing, claimTime(t, away, delivery))
	}
	slices.Sort(configured)
	slices.Sort(failing)
	p99 := n * 99 / 100
	t.Logf("p50 %s and %s, p99 %s and %s", configured[n/2], failing[n/2], configured[p99], failing[p99])
	return failing[p99] - configured[p99]
}

func claimTime(t *testing.T, p *process, delivery string) time.Duration {
	begun := time.Now()
	if got := p.post("github", delivery, `{"comment":{"body":"hi"}}`); got.status != 200 {
		t.Errorf("%s: got %s", delivery, got)
	}
	return time.Since(begun)
}

func TestRedisRestarted(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"empty": nil, "with its append-only file": {"--appendonly", "yes", "--appendfsync", "always"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis, tg := redistest.Start(t, args...), newTarget(t)
			a, b := pair(t, tg, socket(redis), "")
			wantAnswer(t, a.post("count", "before", "{}"), 201, "new")
			redis.Stop()
			wantAnswer(t, a.post("count", "during", "{}"), 201, "new")
			redis.Restart()
			within(t, 10*time.Second, "both are back on Redis and healthy", func() bool { return a.isHealthy(t) && b.isHealthy(t) })
			for _, delivery := range []string{"before", "during"} {
				wantAnswer(t, b.post("count", delivery, "{}"), 201, "processed")
			}
			wantRuns(t, tg, 2)
		})
	}
}

func TestARunGoesOnWhileRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay, tg.slow = 4*time.Second, 1
	a, b := pair(t, tg, socket(redis), "")
	var wg sync.WaitGroup
	wg.Go(func() { wantAnswer(t, a.post("count", "m", "{}"), 201, "new") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	redis.Restart()
	within(t, 3*time.Second, "its owner brings the claim back", func() bool { return claimLife(t, redis, "m") > 0 })
	if got := b.post("count", "m", "{}"); got.status != 409 && got.idempotency() != "processed" {
		t.Errorf("the other replica answers %s while the message runs", got)
	}
	wg.Wait()
	wantAnswer(t, b.post("count", "m", "{}"), 201, "processed")
	wantRuns(t, tg, 1)
}

func TestAResetAfterTheClaimWasForwardedLosesNothing(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	p := start(t, quickly(t, tg, "url: redis://"+proxy.Addr(), ", on_unavailable: closed"))
	for i := range 20 {
		id := fmt.Sprint("delivery-", i)
		proxy.CutReplies(1 + i%4) // whichever command of the claim comes first
		begun := time.Now()
		within(t, 5*time.Second, id+" runs, at the sender's second try at the latest", func() bool {
			return p.post("count", id, "{}").status == 201
		})
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("%s took %s, want no wait for a lease", id, took)
		}
	}
	tg.assertOncePerKey(t)
	wantRuns(t, tg, 20)
}

func TestOneReplicaIsCutOffWhileTheOtherIsNot(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	proxy := redistest.NewProxy(t, redis.Addr())
	a := start(t, quickly(t, tg, "url: redis://"+proxy.Addr(), ""))
	b := start(t, quickly(t, tg, socket(redis), ""))
	wantAnswer(t, a.post("count", "before", "{}"), 201, "new")
	proxy.Refuse()
	wantAnswer(t, a.post("count", "alone", "{}"), 201, "new")
	wantAnswer(t, a.post("count", "alone", "{}"), 201, "processed")
	wantAnswer(t, a.post("count", "before", "{}"), 201, "processed")
	wantAnswer(t, a.post("count", "both", "{}"), 201, "new")
	wantAnswer(t, b.post("count", "both", "{}"), 201, "new") // the double that open admits
	if !b.isHealthy(t) {
		t.Errorf("the other replica's /health = %+v", b.health(t))
	}
	proxy.Accept()
	within(t, 10*time.Second, "it is back", func() bool { return a.isHealthy(t) && b.isHealthy(t) })
	wantAnswer(t, b.post("count", "alone", "{}"), 201, "processed")
	if got := a.get("/metrics").body; !strings.Contains(got, "gateway_slipped_duplicates_total 1") {
		t.Errorf("slipped duplicates are not counted as 1 in\n%s", got)
	}
	if log := a.log.String(); !strings.Contains(log, `"msg":"slipped duplicate"`) || !strings.Contains(log, "hook::count:both") {
		t.Error("the slipped duplicate is not in the log with its key")
	}
	wantRuns(t, tg, 4)
}

func TestB40AKilledOwnersMessageRunsWithinSecondsNotWithItsLease(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay, tg.slow = time.Hour, 1
	a, b := pair(t, tg, socket(redis), "")
	var wg sync.WaitGroup
	wg.Go(func() { a.post("count", "m", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	if left := claimLife(t, redis, "m"); left < 890*time.Second {
		t.Errorf("the running claim lives for another %s, want more than 890s", left)
	}
	time.Sleep(2 * takeoverAfter) // the living owner's claim is safe for as long as it lives
	wantAnswer(t, b.post("count", "m", "{}"), 409, "in_flight")
	a.kill()
	wg.Wait()
	within(t, takeoverAfter+10*time.Second, "a redelivery to the other replica runs", func() bool {
		return b.post("count", "m", "{}").status == 201
	})
	wantRuns(t, tg, 2)
	if got := b.get("/metrics").body; !strings.Contains(got, "gateway_takeovers_total 1") {
		t.Error("the takeover is not counted")
	}
}

func claimLife(t *testing.T, redis *redistest.Server, id string) time.Duration {
	t.Helper()
	left, err := redis.Client().PTTL(t.Context(), "gateway:hookidem:hook::count:"+id).Result()
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func TestB40AnOwnerThatWakesAfterItsLeaseIsRefused(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay, tg.slow = 3*time.Second, 1
	a, b := pair(t, tg, socket(redis), ", lease: 2s")
	var wg sync.WaitGroup
	var late answer
	wg.Go(func() { late = a.post("count", "m", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	a.pause()
	within(t, 10*time.Second, "the other replica runs it after the lease", func() bool { return b.post("count", "m", "{}").status == 201 })
	a.resume()
	wg.Wait()
	if late.status != 409 || late.idempotency() != "in_flight" {
		t.Errorf("the owner that woke up delivers %s, want its result refused", late)
	}
	if got := b.post("count", "m", "{}"); got.header.Get("X-Run") != "2" {
		t.Errorf("the record is that of run %s, want the second", got.header.Get("X-Run"))
	}
	wantRuns(t, tg, 2)
}

func TestAFrozenRedisLetsNobodyTakeOverALivingOnesClaims(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay = 20 * time.Second
	a, b := pair(t, tg, socket(redis), ", on_unavailable: closed")
	time.Sleep(takeoverAfter + time.Second) // both may take over now
	var wg sync.WaitGroup
	wg.Go(func() { wantAnswer(t, a.post("count", "m", "{}"), 201, "new") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	redis.Pause()
	for range 8 { // more than twice as long as a heartbeat lives
		b.post("count", "m", "{}")
		time.Sleep(time.Second)
	}
	redis.Resume()
	for deadline := time.Now().Add(2 * takeoverAfter); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got := b.post("count", "m", "{}"); got.status != 503 && got.idempotency() != "in_flight" {
			t.Fatalf("the other replica answers %s, want the claim left to its owner", got)
		}
	}
	wg.Wait()
	wantAnswer(t, b.post("count", "m", "{}"), 201, "processed")
	wantRuns(t, tg, 1)
}

func TestALiveOwnerWhoseRenewalsAloneAreBlockedKeepsItsClaimUntilItsLeaseEnds(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay, tg.slow = time.Minute, 1
	user := func(name, rules string) {
		t.Helper()
		args := append([]any{"acl", "setuser", name}, anys(strings.Fields(rules))...)
		if err := redis.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	user("one", "on >pw ~gateway:* +@all")
	const lease = 12 * time.Second
	a := start(t, quickly(t, tg, "host: "+redis.Addr()+", username: one, password: pw", ", lease: 12s"))
	b := start(t, quickly(t, tg, socket(redis), ", lease: 12s"))
	time.Sleep(takeoverAfter)
	var wg sync.WaitGroup
	begun := time.Now()
	wg.Go(func() { a.post("count", "m", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	// A renewal is a script, as a heartbeat is not.
	user("one", "-evalsha -eval -watch")
	for time.Since(begun) < lease-2*time.Second {
		if got := b.post("count", "m", "{}"); got.status != 409 {
			t.Fatalf("after %s the other replica answers %s, want 409 until the lease ends", time.Since(begun), got)
		}
		time.Sleep(100 * time.Millisecond)
	}
	within(t, 6*time.Second, "after the lease the other replica runs it", func() bool { return b.post("count", "m", "{}").status == 201 })
	wg.Wait()
	wantRuns(t, tg, 2)
}

func anys(words []string) []any {
	var all []any
	for _, w := range words {
		all = append(all, w)
	}
	return all
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	sentinel, tg := redistest.StartSentinel(t), newTarget(t)
	a, b := pair(t, tg, fmt.Sprintf("sentinel: {master: %s, addrs: ['%s']}", redistest.Master, sentinel.Addr()), "")
	wantAnswer(t, a.post("count", "before", "{}"), 201, "new")
	waitReplicated(t, sentinel.Primary().Client())
	sentinel.FailOver()
	wantAnswer(t, a.post("count", "during", "{}"), 201, "new")
	within(t, 10*time.Second, "both claim in the new primary", func() bool { return a.isHealthy(t) && b.isHealthy(t) })
	for _, delivery := range []string{"before", "during"} {
		wantAnswer(t, b.post("count", delivery, "{}"), 201, "processed")
	}
	wantRuns(t, tg, 2)
}

// waitReplicated waits until the primary's one replica has all its writes.
func waitReplicated(t *testing.T, c *redis.Client) {
	t.Helper()
	if n, err := c.Wait(t.Context(), 1, 10*time.Second).Result(); err != nil || n != 1 {
		t.Fatalf("%d replicas have the writes, %v", n, err)
	}
}

func TestTwoReplicasOnACluster(t *testing.T) {
	t.Parallel()
	cluster, tg := redistest.StartCluster(t, 2), newTarget(t)
	a, b := pair(t, tg, fmt.Sprintf("cluster: {addrs: ['%s']}, prefix: '{gateway}:'", cluster[0].Addr()), "")
	for _, id := range []string{"x{y}z", "{}", "{a}{b}"} {
		wantAnswer(t, a.post("count", id, "{}"), 201, "new")
		wantAnswer(t, b.post("count", id, "{}"), 201, "processed")
	}
	wantRuns(t, tg, 3)
}

func TestB134APasswordChangedUnderUsNeedsAPersonAndSaysSoOnce(t *testing.T) {
	t.Parallel()
	server, tg := redistest.Start(t, "--requirepass", "old"), newTarget(t)
	admin := server.Client()
	p := start(t, quickly(t, tg, "host: "+server.Addr()+", password: old", ""))
	wantAnswer(t, p.post("count", "before", "{}"), 201, "new")
	change := func(from, to string) {
		t.Helper()
		conn := admin.Conn()
		defer conn.Close()
		ctx := context.WithoutCancel(t.Context())
		if _, err := conn.Pipelined(ctx, func(c redis.Pipeliner) error {
			c.Do(ctx, "auth", from)
			c.Do(ctx, "config", "set", "requirepass", to)
			c.Do(ctx, "client", "kill", "type", "normal", "skipme", "yes")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	change("old", "new")
	eventually(t, "the class is auth", func() bool { return p.isDegraded(t, "stale", "auth") })
	for i := range 100 {
		if got := p.post("github", fmt.Sprint("m-", i), `{"comment":{"body":"hi"}}`); got.status != 200 {
			t.Fatalf("got %s, want it answered", got)
		}
	}
	if n := strings.Count(p.log.String(), `"level":"ERROR"`); n != 1 {
		t.Errorf("%d error lines for a hundred messages, want one", n)
	}
	change("new", "old")
	within(t, 10*time.Second, "it is back by itself", func() bool { return p.isHealthy(t) })
}
