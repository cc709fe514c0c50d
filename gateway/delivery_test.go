package gateway_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/platform"
)

// outbox is a way out made of a function: what it is given counts as sent.
type outbox struct {
	send       func(n int) error // of the nth reply, from 1; nil: all is taken
	idempotent bool

	mu   sync.Mutex
	sent []platform.Reply
}

func (o *outbox) Send(ctx context.Context, _ string, r platform.Reply, ready func(context.Context) error) error {
	if err := ready(ctx); err != nil {
		return &platform.SendError{Unsent: true, Err: err}
	}
	o.mu.Lock()
	o.sent = append(o.sent, r)
	n := len(o.sent)
	o.mu.Unlock()
	if o.send == nil {
		return nil
	}
	return o.send(n)
}

func (o *outbox) Idempotent(string) bool { return o.idempotent }

// all returns what was sent so far.
func (o *outbox) all() []platform.Reply {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.sent)
}

func (o *outbox) wantSent(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, r := range o.all() {
		got = append(got, r.Target+": "+r.Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

func through(o *outbox) option { return func(cfg *gateway.PipelineConfig) { cfg.Outbox = o } }

// delivering is a policy whose replies go to somebody.
func delivering(p message.Policy) message.Policy {
	p.Deliver = &message.Deliver{Channel: "support", Target: "42"}
	return p
}

var (
	errUnsent  = &platform.SendError{Unsent: true, Err: errors.New("no connection")}
	errUnknown = &platform.SendError{Err: errors.New("no answer")}
)

func TestDelivery(t *testing.T) {
	t.Parallel()

	// start accepts a message and waits until all that is due is done.
	start := func(t *testing.T, f *fleet, o *outbox) *replica {
		t.Helper()
		r := f.join(t, through(o))
		accept(t, r, msg("m"), f.policy)
		time.Sleep(10 * time.Minute)
		return r
	}
	wantDelivered := func(t *testing.T, r *replica, want bool) {
		t.Helper()
		got := mustProcess(t, r, msg("m"), accepting(&runner{}), message.Processed).Outcome.Delivered
		if got == nil || *got != want {
			t.Errorf("delivered = %v, want %v", got, want)
		}
	}

	t.Run("the reply goes to its target under the message's key, and the record says so", func(t *testing.T) {
		o := &outbox{}
		inFleet(t, delivering(accepting(&runner{})), func(t *testing.T, f *fleet) {
			r := start(t, f, o)
			o.wantSent(t, "42: text of m")
			if key := string(idempotency.EncodeKey(msg("m").Key)); o.all()[0].Key != key {
				t.Errorf("sent under %q, want %q", o.all()[0].Key, key)
			}
			wantDelivered(t, r, true)
		})
	})

	t.Run("so does that of a message which the sender waits for", func(t *testing.T) {
		o := &outbox{}
		inBubble(t, func(t *testing.T, r *replica) {
			got := mustProcess(t, r, msg("m"), delivering(policy(&runner{})), message.New)
			if d := got.Outcome.Delivered; d == nil || !*d {
				t.Errorf("outcome = %+v, want it delivered", got.Outcome)
			}
			o.wantSent(t, "42: text of m")
		}, through(o))
	})

	t.Run("an empty reply is a finished turn, and nothing is sent", func(t *testing.T) {
		o := &outbox{}
		silent := &runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) { return message.Outcome{}, nil }}
		inFleet(t, delivering(accepting(silent)), func(t *testing.T, f *fleet) {
			r := start(t, f, o)
			o.wantSent(t)
			wantDelivered(t, r, false)
		})
	})

	t.Run("a reply that did not go out is sent again without another run", func(t *testing.T) {
		a := &runner{}
		o := &outbox{send: func(n int) error {
			if n < 3 {
				return errUnsent
			}
			return nil
		}}
		inFleet(t, delivering(accepting(a)), func(t *testing.T, f *fleet) {
			r := start(t, f, o)
			o.wantSent(t, "42: text of m", "42: text of m", "42: text of m")
			if n := a.runs.Load(); n != 1 {
				t.Errorf("%d runs, want 1", n)
			}
			if got := r.counter(t, "gateway_unknown_sends_total", "resent"); got != 0 {
				t.Errorf("%v sends count as unknown, want none: the platform said that it has nothing", got)
			}
			wantDelivered(t, r, true)
		})
	})

	t.Run("what the platform refuses is dead at once", func(t *testing.T) {
		o := &outbox{send: func(int) error {
			return &platform.SendError{Unsent: true, Refused: true, Err: errors.New("blocked by the user")}
		}}
		inFleet(t, delivering(accepting(&runner{})), func(t *testing.T, f *fleet) {
			start(t, f, o)
			o.wantSent(t, "42: text of m")
			if e := f.entry(t, "m"); e.State != idempotency.Dead || e.Stored.Cause != "refused: failed/send" {
				t.Errorf("entry = %d %q", e.State, e.Stored.Cause)
			}
		})
	})

	for _, tt := range []struct {
		name       string
		idempotent bool
		drop       bool
		sends      int
		resolved   string
		delivered  bool
	}{
		{"a send without an answer is repeated under its key where the platform knows it", true, true, 2, "same_key", true},
		{"it is repeated and counted where on_unknown_send says resend", false, false, 2, "resent", true},
		{"it is not repeated where on_unknown_send says drop", false, true, 1, "dropped", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &runner{}
			o := &outbox{idempotent: tt.idempotent, send: func(n int) error {
				if n == 1 {
					return errUnknown
				}
				return nil
			}}
			p := delivering(accepting(a))
			p.Deliver.DropUnknown = tt.drop
			inFleet(t, p, func(t *testing.T, f *fleet) {
				r := start(t, f, o)
				if sends := len(o.all()); sends != tt.sends || a.runs.Load() != 1 {
					t.Errorf("%d sends of %d runs, want %d of 1", sends, a.runs.Load(), tt.sends)
				}
				if got := r.counter(t, "gateway_unknown_sends_total", tt.resolved); got != 1 {
					t.Errorf("%v unknown sends counted as %s, want 1", got, tt.resolved)
				}
				wantDelivered(t, r, tt.delivered)
			})
		})
	}
}

