package gateway_test

import (
	"context"
	"log/slog"
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
