package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

// over is a Failover over stores of the test's own, with its probing under way.
func over(t *testing.T, first, second idempotency.Store, log *slog.Logger) *idempotency.Failover {
	t.Helper()
	tier := func(name string, s idempotency.Store) idempotency.Tier {
		return idempotency.Tier{
			Name: name, Timeout: 300 * time.Millisecond, Classify: func(error) string { return "unreachable" },
			Open: func(context.Context) (idempotency.Store, error) { return s, nil },
		}
	}
	f := idempotency.NewFailover(idempotency.FailoverConfig{
		Tiers:         []idempotency.Tier{tier(idempotency.BackendRedis, first), tier(idempotency.BackendSQLite, second)},
		OnUnavailable: idempotency.Open, Replica: "a", Health: health.NewRegistry(slog.New(slog.DiscardHandler)),
		Log: log, Now: time.Now, ProbeEvery: time.Second,
	})
	f.Start(t.Context())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return f
}

func until(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > d {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

func TestAClaimNeverTakesLongerThanItsBudgetOfAFrozenStore(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		a.redis.Slow(time.Hour)
		begun := time.Now()
		c := mustMeet(t, a, "m", "a.1", idempotency.Won).Claim
		if took := time.Since(begun); took != 300*time.Millisecond {
			t.Errorf("the first claim took %s, want the budget of 300ms", took)
		}
		begun = time.Now()
		mustMeet(t, a, "n", "a.2", idempotency.Won)
		if err := a.Record(t.Context(), c, nil); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the next ones waited %s for a store that is known to be away", took)
		}
		a.redis.Slow(0)
	})
}

func TestACallerThatLeavesDoesNotTakeAStoreDown(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		a.redis.Slow(200 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := a.Reserve(ctx, idempotencytest.Key("m"), idempotency.Request{Token: "a.1", Lease: time.Minute, TTL: time.Hour})
		if !errors.Is(err, context.DeadlineExceeded) || a.Backend() != idempotency.BackendRedis {
			t.Errorf("Reserve = %v, claims go to %s", err, a.Backend())
		}
		a.redis.Slow(0)
	})
}

func TestWhatHappenedInMemoryReachesRedisThroughSQLite(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		t.Run(fmt.Sprintf("running %t", running), func(t *testing.T) {
			inOutage(t, idempotency.Open, idempotency.BackendRedis, func(t *testing.T, o *outage) {
				o.sqlite.Fail(errRefused)
				o.redis.Fail(errRefused)
				c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
				if !running {
					if err := o.Record(t.Context(), c, nil); err != nil {
						t.Fatal(err)
					}
				}
				o.sqlite.Fail(nil)
				probed()
				if running {
					if err := o.Record(t.Context(), c, nil); err != nil {
						t.Fatal(err)
					}
				}
				o.redis.Fail(nil)
				probed()
				mustMeet(t, o.redis, "m", "r2.x", idempotency.Recorded)
			})
		})
	}
}

// Choosing the store and claiming in it are one step for the store that comes
// back: whatever was won before it serves is there.
func TestNoClaimIsWonBesideARedisThatServes(t *testing.T) {
	inOutage(t, idempotency.Open, idempotency.BackendRedis, func(t *testing.T, o *outage) {
		o.redis.Fail(errRefused)
		mustRecordIn(t, o, "first", "r1.first", "")
		o.sqlite.Slow(20 * time.Millisecond)
		var mu sync.Mutex
		var local []string
		var wg sync.WaitGroup
		send := func(i int) {
			id := fmt.Sprint(i)
			c := mustMeet(t, o, id, "r1."+id, idempotency.Won).Claim
			if i%2 == 0 { // so that there is something to carry at each moment
				if err := o.Record(t.Context(), c, nil); err != nil {
					t.Error(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if c.Backend == idempotency.BackendSQLite {
				local = append(local, id)
			}
		}
		for i := 0; o.Backend() != idempotency.BackendRedis; i++ {
			if i == 500 {
				o.redis.Fail(nil)
			}
			wg.Go(func() { send(i) })
			time.Sleep(5 * time.Millisecond)
		}
		mu.Lock()
		for _, id := range local {
			res, err := o.redis.Reserve(t.Context(), idempotencytest.Key(id), idempotency.Request{Token: "r2." + id, Lease: time.Minute, TTL: time.Hour})
			if err != nil || res.State == idempotency.Won {
				t.Errorf("%s was won in the local store, and Redis, which serves, lets another replica have it (%v)", id, err)
			}
		}
		mu.Unlock()
		wg.Wait()
	})
}

func TestWhatAMovedClaimLeftBehindRefusesNoLaterRecord(t *testing.T) {
	inOutage(t, idempotency.Open, idempotency.BackendRedis, func(t *testing.T, o *outage) {
		o.redis.Fail(errRefused)
		moved := mustMeet(t, o, "m", "r1.x", idempotency.Won).Claim
		o.redis.Fail(nil)
		probed()
		if err := o.Release(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
		again := mustMeet(t, o, "m", "r1.y", idempotency.Won).Claim
		o.redis.Fail(errRefused)
		if err := o.Record(t.Context(), again, []byte("answer")); err != nil {
			t.Errorf("Record of a run that succeeded = %v", err)
		}
		mustMeet(t, o, "m", "r1.z", idempotency.Recorded)
		o.redis.Fail(nil)
		probed()
		mustMeet(t, o.redis, "m", "r2.a", idempotency.Recorded)
	})
}

func TestAnEmptiedRedisGetsBackAClaimThatHadMovedThere(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, _ *replica) {
		a.redis.Fail(errRefused)
		mustMeet(t, a, "m", "a.1", idempotency.Won)
		a.redis.Fail(nil)
		probed()
		mustMeet(t, s, "m", "c.0", idempotency.InFlight)
		empty := newServer()
		empty.emptied.Store(true)
		a.redis.Replace(empty)
		probed()
		mustMeet(t, empty, "m", "c.1", idempotency.InFlight)
	})
}

// lateRelease answers a Release some time after carrying it out.
type lateRelease struct{ *server }

func (l *lateRelease) Release(ctx context.Context, c idempotency.Claim) error {
	err := l.server.Release(ctx, c)
	time.Sleep(200 * time.Millisecond)
	return err
}

func TestAClaimThatEndsWhileAnEmptiedRedisIsFilledLeavesNoPhantom(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		time.Sleep(100 * time.Millisecond)
		c := mustMeet(t, a, "m", "a.1", idempotency.Won).Claim
		time.Sleep(800 * time.Millisecond)
		empty := newServer()
		empty.emptied.Store(true)
		a.redis.Replace(&lateRelease{empty})
		// Carried out at 0.9 s, answered at 1.1; the probe is at 1.0.
		if err := a.Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		mustMeet(t, empty, "m", "c.1", idempotency.Won)
	})
}

func TestAfterAPauseManyClaimsShareOneHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		a.redis.FailOnly("beat", errRefused)
		time.Sleep(takeoverAfter*2/3 + beatEvery - time.Second)
		a.redis.FailOnly("", nil)
		a.redis.Slow(3 * time.Millisecond)
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				id := fmt.Sprint(i)
				if res := mustMeet(t, a, id, "a."+id, idempotency.Won); res.Claim.Backend != idempotency.BackendRedis {
					t.Errorf("%s was claimed in %s beside a Redis that answers in 3ms", id, res.Claim.Backend)
				}
			})
		}
		wg.Wait()
		a.redis.Slow(0)
	})
}

// edge loses the first Reserve and is late with the answers to the others.
type edge struct {
	*idempotency.Memory
	calls atomic.Int32
}

func (e *edge) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	if e.calls.Add(1) == 1 {
		<-ctx.Done()
		return idempotency.Reservation{}, ctx.Err()
	}
	res, err := e.Memory.Reserve(ctx, key, req)
	res.Claim.Backend = idempotency.BackendRedis
	time.Sleep(250 * time.Millisecond)
	return res, err
}

func TestTwoDeliveriesAtTheEdgeOfAnOutageRunOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		redis := &edge{Memory: idempotency.NewMemory(time.Now)}
		f := over(t, redis, named{&idempotencytest.Faulty{Store: memory()}, idempotency.BackendSQLite}, logger(t))
		var wins atomic.Int32
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				res, err := f.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: fmt.Sprint("a.", i), Lease: time.Minute, TTL: time.Hour})
				if err != nil {
					t.Error(err)
				}
				if res.State == idempotency.Won {
					wins.Add(1)
				}
			})
		}
		wg.Wait()
		if n := wins.Load(); n != 1 {
			t.Errorf("%d runs at a time in one replica, want 1", n)
		}
	})
}

func TestARunWhoseMessageSlippedIsNotJoinedByAThird(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.redis.Fail(errRefused)
		mustMeet(t, a, "m", "a.1", idempotency.Won)
		foreign := mustMeet(t, b, "m", "b.1", idempotency.Won).Claim
		a.redis.Fail(nil)
		probed()
		if err := b.Release(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
		mustMeet(t, a, "m", "a.2", idempotency.InFlight)
	})
}

// lateReserve is late with the answer to its first Reserve.
type lateReserve struct {
	*idempotency.Memory
	calls atomic.Int32
}

func (l *lateReserve) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	res, err := l.Memory.Reserve(ctx, key, req)
	res.Claim.Backend = idempotency.BackendRedis
	if l.calls.Add(1) == 1 {
		time.Sleep(70 * time.Second)
	}
	return res, err
}

func TestAReserveThatTakesAMinuteIsNotAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := over(t, &lateReserve{Memory: idempotency.NewMemory(time.Now)}, memory(), logger(t))
		reserve := func(token string) idempotency.State {
			res, err := f.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: token, Lease: 15 * time.Minute, TTL: time.Hour})
			if err != nil {
				t.Error(err)
			}
			return res.State
		}
		first := make(chan idempotency.State, 1)
		go func() { first <- reserve("a.1") }()
		time.Sleep(65 * time.Second)
		if second := reserve("a.2"); second != idempotency.InFlight || <-first != idempotency.Won {
			t.Errorf("the second delivery is in state %d, want in flight beside the first", second)
		}
	})
}

