package redislock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/turnlock"
	"github.com/oncegate/oncegate/turnlock/redislock"
)

// owner returns the entry of /health about the lock.
func (r *replica) owner(id string) (health.Owner, bool) {
	owners := r.health.Owners()
	i := slices.IndexFunc(owners, func(o health.Owner) bool { return o.Kind == health.KindCapability && o.ID == id })
	if i < 0 {
		return health.Owner{}, false
	}
	return owners[i], true
}

func (r *replica) awaitDegraded(t *testing.T, state, class string) {
	t.Helper()
	await(t, "a degraded lock", func() bool { _, degraded := r.owner("turn_lock:redis"); return degraded })
	got, _ := r.owner("turn_lock:redis")
	if got.State != state || got.Class != class || got.Reason != "distributed turn lock unavailable" || got.RetryHint == "" {
		t.Errorf("degraded owner %+v, want %s, %s and the exact reason", got, state, class)
	}
}

func TestTrouble(t *testing.T) {
	t.Parallel()
	t.Run("a server away from the start is degraded before the first message, and each replica serialises its own turns", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		s.Stop()
		a := newReplica(t, s.Addr(), "a")
		a.awaitDegraded(t, health.Cold, "unreachable")
		if got := a.Backend(); got != "local" {
			t.Errorf("Backend = %q, want local", got)
		}
		first := mustAcquire(t, a, "s")
		got := make(chan *turnlock.Lease)
		go func() { got <- mustAcquire(t, a, "s") }()
		select {
		case <-got:
			t.Fatal("two turns of one session at once")
		case <-time.After(50 * time.Millisecond): // long enough for a call that fails at once
		}
		first.Release()
		second := <-got
		if second.Fence() <= first.Fence() {
			t.Errorf("fence %d after %d", second.Fence(), first.Fence())
		}
		second.Release()
		if n := a.failOpen.Load(); n != 2 {
			t.Errorf("%d turns counted that went on without the lock, want 2", n)
		}
	})

	t.Run("a frozen server fails open within the time of a question, and nothing stays locked when it is back", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(time.Minute), func(c *redislock.Config) { c.Timeout = 200 * time.Millisecond })
		held := mustAcquire(t, a, "held")
		s.Pause()
		start := time.Now()
		lease := mustAcquire(t, a, "s")
		if waited := time.Since(start); waited > time.Second {
			t.Errorf("waited %s for a server that does not answer", waited)
		}
		a.awaitDegraded(t, health.Stale, "unreachable")
		start = time.Now()
		held.Release()
		lease.Release()
		if took := time.Since(start); took > time.Second {
			t.Errorf("the releases took %s, want one bounded attempt", took)
		}
		s.Resume()
		await(t, "recovery", func() bool { _, degraded := a.owner("turn_lock:redis"); return !degraded && a.Backend() == "redis" })
		for _, session := range []string{"s", "held"} {
			await(t, "no lock left", func() bool { return s.Client().Exists(t.Context(), prefix+"turnlock:"+session).Val() == 0 })
		}
		start = time.Now()
		mustAcquire(t, a, "s").Release()
		mustAcquire(t, a, "held").Release()
		if waited := time.Since(start); waited > time.Second {
			t.Errorf("waited %s for sessions that nobody holds", waited)
		}
	})

	t.Run("a question that is carried out after it was taken back is taken back again", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(time.Second), func(c *redislock.Config) { c.Timeout = 100 * time.Millisecond })
		b := newReplica(t, s.Addr(), "b", ttl(time.Second))
		held := mustAcquire(t, b, "s")
		got := make(chan *turnlock.Lease)
		go func() { got <- mustAcquire(t, a, "s") }()
		awaitWaiting(t, s.Client(), "s", 1)
		token := s.Client().ZRange(t.Context(), prefix+"turnqueue:s", 0, -1).Val()[0]
		s.Pause()
		(<-got).Release() // it went on without the server
		s.Resume()
		awaitWaiting(t, s.Client(), "s", 0)
		held.Release()
		late := token + "|1"
		s.Client().Set(t.Context(), prefix+"turnlock:s", late, time.Minute)
		await(t, "the late lock taken back", func() bool { return s.Client().Get(t.Context(), prefix+"turnlock:s").Val() != late })
	})

	t.Run("a waiter does not pass a holder that the server has told it of because of one question without an answer", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		quick := func(c *redislock.Config) { c.TTL, c.Timeout = 3*time.Second, 100*time.Millisecond }
		a, b := newReplica(t, s.Addr(), "a", quick), newReplica(t, s.Addr(), "b", quick)
		held := mustAcquire(t, a, "s")
		got := make(chan *turnlock.Lease)
		go func() { got <- mustAcquire(t, b, "s") }()
		awaitWaiting(t, s.Client(), "s", 1)
		s.Pause()
		b.awaitDegraded(t, health.Stale, "unreachable")
		b.Wake("s") // it asks, in vain
		s.Resume()
		await(t, "recovery", func() bool { _, degraded := b.owner("turn_lock:redis"); return !degraded })
		select {
		case <-got:
			t.Error("two turns of one session at once")
		default:
		}
		if err := held.Confirm(t.Context()); err != nil || held.Context().Err() != nil {
			t.Errorf("the holder has lost its lock: %v", err)
		}
		held.Release()
		(<-got).Release()
		if n := b.failOpen.Load(); n != 0 {
			t.Errorf("%d turns went on without the lock", n)
		}
	})

	t.Run("the owner stays degraded while a turn goes on that has no lock", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", func(c *redislock.Config) { c.Timeout = 100 * time.Millisecond })
		s.Pause()
		lease := mustAcquire(t, a, "s")
		s.Resume()
		await(t, "the server serves again", func() bool { return a.Backend() == "redis" })
		if _, degraded := a.owner("turn_lock:redis"); !degraded {
			t.Error("green while another turn of the session could run beside this one")
		}
		lease.Release()
		await(t, "recovery", func() bool { _, degraded := a.owner("turn_lock:redis"); return !degraded })
	})

	t.Run("a turn without the server's lock has a fence above those with it, although the clock here is behind", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", func(c *redislock.Config) { c.Now = func() time.Time { return time.Now().Add(-time.Minute) } })
		with := mustAcquire(t, a, "s")
		with.Release()
		s.Stop()
		without := mustAcquire(t, a, "s")
		defer without.Release()
		if without.Fence() <= with.Fence() {
			t.Errorf("fence %d without the server after %d with it", without.Fence(), with.Fence())
		}
	})

	t.Run("a right that is granted later brings the wake-ups back", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t, "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-subscribe")
		a := newReplica(t, s.Addr(), "a")
		await(t, "deafness", func() bool { _, degraded := a.owner("turn_lock:wake"); return degraded })
		s.Client().Do(t.Context(), "acl", "setuser", "default", "+subscribe")
		await(t, "hearing", func() bool { _, degraded := a.owner("turn_lock:wake"); return !degraded })
	})

	t.Run("the renewal of a lock is not waited for beyond its life", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(time.Second), func(c *redislock.Config) { c.Timeout = 5 * time.Second })
		start := time.Now()
		lease := mustAcquire(t, a, "s")
		s.Pause()
		<-lease.Context().Done()
		s.Resume()
		if held := time.Since(start); held > 1200*time.Millisecond {
			t.Errorf("held for %s of a life of 1s", held)
		}
		lease.Release()
	})

	t.Run("a release whose answer was lost is no lost lock", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		proxy := redistest.NewProxy(t, s.Addr())
		a := newReplica(t, proxy.Addr(), "a")
		a.stop()
		lease := mustAcquire(t, a, "session-x")
		proxy.CutReply("session-x")
		lease.Release()
		if n := a.lost.Load(); n != 0 {
			t.Errorf("%d lost locks counted, want none", n)
		}
	})

	t.Run("one key that nobody can use does not keep the others from being taken back", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", func(c *redislock.Config) { c.Timeout = 100 * time.Millisecond })
		s.Client().HSet(t.Context(), prefix+"turnlock:broken", "not", "a lock")
		mustAcquire(t, a, "broken").Release()
		s.Pause()
		mustAcquire(t, a, "s").Release()
		s.Resume()
		await(t, "recovery", func() bool { return a.Backend() == "redis" })
		await(t, "no lock left", func() bool { return s.Client().Exists(t.Context(), prefix+"turnlock:s").Val() == 0 })
		await(t, "nothing to take back", func() bool { return a.Abandoned() == 0 })
	})

	t.Run("a lock that was given back is not confirmed", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a")
		lease := mustAcquire(t, a, "s")
		lease.Release()
		if err := lease.Confirm(t.Context()); err == nil {
			t.Error("Confirm = nil after the release")
		}
	})

	t.Run("fences given out while the server was away are exceeded when it is back", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		ahead := func(c *redislock.Config) { c.Now = func() time.Time { return time.Now().Add(time.Hour) } }
		a := newReplica(t, s.Addr(), "a", ahead)
		s.Stop()
		without := mustAcquire(t, a, "s")
		without.Release()
		s.Restart()
		await(t, "recovery", func() bool { return a.Backend() == "redis" })
		with := mustAcquire(t, a, "s")
		defer with.Release()
		if with.Fence() <= without.Fence() {
			t.Errorf("fence %d from the server after %d without it", with.Fence(), without.Fence())
		}
	})

	t.Run("a lock is never held longer than its life without an answer", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(time.Second), func(c *redislock.Config) { c.Timeout = 100 * time.Millisecond })
		start := time.Now()
		lease := mustAcquire(t, a, "s")
		defer lease.Release()
		s.Pause()
		defer s.Resume()
		<-lease.Context().Done()
		if cause := context.Cause(lease.Context()); !errors.Is(cause, turnlock.ErrLost) {
			t.Errorf("ended with %v, want ErrLost", cause)
		}
		if held := time.Since(start); held < 700*time.Millisecond || held > 1100*time.Millisecond {
			t.Errorf("held for %s of a life of 1s", held)
		}
	})

	t.Run("a process that was frozen past the lock's life is not confirmed, whoever has it now (B40)", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		var jump atomic.Int64
		a := newReplica(t, s.Addr(), "a", ttl(time.Minute), func(c *redislock.Config) {
			c.Now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
		})
		lease := mustAcquire(t, a, "s")
		defer lease.Release()
		jump.Store(int64(61 * time.Second))
		if err := lease.Confirm(t.Context()); !errors.Is(err, turnlock.ErrLost) {
			t.Errorf("Confirm = %v, want ErrLost", err)
		}
	})

	t.Run("a lock in doubt is confirmed by the server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		var jump atomic.Int64
		a := newReplica(t, s.Addr(), "a", ttl(time.Minute), func(c *redislock.Config) {
			c.Now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
		})
		a.stop() // no renewal comes in between
		lease, gone := mustAcquire(t, a, "s"), mustAcquire(t, a, "gone")
		s.Client().Set(t.Context(), prefix+"turnlock:gone", "b.x|9007199254740000", time.Minute)
		jump.Store(int64(45 * time.Second))
		if err := lease.Confirm(t.Context()); err != nil {
			t.Errorf("Confirm of a lock that is held = %v", err)
		}
		if err := gone.Confirm(t.Context()); !errors.Is(err, turnlock.ErrLost) {
			t.Errorf("Confirm of a lock that another has = %v, want ErrLost", err)
		}
	})

	t.Run("the release of an expired lock is one attempt and counts a lost lease once (B52)", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(time.Minute))
		lease := mustAcquire(t, a, "s")
		s.Client().Del(t.Context(), prefix+"turnlock:s")
		start := time.Now()
		lease.Release()
		lease.Release()
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %s", took)
		}
		if got := a.lost.Load(); got != 1 {
			t.Errorf("%d lost leases, want 1", got)
		}
	})

	t.Run("a turn whose context was cancelled gives the lock back at once (B42)", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := a.Acquire(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		lease.Release()
		if n := s.Client().Exists(t.Context(), prefix+"turnlock:s").Val(); n != 0 {
			t.Error("the lock is still there")
		}
	})

	t.Run("a renewal that comes after the release takes nothing back", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		proxy := redistest.NewProxy(t, s.Addr())
		a := newReplica(t, proxy.Addr(), "a", ttl(time.Second), func(c *redislock.Config) { c.Timeout = 3 * time.Second })
		for range 3 {
			lease := mustAcquire(t, a, "s")
			proxy.Delay(300 * time.Millisecond) // a renewal is under way when the release is sent
			<-time.After(400 * time.Millisecond)
			proxy.Delay(0)
			lease.Release()
		}
		a.stop()
		if value := s.Client().Get(t.Context(), prefix+"turnlock:s").Val(); value != "" {
			t.Errorf("the lock is held again: %q", value)
		}
	})

	for _, c := range []struct{ name, rights, owner, class string }{
		{"scripts refused", "+@all -evalsha -eval", "turn_lock:redis", "permission"},
		{"wake-ups may not be sent", "+@all -publish", "turn_lock:redis", "permission"},
		{"wake-ups may not be heard", "+@all -subscribe", "turn_lock:wake", "permission"},
	} {
		t.Run(c.name+": the owner is degraded before the first message", func(t *testing.T) {
			t.Parallel()
			args := []string{"--user", "default", "on", "nopass", "~*", "&*"}
			s := redistest.Start(t, append(args, strings.Fields(c.rights)...)...)
			a := newReplica(t, s.Addr(), "a")
			await(t, "a degraded owner", func() bool { _, degraded := a.owner(c.owner); return degraded })
			if got, _ := a.owner(c.owner); got.Class != c.class || got.Reason == "" || got.RetryHint == "" {
				t.Errorf("degraded owner %+v, want class %s with a reason and a hint", got, c.class)
			}
			mustAcquire(t, a, "s").Release() // whatever is refused, turns go on
		})
	}
}

