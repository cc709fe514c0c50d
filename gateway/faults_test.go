package gateway_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
)

// rewired is a store with some of its calls replaced.
type rewired struct {
	idempotency.Store
	reserve  func(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error)
	renew    func(ctx context.Context, c idempotency.Claim) error
	record   func(ctx context.Context, c idempotency.Claim, outcome []byte) error
	release  func(ctx context.Context, c idempotency.Claim) error
	releases atomic.Int32
}

func (s *rewired) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	if s.reserve != nil {
		return s.reserve(ctx, key, req)
	}
	return s.Store.Reserve(ctx, key, req)
}

func (s *rewired) Renew(ctx context.Context, c idempotency.Claim) error {
	if s.renew != nil {
		return s.renew(ctx, c)
	}
	return s.Store.Renew(ctx, c)
}

func (s *rewired) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	if s.record != nil {
		return s.record(ctx, c, outcome)
	}
	return s.Store.Record(ctx, c, outcome)
}

func (s *rewired) Release(ctx context.Context, c idempotency.Claim) error {
	s.releases.Add(1)
	if s.release != nil {
		return s.release(ctx, c)
	}
	return s.Store.Release(ctx, c)
}

// slowCall passes after d of time, or fails when its context ends first.
func slowCall(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withStore runs test with a store over the replica's own, whose calls the
// test replaces before it uses them.
func withStore(t *testing.T, test func(*testing.T, *replica, *rewired), options ...option) {
	s := &rewired{}
	inBubble(t, func(t *testing.T, r *replica) { test(t, r, s) }, append(options, func(c *gateway.PipelineConfig) {
		s.Store, c.Store = c.Store, s
	})...)
}

func TestStoreFaults(t *testing.T) {
	t.Parallel()

	t.Run("a run that cannot be recorded is answered and never released", func(t *testing.T) {
		withStore(t, func(t *testing.T, r *replica, s *rewired) {
			s.record = func(context.Context, idempotency.Claim, []byte) error { return errors.New("disk I/O error") }
			agent := &runner{}
			if got := mustProcess(t, r, msg("m"), policy(agent), message.New); got.Outcome.Reply != "text of m" {
				t.Errorf("answer = %+v", got.Outcome)
			}
			mustProcess(t, r, msg("m"), policy(agent), message.InFlight)
			if n, released := agent.runs.Load(), s.releases.Load(); n != 1 || released != 0 {
				t.Errorf("%d runs and %d releases, want 1 and none", n, released)
			}
			if got := r.counter(t, "gateway_unrecorded_runs_total", ""); got != 1 {
				t.Errorf("%v unrecorded runs counted, want 1", got)
			}
		})
	})

	t.Run("the run's time is taken once off a window from the first delivery, also after the lease is over", func(t *testing.T) {
		withStore(t, func(t *testing.T, r *replica, s *rewired) {
			s.renew = func(context.Context, idempotency.Claim) error { return nil } // in word only
			p := policy(slow(2 * time.Minute))
			p.Lease, p.TTL, p.FromFirst = time.Second, 5*time.Minute, true
			mustProcess(t, r, msg("m"), p, message.New)
			time.Sleep(3*time.Minute - time.Second)
			mustProcess(t, r, msg("m"), p, message.Processed)
			time.Sleep(2 * time.Second)
			assertState(t, s, "m", idempotency.Won)
		})
	})

	t.Run("a claim that is won after the drain's time is given back", func(t *testing.T) {
		withStore(t, func(t *testing.T, r *replica, s *rewired) {
			s.reserve = func(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
				res, err := s.Store.Reserve(ctx, key, req)
				if err == nil {
					err = slowCall(ctx, 3*time.Second) // an answer that is lost leaves the claim
				}
				return res, err
			}
			agent := &runner{}
			var err error
			go func() { _, err = r.Process(t.Context(), msg("m"), policy(agent)) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := r.Drain(ctx); err != nil {
				t.Errorf("Drain = %v", err)
			}
			synctest.Wait()
			if !errors.Is(err, message.ErrDraining) || agent.runs.Load() != 0 {
				t.Errorf("Process = %v after %d runs, want ErrDraining and none", err, agent.runs.Load())
			}
			assertState(t, s.Store, "m", idempotency.Won)
		})
	})

	t.Run("the drain waits for a release behind a file that another process has locked", func(t *testing.T) {
		withStore(t, func(t *testing.T, r *replica, s *rewired) {
			s.release = func(ctx context.Context, c idempotency.Claim) error {
				return errors.Join(slowCall(ctx, 6*time.Second), s.Store.Release(ctx, c))
			}
			go func() { _, _ = r.Process(t.Context(), msg("m"), policy(slow(time.Hour))) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := r.Drain(ctx); err != nil {
				t.Errorf("Drain = %v", err)
			}
			assertState(t, s.Store, "m", idempotency.Won)
		})
	})

	t.Run("an unreadable stored outcome leaves a duplicate a duplicate", func(t *testing.T) {
		withStore(t, func(t *testing.T, r *replica, s *rewired) {
			s.record = func(ctx context.Context, c idempotency.Claim, _ []byte) error {
				return s.Store.Record(ctx, c, []byte("{cut"))
			}
			agent := &runner{}
			mustProcess(t, r, msg("m"), policy(agent), message.New)
			if got := mustProcess(t, r, msg("m"), policy(agent), message.Processed); got.Outcome != (message.Outcome{Omitted: true}) {
				t.Errorf("outcome = %+v, want it omitted", got.Outcome)
			}
			if n := agent.runs.Load(); n != 1 {
				t.Errorf("%d runs, want 1", n)
			}
		})
	})

	t.Run("the first reserve is not cut off by a client that is gone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			ctx, hangUp := context.WithCancel(t.Context())
			hangUp()
			if got, err := r.Process(ctx, msg("m"), policy(&runner{})); err != nil || got.State != message.New {
				t.Fatalf("Process = %s, %v; want it claimed and run", got.State, err)
			}
			mustProcess(t, r, msg("m"), policy(&runner{}), message.Processed)
		})
	})

	t.Run("a waiting duplicate whose client leaves stops waiting", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Minute))
			p.OnDuplicate, p.WaitTimeout = message.Wait, time.Hour
			go func() { mustProcess(t, r, msg("m"), p, message.New) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			start := time.Now()
			got, err := r.Process(ctx, msg("m"), p)
			if waited := time.Since(start); err != nil || got.State != message.InFlight || waited != 2*time.Second {
				t.Errorf("Process = %s, %v after %s; want in flight after 2s", got.State, err, waited)
			}
			time.Sleep(time.Minute)
		})
	})
}

