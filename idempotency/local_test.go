package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

func TestAHungLocalStoreDelaysNobodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.redis.Fail(errRefused)
		c := mustMeet(t, a, "m", "a.1", idempotency.Won).Claim
		mustMeet(t, b, "m", "b.1", idempotency.Won)
		a.redis.Fail(nil)
		probed()
		if err := a.Record(t.Context(), c, nil); err != nil { // in the local store, and carried from there
			t.Fatal(err)
		}
		probed()
		a.local.Slow(time.Hour)
		time.Sleep(takeoverAfter + time.Second)
		s.mu.Lock()
		alive := time.Now().Before(s.beats["a"].until)
		s.mu.Unlock()
		if !alive || a.degraded() {
			t.Errorf("alive to others: %t, owners %+v; want the local disk to harm nothing", alive, a.Owners())
		}
		a.redis.Fail(errRefused)
		until(t, 2*time.Second, "the loss of Redis is noticed", a.degraded)
		a.redis.Fail(nil)
		until(t, 3*time.Second, "Redis serves again", func() bool { return a.Backend() == idempotency.BackendRedis })
		a.local.Slow(0)
	})
}

func TestAReplicaWhoseLocalStoreBreaksWithMessagesInItIsDegraded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.redis.Fail(errRefused)
		for i := range 2000 {
			id := fmt.Sprint(i)
			mustRecordIn(t, a, id, "a."+id, id)
		}
		a.local.Fail(errors.New("disk I/O error"))
		a.redis.Fail(nil)
		a.redis.Slow(2 * time.Millisecond)
		until(t, 10*time.Second, "Redis serves", func() bool { return a.Backend() == idempotency.BackendRedis })
		a.redis.Slow(0)
		if res := mustMeet(t, s, "1999", "c.1", idempotency.Recorded); string(res.Outcome) != "1999" {
			t.Errorf("outcome = %q: what this process remembers was not carried", res.Outcome)
		}
		time.Sleep(2 * beatEvery)
		if !a.degraded() || !b.degraded() {
			t.Errorf("owners %+v and %+v, want both degraded: nobody knows what else is in that store", a.Owners(), b.Owners())
		}
		a.local.Fail(nil)
		until(t, 10*time.Second, "both are well", func() bool { return !a.degraded() && !b.degraded() })
	})
}

// unreadable is a local store that takes claims and gives nothing back.
type unreadable struct {
	*idempotency.Memory
	pings atomic.Int32
}

func (u *unreadable) Uncarried(context.Context, bool, idempotency.ListRequest) (idempotency.Page, error) {
	return idempotency.Page{}, errors.New("database disk image is malformed")
}

func (u *unreadable) Backlog(context.Context) (int, error) {
	return 0, errors.New("database disk image is malformed")
}

func (u *unreadable) Ping(context.Context) error {
	u.pings.Add(1)
	return nil
}

func TestALocalStoreThatCannotBeReadIsNotTriedInALoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		local := &unreadable{Memory: idempotency.NewMemory(time.Now)}
		var log bytes.Buffer
		f := over(t, named{&idempotencytest.Faulty{Store: memory()}, idempotency.BackendRedis}, local, slog.New(slog.NewTextHandler(&log, nil)))
		time.Sleep(10*time.Second + 500*time.Millisecond)
		synctest.Wait()
		lines := strings.Count(log.String(), "not available")
		if n := local.pings.Load(); n > 12 || lines != 1 || f.Backend() != idempotency.BackendRedis {
			t.Errorf("%d probes and %d lines in 10 s, claims go to %s; want one probe a second, one line and redis", n, lines, f.Backend())
		}
	})
}

// slowClaims is a local store whose claims take longer than anybody is held off.
type slowClaims struct{ *idempotency.Memory }

func (s slowClaims) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	time.Sleep(1200 * time.Millisecond)
	return s.Memory.Reserve(ctx, key, req)
}

func TestSlowLocalClaimsUnderLoadDoNotKeepRedisAway(t *testing.T) {
	inOutage(t, idempotency.Open, idempotency.BackendRedis, func(t *testing.T, o *outage) {
		o.redis.Fail(errRefused)
		mustMeet(t, o, "first", "r1.first", idempotency.Won)
		o.sqlite.Replace(slowClaims{idempotency.NewMemory(time.Now)})
		var wg sync.WaitGroup
		sent := 0
		send := func(d time.Duration) {
			for begun := time.Now(); time.Since(begun) < d; time.Sleep(20 * time.Millisecond) {
				id := fmt.Sprint(sent)
				sent++
				wg.Go(func() { mustMeet(t, o, id, "r1."+id, idempotency.Won) })
			}
		}
		send(3 * time.Second)
		o.redis.Fail(nil)
		send(4 * time.Second)
		if got := o.Backend(); got != idempotency.BackendRedis {
			t.Errorf("claims go to %s", got)
		}
		wg.Wait()
		probed()
		for i := range sent {
			mustMeet(t, o.redis, fmt.Sprint(i), "r2.x", idempotency.InFlight)
		}
	})
}

func TestALocalStoreThatHangsAtTheStartHoldsRedisUpForTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, "a", newServer(), memory())
		a.local.Slow(time.Hour)
		started := make(chan struct{})
		go func() {
			defer close(started)
			a.Start(t.Context())
		}()
		time.Sleep(2100 * time.Millisecond)
		if got := a.Backend(); got != idempotency.BackendRedis {
			t.Errorf("claims go to %s", got)
		}
		<-started
		a.local.Slow(0)
	})
}