func TestCheckNeedsEveryRightThatALockNeeds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--user", "default", "on", "nopass", "~*", "&*", "+@all")
	a := newReplica(t, s.Addr(), "a", func(c *redislock.Config) { c.Timeout = 500 * time.Millisecond })
	a.stop()
	if err := a.Check(t.Context()); err != nil {
		t.Fatalf("Check = %v", err)
	}
	if n := len(s.Client().Keys(t.Context(), prefix+"turnlock:*").Val()); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	for _, right := range []string{"evalsha", "publish", "subscribe", "get", "set", "time", "hset", "zadd", "zrange", "zrem", "pexpire"} {
		admin := s.Client()
		admin.Do(t.Context(), "acl", "setuser", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", "-"+right)
		if right == "evalsha" {
			admin.Do(t.Context(), "acl", "setuser", "limited", "-eval")
		}
		limited := newReplica(t, s.Addr(), "limited", func(c *redislock.Config) {
			c.Timeout, c.Client = 500*time.Millisecond, redis.NewClient(&redis.Options{Network: "unix", Addr: s.Addr(), Username: "limited", Password: "any", Protocol: 2, DisableIdentity: true})
		})
		limited.stop()
		if err := limited.Check(t.Context()); err == nil {
			t.Errorf("Check = nil without the right to %s", right)
		}
	}
}
