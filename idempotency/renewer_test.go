package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

// bubble runs a Renewer over a memory store inside a synctest bubble.
func bubble(t *testing.T, test func(*testing.T, *idempotency.Renewer, *idempotencytest.Faulty)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &idempotencytest.Faulty{Store: idempotency.NewMemory(time.Now)}
		r := idempotency.NewRenewer(store, time.Now, logger(t))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		test(t, r, store)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func mustReserve(t *testing.T, s idempotency.Store, id, token string, lease time.Duration) idempotency.Claim {
	t.Helper()
	res, err := s.Reserve(t.Context(), idempotencytest.Key(id), idempotency.Request{Token: token, Lease: lease, TTL: time.Hour})
	if err != nil || res.State != idempotency.Won {
		t.Fatalf("Reserve(%s by %s) = state %d, %v; want it won", id, token, res.State, err)
	}
	return res.Claim
}

// mustBeHeld wants another owner to find the claim taken.
func mustBeHeld(t *testing.T, s idempotency.Store, id string) {
	t.Helper()
	res, err := s.Reserve(t.Context(), idempotencytest.Key(id), idempotency.Request{Token: "other." + id, Lease: time.Second, TTL: time.Second})
	if err != nil || res.State != idempotency.InFlight {
		t.Fatalf("another owner finds %s in state %d, %v; want it in flight", id, res.State, err)
	}
}

func TestRenewer(t *testing.T) {
	t.Parallel()
	notLost := func(t *testing.T) func(error) {
		return func(err error) { t.Errorf("claim reported lost: %v", err) }
	}

	t.Run("a claim lives as long as its run, and its confirmation moves", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *idempotency.Renewer, s *idempotencytest.Faulty) {
			c := mustReserve(t, s, "m", "r1.a", 30*time.Second)
			h := r.Hold(c, notLost(t))
			time.Sleep(10 * time.Minute)
			got := h.Stop()
			if age := time.Since(got.Confirmed); age > 10*time.Second {
				t.Errorf("last confirmation is %s old, want at most a third of the lease", age)
			}
			if err := s.Record(t.Context(), got, nil); err != nil {
				t.Errorf("Record after twenty leases = %v", err)
			}
		})
	})

	t.Run("a stopped claim is renewed no longer", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *idempotency.Renewer, s *idempotencytest.Faulty) {
			r.Hold(mustReserve(t, s, "m", "r1.a", 30*time.Second), notLost(t)).Stop()
			time.Sleep(31 * time.Second)
			mustReserve(t, s, "m", "r2.b", 30*time.Second)
		})
	})

	t.Run("a lost claim is reported once with its reason", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *idempotency.Renewer, s *idempotencytest.Faulty) {
			c := mustReserve(t, s, "m", "r1.a", 30*time.Second)
			var reports atomic.Int32
			h := r.Hold(c, func(err error) {
				reports.Add(1)
				if !errors.Is(err, idempotency.ErrNotOwner) {
					t.Errorf("lost(%v), want ErrNotOwner", err)
				}
			})
			if err := s.Release(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			mustReserve(t, s, "m", "r2.b", time.Hour)
			time.Sleep(5 * time.Minute)
			h.Stop()
			if n := reports.Load(); n != 1 {
				t.Errorf("reported %d times, want once", n)
			}
		})
	})

	t.Run("a renewal without an answer is repeated until there is one", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *idempotency.Renewer, s *idempotencytest.Faulty) {
			defer r.Hold(mustReserve(t, s, "m", "r1.a", 30*time.Second), notLost(t)).Stop()
			time.Sleep(11 * time.Second)
			s.Fail(errors.New("connection refused"))
			time.Sleep(24 * time.Second) // beyond the first lease, within the one renewed at a third of it
			s.Fail(nil)
			time.Sleep(6 * time.Second)
			mustBeHeld(t, s, "m")
		})
	})

	t.Run("an earlier deadline than the one waited for is kept", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *idempotency.Renewer, s *idempotencytest.Faulty) {
			long := r.Hold(mustReserve(t, s, "long", "r1.a", time.Hour), notLost(t))
			synctest.Wait()
			short := r.Hold(mustReserve(t, s, "short", "r1.b", 3*time.Second), notLost(t))
			defer long.Stop()
			defer short.Stop()
			time.Sleep(time.Minute)
			mustBeHeld(t, s, "short")
		})
	})

	t.Run("ten thousand claims are renewed by one goroutine's schedule", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *idempotency.Renewer, s *idempotencytest.Faulty) {
			var holds []*idempotency.Hold
			for i := range 10_000 {
				id := fmt.Sprint(i)
				holds = append(holds, r.Hold(mustReserve(t, s, id, "r1."+id, 30*time.Second), notLost(t)))
			}
			s.Slow(10 * time.Millisecond) // a hundred seconds for one after the other
			time.Sleep(2 * time.Minute)
			s.Slow(0)
			for i, h := range holds {
				mustBeHeld(t, s, fmt.Sprint(i))
				h.Stop()
			}
		})
	})
}
