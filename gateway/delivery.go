package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/platform"
)

// Outbox sends replies through channels; see platform.Outbox.
type Outbox interface {
	// Send sends one reply behind those that are on their way to its target.
	// ready is called last, when nothing is in front any more, and again before
	// each repetition; its error ends the sending, as a *SendError that wraps it.
	Send(ctx context.Context, channel string, r platform.Reply, ready func(context.Context) error) error
	// Idempotent reports whether a reply may be sent again under its key.
	Idempotent(channel string) bool
}

// errSend marks failures of a delivery, not of the run before it.
var errSend = errors.New("gateway: reply not delivered")

// sendGrace is how long a send that is under way when the drain's time is over
// may take to end. It is cut off in the middle only then: nobody would know
// whether it has arrived.
const sendGrace = time.Second

// kept is the checkpoint of a stored message: what its run has come to.
type kept struct {
	Outcome *message.Outcome `json:"outcome,omitempty"` // nil: it has not ended
	Sending bool             `json:"sending,omitempty"` // the reply may have been sent
}

func (k *kept) decode(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, k)
}

// delivery is a Runner that delivers what another one says. For a stored message
// it notes how far that has come, so that whoever takes the message over neither
// runs it again nor sends a reply twice without knowing.
type delivery struct {
	pipeline *Pipeline
	policy   message.Policy // whose Runner does the work
	kept     kept
	claim    *idempotency.Claim // of a stored message; nil: nothing is kept
}

var _ message.Runner = (*delivery)(nil)

// delivering returns a policy's Runner, with the delivery that it wants.
func (p *Pipeline) delivering(pol message.Policy, saved kept, claim *idempotency.Claim) message.Runner {
	if pol.Deliver == nil {
		return pol.Runner
	}
	return &delivery{pipeline: p, policy: pol, kept: saved, claim: claim}
}

// Run implements message.Runner.
func (d *delivery) Run(ctx context.Context, t message.Turn) (message.Outcome, error) {
	if d.kept.Outcome == nil {
		outcome, err := d.policy.Runner.Run(ctx, t)
		if err != nil {
			return message.Outcome{}, err
		}
		d.kept.Outcome = &outcome
		if err := d.keep(ctx, false); err != nil {
			return message.Outcome{}, err
		}
	}
	outcome := *d.kept.Outcome
	outcome.Delivered = new(bool)
	if outcome.Reply == "" || d.kept.Sending && !d.again(t.Key) {
		return outcome, nil
	}
	reply := platform.Reply{Key: t.Key, Target: d.policy.Deliver.Target, Text: outcome.Reply}
	switch err := d.send(ctx, t, reply); {
	case err == nil:
		*outcome.Delivered = true
		d.pipeline.metrics.sends.WithLabelValues(sendDone).Inc()
	case unsent(err):
		d.pipeline.metrics.sends.WithLabelValues(sendFailed).Inc()
		return message.Outcome{}, fmt.Errorf("%w: %w", errSend, errors.Join(err, d.keep(ctx, false)))
	case ctx.Err() != nil: // whoever has the message next finds the reply marked
		return message.Outcome{}, fmt.Errorf("%w: %w", errSend, err)
	case d.again(t.Key):
		return message.Outcome{}, fmt.Errorf("%w: %w", errSend, errors.Join(err, d.keep(ctx, false)))
	}
	return outcome, nil
}

// unsent reports whether a send that failed is known not to have happened.
func unsent(err error) bool {
	e, ok := errors.AsType[*platform.SendError](err)
	return ok && e.Unsent
}

// again counts a send whose fate is unknown, and decides whether it is repeated.
func (d *delivery) again(key string) bool {
	resolution := sendDropped
	switch {
	case key != "" && d.pipeline.cfg.Outbox.Idempotent(d.policy.Deliver.Channel):
		resolution = sendSameKey
	case !d.policy.Deliver.DropUnknown:
		resolution = sendAgain
	}
	d.pipeline.metrics.unknownSends.WithLabelValues(resolution).Inc()
	d.pipeline.log.Warn("reply may have been sent already", "route", d.policy.Route, "channel", d.policy.Deliver.Channel, "resolved", resolution)
	return resolution != sendDropped
}

// send sends the reply. Just before, the claim and the lock are confirmed and
// the reply is marked as being sent.
func (d *delivery) send(ctx context.Context, t message.Turn, r platform.Reply) error {
	ctx, cancel := outlasting(ctx, message.ErrDraining, sendGrace)
	defer cancel()
	return d.pipeline.cfg.Outbox.Send(ctx, d.policy.Deliver.Channel, r, func(ctx context.Context) error {
		if err := t.Confirmed(ctx); err != nil {
			return err
		}
		return d.keep(ctx, true)
	})
}

// keep notes how far the delivery has come. A store that is away does not stop
// a route that goes on without one.
func (d *delivery) keep(ctx context.Context, sending bool) error {
	d.kept.Sending = sending
	if d.claim == nil {
		return nil
	}
	data, err := json.Marshal(d.kept)
	if err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	err = d.pipeline.taker.inbox.Checkpoint(context.WithoutCancel(ctx), *d.claim, data)
	if err == nil || errors.Is(err, idempotency.ErrNotOwner) {
		return err
	}
	if d.claim.OnUnavailable == idempotency.Closed {
		return fmt.Errorf("keep the reply: %w: %w", idempotency.ErrUnavailable, err)
	}
	d.pipeline.log.Warn("reply could not be kept before it is sent; a crash now would repeat the run", "route", d.policy.Route, "key", string(d.claim.Key), "error", err)
	return nil
}

// outlasting returns a context that ends as parent does, but for one cause: then
// it has a little more time.
func outlasting(parent context.Context, but error, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		cause := context.Cause(parent)
		if errors.Is(cause, but) {
			timer := time.NewTimer(grace)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		cancel(cause)
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
