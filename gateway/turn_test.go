package gateway_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
)

// inSession returns a message of the session s.
func inSession(id string) message.Message {
	m := msg(id)
	m.Session = "s"
	return m
}

func oneSlot(c *gateway.PipelineConfig) { c.MaxConcurrentTurns = 1 }

func TestTurn(t *testing.T) {
	t.Parallel()

	t.Run("the session's next turn starts after the record of the one before", func(t *testing.T) {
		withStore(t, func(t *testing.T, r *replica, s *rewired) {
			reached, resume := make(chan struct{}), make(chan struct{})
			s.record = func(ctx context.Context, c idempotency.Claim, outcome []byte) error {
				s.record = nil
				close(reached)
				<-resume
				return s.Store.Record(ctx, c, outcome)
			}
			var fences []uint64
			agent := &runner{run: func(_ context.Context, turn message.Turn, _ int) (message.Outcome, error) {
				fences = append(fences, turn.Fence)
				return message.Outcome{}, nil
			}}
			go func() { mustProcess(t, r, inSession("first"), policy(agent), message.New) }()
			<-reached
			go func() { mustProcess(t, r, inSession("second"), policy(agent), message.New) }()
			synctest.Wait()
			if n := agent.runs.Load(); n != 1 {
				t.Errorf("%d turns while the first is not recorded, want 1", n)
			}
			close(resume)
			synctest.Wait()
			if len(fences) != 2 || fences[1] <= fences[0] || fences[0] == 0 {
				t.Errorf("fences %v, want two that rise", fences)
			}
		})
	})

	t.Run("a turn that got no slot gives the session's lock back", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			go func() { mustProcess(t, r, msg("long"), policy(slow(time.Minute)), message.New) }()
			synctest.Wait()
			if _, err := r.Process(t.Context(), inSession("a"), policy(&runner{})); !errors.Is(err, message.ErrBusy) {
				t.Fatalf("Process = %v, want ErrBusy", err)
			}
			time.Sleep(time.Minute)
			start := time.Now()
			mustProcess(t, r, inSession("a"), policy(&runner{}), message.New)
			if waited := time.Since(start); waited != 0 {
				t.Errorf("waited %s for a lock that nobody should hold", waited)
			}
		}, oneSlot)
	})

	t.Run("a session lock that does not come free in time is busy", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			go func() { mustProcess(t, r, inSession("a"), policy(slow(time.Minute)), message.New) }()
			synctest.Wait()
			if _, err := r.Process(t.Context(), inSession("b"), policy(&runner{})); !errors.Is(err, message.ErrBusy) {
				t.Errorf("Process = %v, want ErrBusy", err)
			}
			time.Sleep(time.Minute)
			mustProcess(t, r, inSession("b"), policy(&runner{}), message.New)
		}, func(c *gateway.PipelineConfig) { c.Locks = turnlock.NewLocal(time.Now, time.Second) })
	})

	t.Run("the gauges count who runs and who waits, and come back to zero", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			gauges := func(running, waiting float64) {
				t.Helper()
				if got := r.gauge(t, "gateway_turns_running"); got != running {
					t.Errorf("%v turns running, want %v", got, running)
				}
				if got := r.gauge(t, "gateway_turns_waiting"); got != waiting {
					t.Errorf("%v turns waiting, want %v", got, waiting)
				}
			}
			go func() { mustProcess(t, r, msg("a"), policy(slow(3*time.Second)), message.New) }()
			synctest.Wait()
			go func() { mustProcess(t, r, msg("b"), policy(slow(10*time.Second)), message.New) }()
			synctest.Wait()
			gauges(1, 1)
			time.Sleep(4 * time.Second)
			gauges(1, 0)
			if _, err := r.Process(t.Context(), msg("c"), policy(&runner{})); !errors.Is(err, message.ErrBusy) {
				t.Errorf("Process = %v, want ErrBusy", err)
			}
			time.Sleep(10 * time.Second)
			if _, err := r.Process(t.Context(), msg("d"), policy(&runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) {
				panic("boom")
			}})); err == nil {
				t.Error("a panic without an error")
			}
			gauges(0, 0)
		}, oneSlot)
	})

	t.Run("the request's values reach the runner, its cancellation does not", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			type trace struct{}
			ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), trace{}, "t-1"))
			agent := &runner{run: func(ctx context.Context, _ message.Turn, _ int) (message.Outcome, error) {
				hangUp()
				synctest.Wait()
				if got := ctx.Value(trace{}); got != "t-1" || ctx.Err() != nil {
					t.Errorf("in the run: value %v, %v; want t-1 and no end", got, ctx.Err())
				}
				return message.Outcome{}, nil
			}}
			if got, err := r.Process(ctx, msg("m"), policy(agent)); err != nil || got.State != message.New {
				t.Errorf("Process = %s, %v", got.State, err)
			}
		})
	})
}
