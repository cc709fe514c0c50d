package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/message"
)

func TestPipeline(t *testing.T) {
	t.Parallel()

	t.Run("a message runs once and its duplicates get the first answer", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{}
			mustProcess(t, r, msg("m"), policy(agent), message.New)
			for range 3 {
				if got := mustProcess(t, r, msg("m"), policy(agent), message.Processed); got.Outcome.Reply != "text of m" || got.Mismatch {
					t.Errorf("duplicate got %+v", got)
				}
			}
			if n := agent.runs.Load(); n != 1 {
				t.Errorf("%d runs, want 1", n)
			}
			if got := r.counter(t, "gateway_claims_total", "processed"); got != 3 {
				t.Errorf("%v duplicates counted, want 3", got)
			}
		})
	})

	t.Run("a message without identity always runs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{}
			m := msg("")
			for range 2 {
				mustProcess(t, r, m, policy(agent), message.None)
			}
			if n := agent.runs.Load(); n != 2 || r.store.Calls() != 0 {
				t.Errorf("%d runs and %d store calls, want 2 and 0", n, r.store.Calls())
			}
		})
	})

	t.Run("a duplicate in flight is refused with a time to come back", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Minute))
			go func() { mustProcess(t, r, msg("m"), p, message.New) }()
			synctest.Wait()
			got := mustProcess(t, r, msg("m"), p, message.InFlight)
			if got.RetryAfter <= 0 || got.RetryAfter > 5*time.Second {
				t.Errorf("RetryAfter = %s, want a few seconds, not the lease", got.RetryAfter)
			}
			time.Sleep(time.Minute)
		})
	})

	t.Run("wait answers as the first delivery did", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := slow(3 * time.Second)
			p := policy(agent)
			p.OnDuplicate = message.Wait
			go func() { mustProcess(t, r, msg("m"), p, message.New) }()
			synctest.Wait()
			if got := mustProcess(t, r, msg("m"), p, message.Processed); got.Outcome.Reply != "text of m" {
				t.Errorf("reply = %q", got.Outcome.Reply)
			}
			if n := agent.runs.Load(); n != 1 {
				t.Errorf("%d runs, want 1", n)
			}
		})
	})

	t.Run("wait ends in flight after its time", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Minute))
			p.OnDuplicate = message.Wait
			go func() { mustProcess(t, r, msg("m"), p, message.New) }()
			synctest.Wait()
			start := time.Now()
			mustProcess(t, r, msg("m"), p, message.InFlight)
			if waited := time.Since(start); waited != p.WaitTimeout {
				t.Errorf("waited %s, want %s", waited, p.WaitTimeout)
			}
			time.Sleep(time.Minute)
		})
	})

	t.Run("a waiter runs the message itself when the first run fails", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{run: func(_ context.Context, _ message.Turn, n int) (message.Outcome, error) {
				time.Sleep(time.Second)
				if n == 1 {
					return message.Outcome{}, errors.New("model overloaded")
				}
				return message.Outcome{Reply: "second"}, nil
			}}
			p := policy(agent)
			p.OnDuplicate = message.Wait
			var first error
			go func() { _, first = r.Process(t.Context(), msg("m"), p) }()
			synctest.Wait()
			got := mustProcess(t, r, msg("m"), p, message.New)
			synctest.Wait()
			if got.Outcome.Reply != "second" || !errors.Is(first, message.ErrRun) {
				t.Errorf("waiter got %+v after %v", got, first)
			}
		})
	})

	t.Run("turns of one session run one at a time, others beside them", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := slow(10 * time.Second)
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 4 {
				m := msg(fmt.Sprint(i))
				m.Session = fmt.Sprintf("s%d", i%2)
				wg.Go(func() { mustProcess(t, r, m, policy(agent), message.New) })
			}
			wg.Wait()
			if took := time.Since(start); took != 20*time.Second {
				t.Errorf("two sessions of two turns took %s, want 20s", took)
			}
		})
	})

	t.Run("a turn without a free slot gives its claim back as busy", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Minute))
			go func() { mustProcess(t, r, msg("a"), p, message.New) }()
			synctest.Wait()
			if _, err := r.Process(t.Context(), msg("b"), p); !errors.Is(err, message.ErrBusy) {
				t.Fatalf("Process = %v, want ErrBusy", err)
			}
			time.Sleep(time.Minute)
			mustProcess(t, r, msg("b"), p, message.New)
		}, func(c *gateway.PipelineConfig) { c.MaxConcurrentTurns = 1 })
	})

	t.Run("a hot session holds one slot, however many of its messages wait", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Minute))
			var wg sync.WaitGroup
			for i := range 6 {
				m := msg(fmt.Sprint(i))
				m.Session = "hot"
				wg.Go(func() { mustProcess(t, r, m, p, message.New) })
			}
			synctest.Wait()
			mustProcess(t, r, msg("other"), policy(&runner{}), message.New)
			wg.Wait()
		}, func(c *gateway.PipelineConfig) { c.MaxConcurrentTurns = 2 })
	})

	t.Run("a turn over its time is stopped and its message is free", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			if _, err := r.Process(t.Context(), msg("m"), policy(slow(time.Hour))); !errors.Is(err, message.ErrTimeout) {
				t.Fatalf("Process = %v, want ErrTimeout", err)
			}
			mustProcess(t, r, msg("m"), policy(&runner{}), message.New)
		})
	})

	t.Run("a panic is this message's failure alone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) { panic("boom") }}
			got, err := r.Process(t.Context(), msg("m"), policy(agent))
			if err == nil || errors.Is(err, message.ErrRun) || got.State != message.New {
				t.Fatalf("Process = %s, %v; want an internal error of a new message", got.State, err)
			}
			mustProcess(t, r, msg("m"), policy(&runner{}), message.New)
		})
	})

	t.Run("a run is renewed for as long as it takes", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(5 * time.Minute))
			p.Lease = 2 * time.Second
			done := make(chan struct{})
			go func() {
				defer close(done)
				mustProcess(t, r, msg("m"), p, message.New)
			}()
			for range 10 {
				time.Sleep(20 * time.Second)
				mustProcess(t, r, msg("m"), p, message.InFlight)
			}
			<-done
			mustProcess(t, r, msg("m"), p, message.Processed)
		})
	})

	t.Run("a claim lost during the run stops it and drops its result", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			var cause error
			agent := &runner{run: func(ctx context.Context, turn message.Turn, _ int) (message.Outcome, error) {
				claim := idempotency.EncodeKey(turn.Message.Key)
				takeOver(t, r.store, claim)
				<-ctx.Done()
				cause = context.Cause(ctx)
				return message.Outcome{Reply: "too late"}, nil
			}}
			p := policy(agent)
			p.Lease = 2 * time.Second
			mustProcess(t, r, msg("m"), p, message.InFlight)
			if !errors.Is(cause, idempotency.ErrNotOwner) {
				t.Errorf("run ended with cause %v, want ErrNotOwner", cause)
			}
			if got := r.counter(t, "gateway_lost_claims_total", ""); got != 1 {
				t.Errorf("%v lost claims counted, want 1", got)
			}
		})
	})

	t.Run("a reply over the bound is answered whole and replayed as omitted", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			m := msg("m")
			m.Text = string(make([]byte, 65))
			if got := mustProcess(t, r, m, policy(&runner{}), message.New); len(got.Outcome.Reply) != 65 || got.Outcome.Omitted {
				t.Errorf("first answer = %+v", got.Outcome)
			}
			if got := mustProcess(t, r, m, policy(&runner{}), message.Processed); got.Outcome.Reply != "" || !got.Outcome.Omitted {
				t.Errorf("replay = %+v, want it omitted", got.Outcome)
			}
		})
	})

	t.Run("a window counted from the first delivery is shortened by the run", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Minute))
			p.TTL, p.FromFirst = 5*time.Minute, true
			mustProcess(t, r, msg("m"), p, message.New)
			time.Sleep(4*time.Minute - time.Second)
			mustProcess(t, r, msg("m"), p, message.Processed)
			time.Sleep(2 * time.Second)
			mustProcess(t, r, msg("m"), p, message.New)
		})
	})

	t.Run("a store that cannot answer is unavailable, never a duplicate", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			r.store.Fail(errors.New("NOPERM this user has no permissions"))
			agent := &runner{}
			if _, err := r.Process(t.Context(), msg("m"), policy(agent)); !errors.Is(err, message.ErrStoreUnavailable) || agent.runs.Load() != 0 {
				t.Errorf("Process = %v after %d runs, want ErrStoreUnavailable and none", err, agent.runs.Load())
			}
		})
	})
}

// takeOver makes another owner hold the key once its present lease is over.
func takeOver(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	faulty := s.(*idempotencytest.Faulty)
	faulty.Fail(errors.New("unreachable")) // renewals of the present owner get no answer
	time.Sleep(3 * time.Second)
	faulty.Fail(nil)
	res, err := s.Reserve(context.Background(), key, idempotency.Request{Token: "other.owner", Lease: time.Hour, TTL: time.Hour})
	if err != nil || res.State != idempotency.Won {
		t.Errorf("take over %s: state %d, %v", key, res.State, err)
	}
}
