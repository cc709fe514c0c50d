package idempotency_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

// TestRecovery is about the moment in which a store comes back: whatever
// happens around it, a finished message stays finished and a free one free.
func TestRecovery(t *testing.T) {
	t.Parallel()
	const redis = idempotency.BackendRedis
	record := func(t *testing.T, o *outage, c idempotency.Claim, outcome string) {
		t.Helper()
		if err := o.Record(t.Context(), c, []byte(outcome)); err != nil {
			t.Errorf("Record(%s) = %v", c.Key, err)
		}
	}
	release := func(t *testing.T, o *outage, c idempotency.Claim) {
		_ = o.Release(t.Context(), c) // whether the store answers is the test's fault
	}
	serves := func(t *testing.T, o *outage, want string) {
		t.Helper()
		if got := o.Backend(); got != want {
			t.Fatalf("claims go to %s, want %s; owner %+v", got, want, o.owner())
		}
	}

	t.Run("Redis comes back while a record is on its way into the local store", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			o.redis.Fail(errRefused)
			o.sqlite.Slow(3 * time.Second)
			recorded := make(chan struct{})
			go func() {
				defer close(recorded)
				record(t, o, c, "answer")
			}()
			time.Sleep(100 * time.Millisecond)
			o.redis.Fail(nil)
			<-recorded
			probed()
			serves(t, o, redis)
			if res := mustMeet(t, o.redis, "m", "r2.b", idempotency.Recorded); string(res.Outcome) != "answer" {
				t.Errorf("outcome in Redis = %q", res.Outcome)
			}
		})
	})

	t.Run("a local store that breaks after its record does not keep Redis away", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			record(t, o, mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim, "answer")
			o.sqlite.Fail(errors.New("disk I/O error"))
			o.redis.Fail(nil)
			probed()
			serves(t, o, redis)
			mustMeet(t, o.redis, "m", "r2.b", idempotency.Recorded)
		})
	})

	t.Run("recovery ends under load and loses none of it", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			o.sqlite.Slow(5 * time.Millisecond)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			sent := make([]int, 32)
			for i := range sent {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						id := fmt.Sprintf("%d-%d", i, sent[i])
						record(t, o, mustMeet(t, o, id, "r1."+id, idempotency.Won).Claim, id)
						sent[i]++
						time.Sleep(20 * time.Millisecond)
					}
				})
			}
			time.Sleep(10 * time.Second)
			o.redis.Fail(nil)
			o.redis.Slow(2 * time.Millisecond)
			time.Sleep(5 * time.Second)
			serves(t, o, redis)
			close(stop)
			wg.Wait()
			o.redis.Slow(0)
			for i, n := range sent {
				if n < 100 {
					t.Errorf("sender %d sent %d messages, want hundreds", i, n)
				}
				for k := range n {
					mustMeet(t, o.redis, fmt.Sprintf("%d-%d", i, k), "r2.x", idempotency.Recorded)
				}
			}
			if n := o.slips.Load(); n != 0 {
				t.Errorf("%d slipped duplicates, want none", n)
			}
		})
	})

	t.Run("the owner stays until everything has been carried", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			record(t, o, mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim, "")
			o.redis.FailOnly("settle", errors.New("MISCONF"))
			time.Sleep(10 * time.Second)
			if o.owner().ID == "" || o.Backend() == redis {
				t.Errorf("a server that takes no record serves as %s with owner %+v", o.Backend(), o.owner())
			}
			o.redis.Fail(nil)
			probed()
			serves(t, o, redis)
			mustMeet(t, o.redis, "m", "r2.b", idempotency.Recorded)
		})
	})

	t.Run("a message over the outage's bound is counted", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			for i := range 100_010 {
				id := fmt.Sprint(i)
				mustMeet(t, o, id, "r1."+id, idempotency.Won)
			}
			if n := o.uncarried.Load(); n != 10 {
				t.Errorf("%d claims counted as not to be carried, want 10", n)
			}
		})
	})

	t.Run("a record is carried for what is left of its window", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			reserve := func(token string) idempotency.Reservation {
				res, err := o.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: token, Lease: time.Minute, TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			c := reserve("r1.a").Claim
			time.Sleep(30 * time.Second)
			record(t, o, c, "")
			time.Sleep(40 * time.Second)
			o.redis.Fail(nil)
			probed()
			serves(t, o, redis)
			if got := reserve("r2.b").State; got != idempotency.Recorded {
				t.Errorf("20 s before the window's end: state %d, want recorded", got)
			}
			time.Sleep(20 * time.Second)
			if got := reserve("r2.c").State; got != idempotency.Won {
				t.Errorf("after the window: state %d, want won", got)
			}
		})
	})

	t.Run("a record whose window ended during the outage is no slip", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			record(t, o, mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim, "")
			time.Sleep(2 * time.Hour)
			o.redis.Fail(nil)
			probed()
			serves(t, o, redis)
			if n := o.slips.Load(); n != 0 {
				t.Errorf("%d slips counted", n)
			}
			mustMeet(t, o, "m", "r2.b", idempotency.Won)
		})
	})

	t.Run("an answer lost while carrying a running claim leaves no phantom", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			mustMeet(t, o, "first", "r1.x", idempotency.Won)
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim // Redis has not been asked for it
			o.redis.FailOnlyAfter("reserve", errors.New("connection reset"))
			probed()
			release(t, o, c) // the run failed
			o.redis.Fail(nil)
			probed()
			serves(t, o, redis)
			mustMeet(t, o, "m", "r2.b", idempotency.Won)
		})
	})

	t.Run("a claim in doubt in both stores is given back in both", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.FailAfter(errRefused)
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim // perhaps in Redis, surely in SQLite
			o.sqlite.Fail(errors.New("disk I/O error"))
			release(t, o, c)
			o.sqlite.Fail(nil)
			probed()
			serves(t, o, idempotency.BackendSQLite)
			free := mustMeet(t, o, "m", "r2.b", idempotency.Won).Claim
			release(t, o, free)
			o.redis.Fail(nil)
			probed()
			serves(t, o, redis)
			mustMeet(t, o, "m", "r2.c", idempotency.Won)
		})
	})

	t.Run("a record that no store can take is kept until one can", func(t *testing.T) {
		inOutage(t, idempotency.Closed, redis, func(t *testing.T, o *outage) {
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			o.redis.FailOnly("record", errRefused)
			record(t, o, c, "answer") // taken by the store behind it
			o.redis.Fail(nil)
			probed()
			if res := mustMeet(t, o, "m", "r2.b", idempotency.Recorded); string(res.Outcome) != "answer" {
				t.Errorf("outcome = %q", res.Outcome)
			}
		})
	})

	t.Run("a run that lost its message to another replica during the outage is a slip", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			o.redis.Fail(nil)
			mustMeet(t, o.redis, "m", "r2.b", idempotency.Won)
			probed()
			serves(t, o, redis)
			if n := o.slips.Load(); n != 1 {
				t.Errorf("%d slips, want 1", n)
			}
			record(t, o, c, "") // ends where it was made
		})
	})

	t.Run("a claim made in the last moment of the outage is in Redis when that serves", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			mustMeet(t, o, "first", "r1.a", idempotency.Won)
			o.sqlite.Slow(300 * time.Millisecond)
			time.Sleep(900 * time.Millisecond)
			go func() { mustMeet(t, o, "last", "r1.b", idempotency.Won) }()
			synctest.Wait()
			o.redis.Fail(nil) // found by the probe at 1 s, which waits for the claim under way
			time.Sleep(700 * time.Millisecond)
			serves(t, o, redis)
			mustMeet(t, o.redis, "last", "r2.c", idempotency.InFlight)
		})
	})

	t.Run("a slow local store does not keep Redis away", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			mustMeet(t, o, "first", "r1.a", idempotency.Won)
			o.sqlite.Slow(8 * time.Second)
			go func() { mustMeet(t, o, "stuck", "r1.b", idempotency.Won) }()
			synctest.Wait()
			o.redis.Fail(nil)
			time.Sleep(1700 * time.Millisecond) // the probe shuts the gate behind the stuck claim, for half a second
			serves(t, o, redis)
			mustMeet(t, o, "next", "r1.c", idempotency.Won)
			time.Sleep(20 * time.Second)
			serves(t, o, redis)
			mustMeet(t, o.redis, "stuck", "r2.d", idempotency.InFlight)
		})
	})

	t.Run("a key that holds something foreign fails alone", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.FailOnly("reserve", fmt.Errorf("reserve: %w", idempotency.ErrForeign))
			_, err := o.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: "r1.a", Lease: time.Minute, TTL: time.Hour})
			if !errors.Is(err, idempotency.ErrForeign) || o.Backend() != redis || o.opens.Load() != 0 {
				t.Errorf("Reserve = %v, serving from %s after %d fail-open claims; want the error and Redis", err, o.Backend(), o.opens.Load())
			}
		})
	})

	t.Run("without a fault nothing is remembered or asked twice", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			before := o.sqlite.Calls()
			for i := range 100 {
				id := fmt.Sprint(i)
				record(t, o, mustMeet(t, o, id, "r1."+id, idempotency.Won).Claim, "")
			}
			if n := o.sqlite.Calls() - before; n != 0 {
				t.Errorf("%d calls to the store behind a healthy one", n)
			}
		})
	})
}

func TestSQLiteAwayAndClosedRefuses(t *testing.T) {
	inOutage(t, idempotency.Closed, idempotency.BackendSQLite, func(t *testing.T, o *outage) {
		o.sqlite.Fail(errors.New("disk I/O error"))
		_, err := o.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: "r1.a", Lease: time.Minute, TTL: time.Hour})
		if !errors.Is(err, idempotency.ErrUnavailable) || o.Backend() != "none" {
			t.Errorf("Reserve = %v, serving from %s; want ErrUnavailable and none", err, o.Backend())
		}
		if got := o.owner(); got.Reason == "" || got.State != "cold" {
			t.Errorf("owner = %+v", got)
		}
	})
}
