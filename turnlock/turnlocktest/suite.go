// Package turnlocktest is the conformance suite of turnlock.Locker.
package turnlocktest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/turnlock"
)

// Backend is a Locker without held locks, and what the suite needs to know of it.
type Backend struct {
	Locker turnlock.Locker
	// Await returns when n callers wait for the session's lock. Nil: the suite
	// runs in a synctest bubble, where it can wait for all goroutines instead.
	Await func(t *testing.T, session string, n int)
	// Lose gives the held lock of a session to somebody else. Nil: nobody can
	// lose it.
	Lose func(t *testing.T, session string)
}

// Suite says how to test a Locker.
type Suite struct {
	MaxWait time.Duration               // the longest wait of the Locker
	Rounds  int                         // of the tests that provoke races
	Bubble  bool                        // each test runs in a synctest bubble
	New     func(t *testing.T) *Backend // called once per test
}

// rig is one test's Locker.
type rig struct {
	*Backend
	Suite
}

// Run checks the Locker.
func Run(t *testing.T, s Suite) {
	for _, c := range []struct {
		name string
		test func(*testing.T, rig)
	}{
		{"one holder per session and other sessions go on", testExclusive},
		{"waiters are served first come first served", testOrder},
		{"a waiter whose context ends holds nothing and blocks nobody", testWaiterLeaves},
		{"a turn that comes as its waiter leaves goes on to the next", testTurnMeetsLeaving},
		{"no wait is longer than the longest one", testMaxWait},
		{"a done context acquires nothing", testDoneContext},
		{"fences rise with every acquisition", testFence},
		{"release is idempotent and frees the lock once", testRelease},
		{"release works after the context has ended", testReleaseAfterCancel},
		{"the lease's context ends with the lock", testLeaseContext},
		{"the lease's context is a child of the caller's", testLeaseContextIsChild},
		{"a held lock is confirmed", testConfirm},
		{"a lock that somebody else took ends its context with ErrLost and is never confirmed again", testLost},
		{"the release of a lost lock takes nothing from who has it now", testLostRelease},
		{"never two turns at once under contention", testContention},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := func(t *testing.T) { c.test(t, rig{s.New(t), s}) }
			if s.Bubble {
				synctest.Test(t, run)
			} else {
				run(t)
			}
		})
	}
}

func (r rig) await(t *testing.T, session string, n int) {
	t.Helper()
	if r.Await == nil {
		synctest.Wait()
		return
	}
	r.Await(t, session, n)
}

func (r rig) mustAcquire(t *testing.T, session string) *turnlock.Lease {
	t.Helper()
	lease, err := r.Locker.Acquire(t.Context(), session)
	if err != nil {
		t.Fatalf("Acquire(%q) = %v", session, err)
	}
	return lease
}

// waiter is an Acquire under way.
type waiter struct {
	lease *turnlock.Lease
	err   error
	done  chan struct{}
}

func (r rig) acquire(ctx context.Context, session string) *waiter {
	w := &waiter{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lease, w.err = r.Locker.Acquire(ctx, session)
	}()
	return w
}

func (w *waiter) waits() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

func (w *waiter) mustGet(t *testing.T) *turnlock.Lease {
	t.Helper()
	<-w.done
	if w.err != nil {
		t.Fatalf("a waiter's Acquire = %v", w.err)
	}
	return w.lease
}

func testExclusive(t *testing.T, r rig) {
	first := r.mustAcquire(t, "s")
	r.mustAcquire(t, "other").Release()
	second := r.acquire(t.Context(), "s")
	r.await(t, "s", 1)
	if !second.waits() {
		t.Fatal("second holder while the first has the lock")
	}
	first.Release()
	second.mustGet(t).Release()
}

func testOrder(t *testing.T, r rig) {
	first := r.mustAcquire(t, "s")
	var waiters []*waiter
	for i := range 5 {
		waiters = append(waiters, r.acquire(t.Context(), "s"))
		r.await(t, "s", i+1)
	}
	first.Release()
	for i, w := range waiters {
		lease := w.mustGet(t)
		for j, later := range waiters[i+1:] {
			if !later.waits() {
				t.Fatalf("waiter %d was served before waiter %d had released", i+1+j, i)
			}
		}
		lease.Release()
	}
}