// brokenLocks panics where nothing recovers inside the pipeline.
type brokenLocks struct{}

func (brokenLocks) Acquire(context.Context, string) (*turnlock.Lease, error) { panic("broken") }

func TestAbandonedRuns(t *testing.T) {
	t.Parallel()
	p := policy(&runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) {
		runtime.Goexit()
		return message.Outcome{}, nil
	}})
	p.Lease = 2 * time.Second
	m := msg("m")
	m.Session = "s"

	// abandon processes m in a goroutine that does not get to the end of it.
	abandon := func(t *testing.T, r *replica) {
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			defer func() { _ = recover() }()
			_, _ = r.Process(t.Context(), m, p)
			t.Error("Process returned")
		}()
		<-gone
	}
	t.Run("a panic outside the runner ends the claim with its lease", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			abandon(t, r)
			time.Sleep(3 * p.Lease)
			assertState(t, r.store, "m", idempotency.Won)
		}, func(c *gateway.PipelineConfig) { c.Locks = brokenLocks{} })
	})

	t.Run("a runner that exits its goroutine keeps neither claim nor lock nor slot", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			abandon(t, r)
			next := msg("next")
			next.Session = m.Session
			start := time.Now()
			mustProcess(t, r, next, policy(&runner{}), message.New)
			if waited := time.Since(start); waited != 0 {
				t.Errorf("the session's next turn waited %s", waited)
			}
			time.Sleep(3 * p.Lease)
			assertState(t, r.store, "m", idempotency.Won)
		}, func(c *gateway.PipelineConfig) { c.MaxConcurrentTurns = 1 })
	})
}
