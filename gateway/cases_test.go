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
	"github.com/oncegate/oncegate/message"
)

func TestPipelineCases(t *testing.T) {
	t.Parallel()

	t.Run("B14 parallel deliveries on two replicas: check and set are one step", func(t *testing.T) {
		t.Parallel()
		store := idempotency.NewMemory(time.Now)
		a, b := newReplica(t, store), newReplica(t, store)
		agent := &runner{}
		const rounds = 100
		for round := range rounds {
			var wg sync.WaitGroup
			for i := range 50 {
				r := a
				if i%2 == 1 {
					r = b
				}
				wg.Go(func() {
					if _, err := r.Process(t.Context(), msg(fmt.Sprint(round)), policy(agent)); err != nil {
						t.Errorf("Process = %v", err)
					}
				})
			}
			wg.Wait()
		}
		if n := agent.runs.Load(); n != rounds {
			t.Errorf("%d runs, want %d", n, rounds)
		}
	})

	t.Run("B15 between the run's end and its record a second delivery sees in flight, never free", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{}
			paused := &pausedRecord{Store: r.store, reached: make(chan struct{}), resume: make(chan struct{})}
			a := newReplica(t, paused)
			go func() { mustProcess(t, a, msg("m"), policy(agent), message.New) }()
			<-paused.reached
			mustProcess(t, r, msg("m"), policy(agent), message.InFlight)
			close(paused.resume)
			synctest.Wait()
			mustProcess(t, r, msg("m"), policy(agent), message.Processed)
			if n := agent.runs.Load(); n != 1 {
				t.Errorf("%d runs, want 1", n)
			}
		})
	})

	t.Run("B20 a transient failure frees the message: the redelivery runs and is recorded", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{run: func(_ context.Context, _ message.Turn, n int) (message.Outcome, error) {
				if n == 1 {
					return message.Outcome{}, errors.New("model overloaded")
				}
				return message.Outcome{}, nil
			}}
			got, err := r.Process(t.Context(), msg("m-1"), policy(agent))
			if !errors.Is(err, message.ErrRun) || got.State != message.New {
				t.Fatalf("first delivery = %s, %v; want new and ErrRun", got.State, err)
			}
			mustProcess(t, r, msg("m-1"), policy(agent), message.New)
			mustProcess(t, r, msg("m-1"), policy(agent), message.Processed)
			if n := agent.runs.Load(); n != 2 {
				t.Errorf("%d runs, want 2", n)
			}
		})
	})

	t.Run("B25 the same text under two ids is two messages", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{}
			a, b := msg("a"), msg("b")
			a.Text, b.Text = "how is it going?", "how is it going?"
			a.Fingerprint, b.Fingerprint = message.Fingerprint{7}, message.Fingerprint{7}
			mustProcess(t, r, a, policy(agent), message.New)
			time.Sleep(time.Second)
			mustProcess(t, r, b, policy(agent), message.New)
		})
	})

	t.Run("B28 a claim whose owner vanished is free after its lease, not after the record window", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			key := idempotency.EncodeKey(msg("m").Key)
			if _, err := r.store.Reserve(t.Context(), key, idempotency.Request{Token: "dead.owner", Lease: 15 * time.Minute, TTL: 24 * time.Hour}); err != nil {
				t.Fatal(err)
			}
			mustProcess(t, r, msg("m"), policy(&runner{}), message.InFlight)
			time.Sleep(15*time.Minute + time.Second)
			mustProcess(t, r, msg("m"), policy(&runner{}), message.New)
		})
	})

	t.Run("B33 other content under a known key is a duplicate, counted and not run", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{}
			a, b := msg("job-1"), msg("job-1")
			a.Fingerprint, b.Fingerprint = message.Fingerprint{1}, message.Fingerprint{2}
			mustProcess(t, r, a, policy(agent), message.New)
			if got := mustProcess(t, r, b, policy(agent), message.Processed); !got.Mismatch {
				t.Error("the receipt does not tell that the content differs")
			}
			if n, m := agent.runs.Load(), r.counter(t, "gateway_fingerprint_mismatches_total", ""); n != 1 || m != 1 {
				t.Errorf("%d runs and %v mismatches, want 1 and 1", n, m)
			}
		})
	})

	t.Run("B42 a turn whose context ended gives its claim back or records it all the same", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			stubborn := &runner{run: func(ctx context.Context, turn message.Turn, _ int) (message.Outcome, error) {
				<-ctx.Done() // of the turn, by its timeout
				if turn.Message.Key.ID == "released" {
					return message.Outcome{}, ctx.Err()
				}
				return message.Outcome{Reply: "done all the same"}, nil
			}}
			ctx, hangUp := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, hangUp)
			begun := time.Now()
			if _, err := r.Process(ctx, msg("released"), policy(stubborn)); !errors.Is(err, message.ErrTimeout) {
				t.Errorf("Process = %v, want ErrTimeout", err)
			}
			assertState(t, r.store, "released", idempotency.Won)
			if _, err := r.Process(ctx, msg("recorded"), policy(stubborn)); err != nil {
				t.Errorf("Process = %v", err)
			}
			assertState(t, r.store, "recorded", idempotency.Recorded)
			if took := time.Since(begun); took > 2*5*time.Minute+time.Second {
				t.Errorf("both took %s, want no time beyond their turns", took)
			}
		}, func(c *gateway.PipelineConfig) { c.TurnTimeout = 5 * time.Minute })
	})

	t.Run("B36 a client that hangs up stops neither the run nor its record", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			ctx, hangUp := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, hangUp)
			got, err := r.Process(ctx, msg("m"), policy(slow(3*time.Second)))
			if err != nil || got.State != message.New || ctx.Err() == nil {
				t.Fatalf("Process = %s, %v", got.State, err)
			}
			mustProcess(t, r, msg("m"), policy(&runner{}), message.Processed)
		})
	})
}

// pausedRecord stops in Record until it is resumed.
type pausedRecord struct {
	idempotency.Store
	reached, resume chan struct{}
}

func (p *pausedRecord) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	close(p.reached)
	<-p.resume
	return p.Store.Record(ctx, c, outcome)
}
