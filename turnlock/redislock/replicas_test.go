package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/turnlock"
	"github.com/oncegate/oncegate/turnlock/redislock"
)

func ttl(d time.Duration) settings { return func(c *redislock.Config) { c.TTL = d } }

func TestReplicas(t *testing.T) {
	t.Parallel()
	t.Run("turns run in arrival order whichever replica they came to (B53)", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a"), newReplica(t, s.Addr(), "b")
		first := mustAcquire(t, a, "s")
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i, r := range []*replica{a, a, b, a, b, b, a, b} {
			wg.Go(func() {
				lease := mustAcquire(t, r, "s")
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				lease.Release()
			})
			awaitWaiting(t, s.Client(), "s", i+1)
		}
		first.Release()
		wg.Wait()
		if got := fmt.Sprint(order); got != "[0 1 2 3 4 5 6 7]" {
			t.Errorf("turns ran in the order %s, want that of arrival", got)
		}
	})

	t.Run("a release wakes the next waiter on another replica instead of leaving it to its poll", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a", ttl(time.Minute)), newReplica(t, s.Addr(), "b", ttl(time.Minute))
		awaitListeners(t, s, 2)
		for range 20 { // polls come every 5 s
			first := mustAcquire(t, a, "s")
			got := make(chan *turnlock.Lease)
			go func() { got <- mustAcquire(t, b, "s") }()
			awaitWaiting(t, s.Client(), "s", 1)
			first.Release()
			select {
			case lease := <-got:
				lease.Release()
			case <-time.After(2 * time.Second):
				t.Fatal("the waiter was not woken")
			}
		}
	})

	t.Run("a wake-up that gets lost costs a poll and no more", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a", ttl(time.Second)), newReplica(t, s.Addr(), "b", ttl(time.Second))
		b.stop() // nobody hears what it is told; its waiters still ask
		first := mustAcquire(t, a, "s")
		got := make(chan *turnlock.Lease)
		go func() { got <- mustAcquire(t, b, "s") }()
		awaitWaiting(t, s.Client(), "s", 1)
		first.Release()
		(<-got).Release()
	})

	t.Run("the lock of a holder that died ends with its life and the next turn starts (B40 B45)", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a", ttl(time.Second)), newReplica(t, s.Addr(), "b", ttl(time.Second))
		mustAcquire(t, a, "s")
		a.stop() // renews no more
		start := time.Now()
		mustAcquire(t, b, "s").Release()
		if waited := time.Since(start); waited > 2*time.Second {
			t.Errorf("waited %s for a lock of 1s whose holder is dead", waited)
		}
	})

	t.Run("a waiter that died is skipped", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, c := newReplica(t, s.Addr(), "a", ttl(time.Second)), newReplica(t, s.Addr(), "c", ttl(time.Second))
		client := newClient(t, s.Addr())
		b := newReplica(t, s.Addr(), "b", ttl(time.Second), func(c *redislock.Config) { c.Client = client })
		first := mustAcquire(t, a, "s")
		ctx, stopWaiting := context.WithCancel(t.Context())
		defer stopWaiting()
		go func() { _, _ = b.Acquire(ctx, "s") }() // never served: its connections are gone
		awaitWaiting(t, s.Client(), "s", 1)
		_ = client.Close()
		got := make(chan *turnlock.Lease)
		go func() { got <- mustAcquire(t, c, "s") }()
		awaitWaiting(t, s.Client(), "s", 2)
		start := time.Now()
		first.Release()
		(<-got).Release()
		if waited := time.Since(start); waited > 2*time.Second {
			t.Errorf("waited %s behind a waiter that is dead", waited)
		}
	})

	t.Run("a turn longer than the lock's life keeps the lock (B40)", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a", ttl(time.Second)), newReplica(t, s.Addr(), "b", ttl(time.Second))
		lease := mustAcquire(t, a, "s")
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		if _, err := b.Acquire(ctx, "s"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Acquire beside a long turn = %v, want to wait", err)
		}
		if err := lease.Confirm(t.Context()); err != nil || lease.Context().Err() != nil {
			t.Errorf("the long turn has lost its lock: %v, %v", err, context.Cause(lease.Context()))
		}
		lease.Release()
	})

	t.Run("a lock that was deleted and taken by another replica ends the first turn, whose fence is older (B56)", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a", ttl(time.Second)), newReplica(t, s.Addr(), "b", ttl(time.Second))
		first := mustAcquire(t, a, "s")
		s.Client().Del(t.Context(), prefix+"turnlock:s")
		second := mustAcquire(t, b, "s")
		if second.Fence() <= first.Fence() {
			t.Errorf("fence %d after %d", second.Fence(), first.Fence())
		}
		<-first.Context().Done()
		if cause := context.Cause(first.Context()); !errors.Is(cause, turnlock.ErrLost) {
			t.Errorf("the first turn ended with %v, want ErrLost", cause)
		}
		first.Release()
		if err := second.Confirm(t.Context()); err != nil || second.Context().Err() != nil {
			t.Errorf("the release of the lost lock took the second one's: %v", err)
		}
		second.Release()
		if got := a.lost.Load(); got != 1 {
			t.Errorf("%d lost locks counted, want 1", got)
		}
	})

	t.Run("a server that restarts empty gives the lock back to its holder while nobody has had it", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(2*time.Second))
		lease := mustAcquire(t, a, "s")
		defer lease.Release()
		s.Restart()
		await(t, "the lock in the new server", func() bool { return s.Client().Exists(t.Context(), prefix+"turnlock:s").Val() == 1 })
		if err := lease.Confirm(t.Context()); err != nil || lease.Context().Err() != nil {
			t.Errorf("lost: %v, %v", err, context.Cause(lease.Context()))
		}
	})

	t.Run("a forgotten script is sent again for every kind of call", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a := newReplica(t, s.Addr(), "a", ttl(time.Second))
		lease := mustAcquire(t, a, "s")
		s.Client().ScriptFlush(t.Context())
		await(t, "a renewal", func() bool { return s.Client().PTTL(t.Context(), prefix+"turnlock:s").Val() > 900*time.Millisecond })
		s.Client().ScriptFlush(t.Context())
		lease.Release()
		s.Client().ScriptFlush(t.Context())
		mustAcquire(t, a, "s").Release()
		if got := a.failOpen.Load(); got != 0 {
			t.Errorf("%d turns went on without the lock", got)
		}
	})

	t.Run("a thousand sessions with a waiter each do not slow a free one", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a", ttl(time.Minute)), newReplica(t, s.Addr(), "b", ttl(time.Minute))
		var held []*turnlock.Lease
		var wg sync.WaitGroup
		const sessions = 1000
		for i := range sessions {
			session := fmt.Sprint("busy", i)
			held = append(held, mustAcquire(t, a, session))
			wg.Go(func() { mustAcquire(t, b, session).Release() })
		}
		awaitWaiting(t, s.Client(), fmt.Sprint("busy", sessions-1), 1)
		slowest := time.Duration(0)
		for range 50 {
			start := time.Now()
			mustAcquire(t, b, "free").Release()
			slowest = max(slowest, time.Since(start))
		}
		if slowest > 250*time.Millisecond {
			t.Errorf("the slowest turn of a free session waited %s", slowest)
		}
		for _, lease := range held {
			lease.Release()
		}
		wg.Wait()
	})

	t.Run("every key begins with the prefix and expires", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		a, b := newReplica(t, s.Addr(), "a"), newReplica(t, s.Addr(), "b")
		lease := mustAcquire(t, a, "s")
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = b.Acquire(ctx, "s") }()
		defer cancel()
		awaitWaiting(t, s.Client(), "s", 1)
		keys := s.Client().Keys(t.Context(), "*").Val()
		if len(keys) < 4 {
			t.Fatalf("keys %q, want those of a held lock with a waiter", keys)
		}
		for _, key := range keys {
			if !strings.HasPrefix(key, prefix) {
				t.Errorf("key %q is outside the prefix", key)
			}
			if left := s.Client().PTTL(t.Context(), key).Val(); left <= 0 && s.Client().Exists(t.Context(), key).Val() == 1 {
				t.Errorf("key %q never expires", key)
			}
		}
		lease.Release()
	})
}

// awaitListeners returns when n replicas can be woken.
func awaitListeners(t *testing.T, s *redistest.Server, n int) {
	t.Helper()
	await(t, "a subscription of each replica", func() bool {
		return len(s.Client().PubSubChannels(t.Context(), prefix+"turnwake:*").Val()) == n
	})
}