func testWaiterLeaves(t *testing.T, r rig) {
	first := r.mustAcquire(t, "s")
	gone := errors.New("client gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	w := r.acquire(ctx, "s")
	r.await(t, "s", 1)
	cancel(gone)
	<-w.done
	if !errors.Is(w.err, gone) {
		t.Fatalf("Acquire = %v, want the context's cause", w.err)
	}
	first.Release()
	r.mustAcquire(t, "s").Release()
}

// testTurnMeetsLeaving gives a waiter its turn in the moment in which its
// context ends. Whichever of the two it sees, the lock must not stay with it.
func testTurnMeetsLeaving(t *testing.T, r rig) {
	for range r.Rounds {
		first := r.mustAcquire(t, "s")
		ctx, cancel := context.WithCancel(t.Context())
		leaving := r.acquire(ctx, "s")
		r.await(t, "s", 1)
		next := r.acquire(t.Context(), "s")
		r.await(t, "s", 2)
		go cancel()
		first.Release()
		if <-leaving.done; leaving.err == nil {
			leaving.lease.Release()
		}
		next.mustGet(t).Release()
		cancel()
	}
}

func testMaxWait(t *testing.T, r rig) {
	first := r.mustAcquire(t, "s")
	start := time.Now()
	if _, err := r.Locker.Acquire(t.Context(), "s"); !errors.Is(err, turnlock.ErrBusy) {
		t.Fatalf("Acquire = %v, want ErrBusy", err)
	}
	if waited := time.Since(start); waited < r.MaxWait || r.Bubble && waited > r.MaxWait {
		t.Errorf("waited %s, want %s", waited, r.MaxWait)
	}
	first.Release()
	r.mustAcquire(t, "s").Release()
}

func testDoneContext(t *testing.T, r rig) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Locker.Acquire(ctx, "s"); !errors.Is(err, context.Canceled) {
		t.Fatalf("Acquire = %v, want context.Canceled", err)
	}
	r.mustAcquire(t, "s").Release()
}

func testFence(t *testing.T, r rig) {
	last := uint64(0)
	for range 100 {
		lease := r.mustAcquire(t, "s")
		if lease.Fence() <= last {
			t.Fatalf("fence %d after %d, want a larger one", lease.Fence(), last)
		}
		last = lease.Fence()
		lease.Release()
	}
}

func testRelease(t *testing.T, r rig) {
	first := r.mustAcquire(t, "s")
	first.Release()
	second := r.mustAcquire(t, "s")
	first.Release()
	third := r.acquire(t.Context(), "s")
	r.await(t, "s", 1)
	if !third.waits() {
		t.Fatal("a second release of the first lease freed the second holder's lock")
	}
	second.Release()
	third.mustGet(t).Release()
}

func testReleaseAfterCancel(t *testing.T, r rig) {
	ctx, cancel := context.WithCancel(t.Context())
	lease, err := r.Locker.Acquire(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	lease.Release()
	r.mustAcquire(t, "s").Release()
}

func testLeaseContext(t *testing.T, r rig) {
	lease := r.mustAcquire(t, "s")
	if err := lease.Context().Err(); err != nil {
		t.Fatalf("context of a held lock has ended: %v", err)
	}
	lease.Release()
	if lease.Context().Err() == nil {
		t.Fatal("context still runs after the release")
	}
}

func testLeaseContextIsChild(t *testing.T, r rig) {
	type name struct{}
	gone := errors.New("run stopped")
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), name{}, "value"))
	lease, err := r.Locker.Acquire(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if got := lease.Context().Value(name{}); got != "value" {
		t.Errorf("value %v in the lease's context, want the caller's", got)
	}
	cancel(gone)
	<-lease.Context().Done()
	if got := context.Cause(lease.Context()); !errors.Is(got, gone) {
		t.Errorf("the lease's context ended with %v, want the caller's cause", got)
	}
}

func testConfirm(t *testing.T, r rig) {
	lease := r.mustAcquire(t, "s")
	defer lease.Release()
	if err := lease.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm of a held lock = %v", err)
	}
}

func testLost(t *testing.T, r rig) {
	if r.Lose == nil {
		t.Skip("nobody can take this lock away")
	}
	lease := r.mustAcquire(t, "s")
	defer lease.Release()
	r.Lose(t, "s")
	<-lease.Context().Done()
	if got := context.Cause(lease.Context()); !errors.Is(got, turnlock.ErrLost) {
		t.Errorf("the lease's context ended with %v, want ErrLost", got)
	}
	if err := lease.Confirm(t.Context()); !errors.Is(err, turnlock.ErrLost) {
		t.Errorf("Confirm of a lost lock = %v, want ErrLost", err)
	}
}

func testLostRelease(t *testing.T, r rig) {
	if r.Lose == nil {
		t.Skip("nobody can take this lock away")
	}
	lease := r.mustAcquire(t, "s")
	r.Lose(t, "s")
	lease.Release()
	w := r.acquire(t.Context(), "s")
	r.await(t, "s", 1)
	if !w.waits() {
		t.Error("the release of a lost lock freed it for the next one")
	}
	<-w.done // as soon as that of the other one is over, or busy
	if w.err == nil {
		w.lease.Release()
	}
}

func testContention(t *testing.T, r rig) {
	var holders, turns atomic.Int32
	var wg sync.WaitGroup
	each := max(1, r.Rounds/10)
	for range 50 {
		wg.Go(func() {
			for range each {
				lease := r.mustAcquire(t, "s")
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				turns.Add(1)
				holders.Add(-1)
				lease.Release()
			}
		})
	}
	wg.Wait()
	if got, want := turns.Load(), int32(50*each); got != want {
		t.Errorf("%d turns, want %d", got, want)
	}
}