func TestDeliveryAfterACrash(t *testing.T) {
	t.Parallel()
	const answered = `{"outcome":{"action":"agent","reply":"answer"}}`
	const sending = `{"outcome":{"action":"agent","reply":"answer"},"sending":true}`
	for _, tt := range []struct {
		name, reply string
		drop        bool
		unknown     float64
		sent        []string
	}{
		{"between the agent's answer and the send, the reply is sent once and the agent not asked again", answered, true, 0, []string{"42: answer"}},
		{"B19: between the send and the record, there is at most one more send, which is counted", sending, false, 1, []string{"42: answer"}},
		{"there is none where the route does not want one", sending, true, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var j journal
			o := &outbox{}
			p := delivering(accepting(noting(&j, func(message.Turn) error { return nil })))
			p.Deliver.DropUnknown, p.Accept.BuryUnknown = tt.drop, true
			inFleet(t, p, func(t *testing.T, f *fleet) {
				f.abandon(t, 1, []byte(tt.reply))
				r := f.join(t, through(o))
				time.Sleep(2 * time.Second)
				j.want(t)
				o.wantSent(t, tt.sent...)
				if got := r.counter(t, "gateway_unknown_sends_total", "resent"); got != tt.unknown {
					t.Errorf("%v unknown sends counted as resent, want %v", got, tt.unknown)
				}
				f.wantState(t, idempotency.Recorded, "m")
			})
		})
	}
}

func TestDrainLetsASendThatIsUnderWayEnd(t *testing.T) {
	o := &outbox{send: func(int) error {
		time.Sleep(gateway.SendGrace / 2)
		return nil
	}}
	inFleet(t, delivering(accepting(slow(10*time.Second))), func(t *testing.T, f *fleet) {
		r := f.join(t, through(o))
		accept(t, r, msg("m"), f.policy)
		time.Sleep(time.Second)
		drain, cancel := context.WithTimeout(t.Context(), 9*time.Second+gateway.SendGrace/4)
		defer cancel()
		if err := r.Drain(drain); err != nil {
			t.Errorf("Drain = %v", err)
		}
		o.wantSent(t, "42: text of m")
		f.wantState(t, idempotency.Recorded, "m")
	})
}