func TestARecordPastTheOutagesBoundIsCarried(t *testing.T) {
	inOutage(t, idempotency.Open, idempotency.BackendRedis, func(t *testing.T, o *outage) {
		o.redis.Fail(errRefused)
		var last idempotency.Claim
		for i := range 100_010 {
			id := fmt.Sprint(i)
			last = mustMeet(t, o, id, "r1."+id, idempotency.Won).Claim
		}
		o.redis.Fail(nil)
		probed()
		if err := o.Record(t.Context(), last, nil); err != nil {
			t.Fatal(err)
		}
		mustMeet(t, o.redis, idOf(last), "r2.x", idempotency.Recorded)
	})
}

func TestAReplacedFileGetsBackWhatTheProcessKnows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var file atomic.Pointer[idempotencytest.Faulty]
		f := idempotency.NewFailover(idempotency.FailoverConfig{
			Tiers: []idempotency.Tier{
				{Name: idempotency.BackendSQLite, Classify: func(error) string { return "replaced" }, Open: func(context.Context) (idempotency.Store, error) {
					file.Store(&idempotencytest.Faulty{Store: memory()})
					return named{file.Load(), idempotency.BackendSQLite}, nil
				}},
				{Name: idempotency.BackendMemory, Classify: func(error) string { return "" }, Open: func(context.Context) (idempotency.Store, error) { return memory(), nil }},
			},
			Replica: "a", OnUnavailable: idempotency.Open, Health: health.NewRegistry(slog.New(slog.DiscardHandler)), Log: logger(t), Now: time.Now, ProbeEvery: time.Second,
		})
		f.Start(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		running := mustMeet(t, f, "running", "a.1", idempotency.Won).Claim
		mustRecordIn(t, f, "done", "a.2", "answer")
		first := file.Load()
		first.FailOnly("ping", idempotency.ErrReplaced)
		until(t, 5*time.Second, "the new file serves", func() bool { return f.Backend() == idempotency.BackendSQLite && file.Load() != first })
		mustMeet(t, f, "done", "a.3", idempotency.Recorded)
		mustMeet(t, file.Load(), "running", "b.1", idempotency.InFlight)
		if err := f.Renew(t.Context(), running); err != nil {
			t.Errorf("Renew = %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestAClaimThatRedisOvertookIsNotRun(t *testing.T) {
	inOutage(t, idempotency.Open, idempotency.BackendRedis, func(t *testing.T, o *outage) {
		o.redis.Fail(errRefused)
		mustMeet(t, o, "first", "r1.first", idempotency.Won)
		o.sqlite.Replace(slowClaims{idempotency.NewMemory(time.Now)})
		met := make(chan idempotency.State, 1)
		go func() {
			time.Sleep(900 * time.Millisecond)
			res, err := o.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: "r1.slow", Lease: time.Minute, TTL: time.Hour})
			if err != nil {
				t.Error(err)
			}
			met <- res.State
		}()
		time.Sleep(950 * time.Millisecond)
		o.redis.Fail(nil)
		until(t, time.Second, "Redis serves", func() bool { return o.Backend() == idempotency.BackendRedis })
		mustMeet(t, o.redis, "m", "r2.fast", idempotency.Won)
		if got := <-met; got != idempotency.InFlight {
			t.Errorf("the slow claim ended in state %d, want in flight: the other replica has the message", got)
		}
	})
}

func TestAStoreThatIsLostAsSoonAsItIsBackIsNotTriedInALoop(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		a.redis.Fail(errRefused)
		_, err := a.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: "a.1", Lease: time.Hour, TTL: time.Hour, OnUnavailable: idempotency.Closed})
		if !errors.Is(err, idempotency.ErrUnavailable) {
			t.Fatal(err)
		}
		a.redis.Fail(nil)
		probed()
		a.redis.FailOnly("release", errRefused)
		time.Sleep(takeoverAfter)
		before := a.redis.Calls()
		time.Sleep(5 * time.Second)
		if n := a.redis.Calls() - before; n > 100 {
			t.Errorf("%d calls in 5 s", n)
		}
	})
}

func TestAClaimThatIsMadeAgainIsNotReleasedByWhatIsPending(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.local.Replace(slowClaims{idempotency.NewMemory(time.Now)})
		a.redis.FailOnlyAfter("reserve", errors.New("connection reset"))
		time.AfterFunc(100*time.Millisecond, func() { a.redis.FailOnly("", nil) })
		c := mustMeet(t, a, "m", "a.1", idempotency.Won).Claim
		if c.Backend != idempotency.BackendRedis {
			t.Fatalf("claimed in %s, want it made again in Redis, which is back", c.Backend)
		}
		time.Sleep(takeoverAfter + 5*time.Second) // past both confirmations of the release
		mustMeet(t, b, "m", "b.1", idempotency.InFlight)
		if err := a.Record(t.Context(), c, nil); err != nil {
			t.Errorf("Record = %v", err)
		}
	})
}
