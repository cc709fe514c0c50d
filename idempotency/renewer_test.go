package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
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
		r := idempotency.NewRenewer(idempotency.RenewerConfig{Store: store, Now: time.Now, Log: logger(t)})
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

	t.Run("a claim whose lease ends without an answered renewal is lost", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *idempotency.Renewer, s *idempotencytest.Faulty) {
			lost := make(chan error, 2)
			begun := time.Now()
			h := r.Hold(mustReserve(t, s, "m", "r1.a", 30*time.Second), func(err error) { lost <- err })
			s.Fail(errors.New("connection refused"))
			err := <-lost
			if !errors.Is(err, idempotency.ErrNotOwner) || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("lost(%v), want ErrNotOwner and why", err)
			}
			if held := time.Since(begun); held < 30*time.Second || held > 32*time.Second {
				t.Errorf("reported after %s, want when the lease of 30s was over", held)
			}
			time.Sleep(time.Minute)
			h.Stop()
			if len(lost) > 0 {
				t.Error("reported twice")
			}
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
			if n := runtime.NumGoroutine(); n > 1000 { // those of other tests count too
				t.Errorf("%d goroutines keep ten thousand claims", n)
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

func TestConfirm(t *testing.T) {
	t.Parallel()
	away := errors.New("connection refused")
	for _, c := range []struct {
		name     string
		doubt    bool
		policy   string
		fault    error // of the store
		stolen   bool  // another owner has the claim
		want     error
		wantLost bool
	}{
		{name: "a claim that is not in doubt is not asked for", fault: away},
		{name: "one in doubt is renewed", doubt: true},
		{name: "one that somebody else has is lost", doubt: true, stolen: true, want: idempotency.ErrNotOwner, wantLost: true},
		{name: "open: a store that is away does not stop the run", doubt: true, policy: idempotency.Open, fault: away},
		{name: "closed: it does", doubt: true, policy: idempotency.Closed, fault: away, want: idempotency.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &idempotencytest.Faulty{Store: idempotency.NewMemory(time.Now)}
				r := idempotency.NewRenewer(idempotency.RenewerConfig{
					Store: store, InDoubt: func(idempotency.Claim) bool { return c.doubt }, Now: time.Now, Log: logger(t),
				})
				claim := mustReserve(t, store, "m", "r1.a", 30*time.Second)
				claim.OnUnavailable = c.policy
				lost := 0
				h := r.Hold(claim, func(error) { lost++ })
				if c.stolen {
					if err := store.Release(t.Context(), claim); err != nil {
						t.Fatal(err)
					}
					mustReserve(t, store, "m", "r2.b", time.Hour)
				}
				time.Sleep(20 * time.Second)
				store.Fail(c.fault)
				if err := h.Confirm(t.Context()); !errors.Is(err, c.want) {
					t.Errorf("Confirm = %v, want %v", err, c.want)
				}
				if (lost == 1) != c.wantLost {
					t.Errorf("reported lost %d times, want %t", lost, c.wantLost)
				}
				store.Fail(nil)
				renewed := c.doubt && c.fault == nil && !c.stolen
				if age := time.Since(h.Stop().Confirmed); (age == 0) != renewed {
					t.Errorf("last confirmed %s ago, renewed: want %t", age, renewed)
				}
			})
		})
	}
}
