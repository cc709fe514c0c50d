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

// MaxWait is the longest wait of the Locker under test.
const MaxWait = time.Minute

// Run checks a Locker. newLocker is called once per subtest, inside a synctest
// bubble, and returns one without held locks.
func Run(t *testing.T, newLocker func(t *testing.T) turnlock.Locker) {
	for _, c := range []struct {
		name string
		test func(*testing.T, turnlock.Locker)
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
		{"never two turns at once under contention", testContention},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { c.test(t, newLocker(t)) })
		})
	}
}

func mustAcquire(t *testing.T, l turnlock.Locker, session string) *turnlock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), session)
	if err != nil {
		t.Fatalf("Acquire(%q) = %v", session, err)
	}
	return lease
}

func testExclusive(t *testing.T, l turnlock.Locker) {
	first := mustAcquire(t, l, "s")
	mustAcquire(t, l, "other").Release()
	acquired := false
	go func() {
		lease := mustAcquire(t, l, "s")
		acquired = true
		lease.Release()
	}()
	synctest.Wait()
	if acquired {
		t.Fatal("second holder while the first has the lock")
	}
	first.Release()
	synctest.Wait()
	if !acquired {
		t.Fatal("the waiter was not woken by the release")
	}
}

func testOrder(t *testing.T, l turnlock.Locker) {
	first := mustAcquire(t, l, "s")
	var order []int
	for i := range 5 {
		go func() {
			lease := mustAcquire(t, l, "s")
			order = append(order, i)
			lease.Release()
		}()
		synctest.Wait()
	}
	first.Release()
	synctest.Wait()
	for i, got := range order {
		if got != i {
			t.Fatalf("served in order %v, want the order of arrival", order)
		}
	}
	if len(order) != 5 {
		t.Fatalf("served %v, want all 5", order)
	}
}

func testWaiterLeaves(t *testing.T, l turnlock.Locker) {
	first := mustAcquire(t, l, "s")
	gone := errors.New("client gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	var err error
	go func() { _, err = l.Acquire(ctx, "s") }()
	synctest.Wait()
	cancel(gone)
	synctest.Wait()
	if !errors.Is(err, gone) {
		t.Fatalf("Acquire = %v, want the context's cause", err)
	}
	first.Release()
	mustAcquire(t, l, "s").Release()
}

// testTurnMeetsLeaving gives a waiter its turn in the moment in which its
// context ends. Whichever of the two it sees, the lock must not stay with it.
func testTurnMeetsLeaving(t *testing.T, l turnlock.Locker) {
	for range 200 {
		first := mustAcquire(t, l, "s")
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if lease, err := l.Acquire(ctx, "s"); err == nil {
				lease.Release()
			}
		}()
		synctest.Wait()
		next := make(chan struct{})
		go func() {
			defer close(next)
			mustAcquire(t, l, "s").Release()
		}()
		synctest.Wait()
		cancel()
		first.Release()
		<-next
	}
}

func testMaxWait(t *testing.T, l turnlock.Locker) {
	first := mustAcquire(t, l, "s")
	start := time.Now()
	if _, err := l.Acquire(t.Context(), "s"); !errors.Is(err, turnlock.ErrBusy) {
		t.Fatalf("Acquire = %v, want ErrBusy", err)
	}
	if waited := time.Since(start); waited != MaxWait {
		t.Errorf("waited %s, want %s", waited, MaxWait)
	}
	first.Release()
	mustAcquire(t, l, "s").Release()
}

func testDoneContext(t *testing.T, l turnlock.Locker) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Acquire(ctx, "s"); !errors.Is(err, context.Canceled) {
		t.Fatalf("Acquire = %v, want context.Canceled", err)
	}
	mustAcquire(t, l, "s").Release()
}

func testFence(t *testing.T, l turnlock.Locker) {
	last := uint64(0)
	for range 100 {
		lease := mustAcquire(t, l, "s")
		if lease.Fence() <= last {
			t.Fatalf("fence %d after %d, want a larger one", lease.Fence(), last)
		}
		last = lease.Fence()
		lease.Release()
	}
}

func testRelease(t *testing.T, l turnlock.Locker) {
	first := mustAcquire(t, l, "s")
	first.Release()
	second := mustAcquire(t, l, "s")
	first.Release()
	acquired := false
	go func() {
		lease := mustAcquire(t, l, "s")
		acquired = true
		lease.Release()
	}()
	synctest.Wait()
	if acquired {
		t.Fatal("a second release of the first lease freed the second holder's lock")
	}
	second.Release()
	synctest.Wait()
}

func testReleaseAfterCancel(t *testing.T, l turnlock.Locker) {
	ctx, cancel := context.WithCancel(t.Context())
	lease, err := l.Acquire(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	lease.Release()
	mustAcquire(t, l, "s").Release()
}

func testLeaseContext(t *testing.T, l turnlock.Locker) {
	lease := mustAcquire(t, l, "s")
	if err := lease.Context().Err(); err != nil {
		t.Fatalf("context of a held lock has ended: %v", err)
	}
	lease.Release()
	if lease.Context().Err() == nil {
		t.Fatal("context still runs after the release")
	}
}

func testLeaseContextIsChild(t *testing.T, l turnlock.Locker) {
	type name struct{}
	gone := errors.New("run stopped")
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), name{}, "value"))
	lease, err := l.Acquire(ctx, "s")
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

func testContention(t *testing.T, l turnlock.Locker) {
	var holders, turns atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				lease := mustAcquire(t, l, "s")
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
	if got := turns.Load(); got != 1000 {
		t.Errorf("%d turns, want 1000", got)
	}
}
