package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
)

// runner is an agent made of a function that counts its runs.
type runner struct {
	runs atomic.Int32
	run  func(ctx context.Context, t message.Turn, n int) (message.Outcome, error)
}

func (r *runner) Run(ctx context.Context, t message.Turn) (message.Outcome, error) {
	n := int(r.runs.Add(1))
	if r.run == nil {
		return message.Outcome{Action: message.ActionAgent, Reply: t.Message.Text}, nil
	}
	return r.run(ctx, t, n)
}

// slow runs for d, or until its context ends.
func slow(d time.Duration) *runner {
	return &runner{run: func(ctx context.Context, t message.Turn, _ int) (message.Outcome, error) {
		select {
		case <-time.After(d):
			return message.Outcome{Reply: t.Message.Text}, nil
		case <-ctx.Done():
			return message.Outcome{}, ctx.Err()
		}
	}}
}

// replica is one pipeline over a store that other replicas may share.
type replica struct {
	*gateway.Pipeline
	store   *idempotencytest.Faulty
	metrics *prometheus.Registry
}

type option func(*gateway.PipelineConfig)

func newReplica(t *testing.T, store idempotency.Store, options ...option) *replica {
	r := &replica{store: &idempotencytest.Faulty{Store: store}, metrics: prometheus.NewRegistry()}
	cfg := gateway.PipelineConfig{
		Store:              r.store,
		Locks:              turnlock.NewLocal(time.Now, turnlock.DefaultMaxWait),
		Replica:            idempotency.NewReplicaID(),
		MaxConcurrentTurns: 8,
		QueueWait:          5 * time.Second,
		TurnTimeout:        10 * time.Minute,
		MaxStoredReply:     64,
		Metrics:            gateway.NewMetrics(r.metrics),
		Log:                slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, o := range options {
		o(&cfg)
	}
	r.Pipeline = gateway.NewPipeline(cfg)
	return r
}

// counter returns the value of a counter, or of its series with label value.
func (r *replica) counter(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, label)
	return 0
}

// gauge returns the value of a gauge.
func (r *replica) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// inBubble runs test with the replica's renewing under way.
func inBubble(t *testing.T, test func(*testing.T, *replica), options ...option) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, idempotency.NewMemory(time.Now), options...)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		test(t, r)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func msg(id string) message.Message {
	return message.Message{Key: message.Key{Platform: "test", Channel: "room", ID: id}, Text: "text of " + id}
}

func policy(r message.Runner) message.Policy {
	return message.Policy{Route: "test:room", Runner: r, Lease: 15 * time.Minute, TTL: 24 * time.Hour, OnDuplicate: message.Conflict, WaitTimeout: 10 * time.Second}
}

func mustProcess(t *testing.T, r *replica, m message.Message, p message.Policy, want message.State) message.Receipt {
	t.Helper()
	got, err := r.Process(t.Context(), m, p)
	if err != nil || got.State != want {
		t.Fatalf("Process(%s) = %s, %v; want %s", m.Key.ID, got.State, err, want)
	}
	return got
}

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

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("running turns finish, new deliveries are refused without a claim", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := slow(10 * time.Second)
			go func() { mustProcess(t, r, msg("m"), policy(agent), message.New) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			drained := make(chan error)
			go func() { drained <- r.Drain(ctx) }()
			synctest.Wait()
			calls := r.store.Calls()
			if _, err := r.Process(t.Context(), msg("late"), policy(agent)); !errors.Is(err, message.ErrDraining) || r.store.Calls() != calls {
				t.Errorf("late delivery = %v with %d store calls, want ErrDraining and none", err, r.store.Calls()-calls)
			}
			if err := <-drained; err != nil {
				t.Errorf("Drain = %v", err)
			}
			assertState(t, r.store, "m", idempotency.Recorded)
		})
	})

	t.Run("a turn over the drain's time is stopped and its claim is free at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			var err error
			go func() { _, err = r.Process(t.Context(), msg("m"), policy(slow(time.Hour))) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			start := time.Now()
			if err := r.Drain(ctx); err != nil {
				t.Errorf("Drain = %v", err)
			}
			if took := time.Since(start); took != 15*time.Second {
				t.Errorf("drain took %s, want its 15s", took)
			}
			synctest.Wait()
			if !errors.Is(err, message.ErrDraining) {
				t.Errorf("the stopped delivery got %v, want ErrDraining", err)
			}
			assertState(t, r.store, "m", idempotency.Won)
		})
	})

	t.Run("a waiting duplicate does not hold up the drain", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Second))
			p.OnDuplicate, p.WaitTimeout = message.Wait, time.Hour
			key := idempotency.EncodeKey(msg("m").Key)
			if _, err := r.store.Reserve(t.Context(), key, idempotency.Request{Token: "other.owner", Lease: time.Hour, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
			go func() { mustProcess(t, r, msg("m"), p, message.InFlight) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			start := time.Now()
			if err := r.Drain(ctx); err != nil || time.Since(start) != 0 {
				t.Errorf("Drain = %v after %s, want at once", err, time.Since(start))
			}
		})
	})

	t.Run("a run that ignores its end is reported", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			stuck := make(chan struct{})
			agent := &runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) {
				<-stuck
				return message.Outcome{}, nil
			}}
			go func() { _, _ = r.Process(t.Context(), msg("m"), policy(agent)) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := r.Drain(ctx); err == nil {
				t.Error("Drain = nil although a run goes on")
			}
			close(stuck)
		})
	})
}

func assertState(t *testing.T, s idempotency.Store, id string, want idempotency.State) {
	t.Helper()
	res, err := s.Reserve(t.Context(), idempotency.EncodeKey(msg(id).Key), idempotency.Request{Token: "observer", Lease: time.Second, TTL: time.Second})
	if err != nil || res.State != want {
		t.Errorf("%s is in state %d, %v; want %d", id, res.State, err, want)
	}
}
