package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// accepting is a policy that acknowledges before it runs.
func accepting(r message.Runner) message.Policy {
	p := policy(r)
	p.OnDuplicate = message.Ack
	p.Accept = &message.Accept{MaxAttempts: 5, OrderWait: 10 * time.Minute, Keep: 7 * 24 * time.Hour}
	return p
}

// fleet is some replicas over one store that know one route.
type fleet struct {
	inbox    *idempotency.Memory
	policy   message.Policy
	replicas []*replica
	stops    []func()
}

// join starts one more replica.
func (f *fleet) join(t *testing.T, options ...option) *replica {
	t.Helper()
	routes := func(cfg *gateway.PipelineConfig) {
		cfg.Store = f.inbox // not behind Faulty, which keeps no messages
		cfg.Routes = func(name string) (message.Policy, bool) { return f.policy, name == f.policy.Route }
	}
	r := newReplica(t, f.inbox, append([]option{routes}, options...)...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	f.replicas = append(f.replicas, r)
	f.stops = append(f.stops, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return r
}

func inFleet(t *testing.T, p message.Policy, test func(*testing.T, *fleet)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{inbox: idempotency.NewMemory(time.Now), policy: p}
		test(t, f)
		for _, stop := range f.stops {
			stop()
		}
	})
}

func accept(t *testing.T, r *replica, m message.Message, p message.Policy) message.Receipt {
	t.Helper()
	got := mustProcess(t, r, m, p, message.New)
	if !got.Accepted || got.Key == "" {
		t.Fatalf("receipt of %s = %+v, want it accepted, with its key", m.Key.ID, got)
	}
	return got
}

func in(session, id string) message.Message {
	m := msg(id)
	m.Session = session
	return m
}

func (f *fleet) entry(t *testing.T, id string) idempotency.Entry {
	t.Helper()
	e, err := f.inbox.Get(t.Context(), idempotency.EncodeKey(msg(id).Key))
	if err != nil {
		t.Fatalf("Get(%s) = %v", id, err)
	}
	return e
}

func (f *fleet) wantState(t *testing.T, want idempotency.State, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if e := f.entry(t, id); e.State != want {
			t.Errorf("%s is in state %d, want %d", id, e.State, want)
		}
	}
}

// abandon leaves a message as an owner does that died in its nth run, and waits
// until its lease is over. reply is the checkpoint.
func (f *fleet) abandon(t *testing.T, n int, reply []byte) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"route": f.policy.Route, "message": msg("m")})
	if err != nil {
		t.Fatal(err)
	}
	req := idempotency.Request{Token: "dead.1", Lease: time.Minute, TTL: time.Hour}
	_, err = f.inbox.Accept(t.Context(), idempotency.EncodeKey(msg("m").Key), req,
		idempotency.Acceptance{Held: true, Stored: idempotency.Stored{Body: body, Keep: time.Hour, Attempts: n, Reply: reply}})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
}

// journal notes runs in their order.
type journal struct {
	mu   sync.Mutex
	runs []string
	at   []time.Time
}

func (j *journal) note(t message.Turn) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs = append(j.runs, fmt.Sprintf("%s/%d", t.Message.Key.ID, t.Attempt))
	j.at = append(j.at, time.Now())
}

// all returns the runs so far.
func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.runs)
}

// pause returns the time between run n, from 0, and the next one.
func (j *journal) pause(n int) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.at[n+1].Sub(j.at[n])
}

func (j *journal) want(t *testing.T, want ...string) {
	t.Helper()
	if got := j.all(); !slices.Equal(got, want) {
		t.Errorf("runs = %v, want %v", got, want)
	}
}

// noting fails as long as fails says so, and takes no time.
func noting(j *journal, fails func(t message.Turn) error) *runner {
	return &runner{run: func(_ context.Context, t message.Turn, _ int) (message.Outcome, error) {
		j.note(t)
		if err := fails(t); err != nil {
			return message.Outcome{}, err
		}
		return message.Outcome{Action: message.ActionAgent, Reply: t.Message.Text}, nil
	}}
}

var errAgent = &agent.Error{Kind: agent.ServerError}
