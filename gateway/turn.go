package gateway

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
)

// workContext lives as long as the pipeline, not as the request: it drops the
// request's cancellation and keeps its values.
type workContext struct {
	context.Context
	request context.Context
}

// Value asks the pipeline's context first: that is where package context finds
// the parent whose end it has to follow.
func (c workContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.request.Value(key)
}

// lock waits for the session's lock, which the caller holds until the turn is
// settled. A message without a session waits for nobody.
func (p *Pipeline) lock(ctx context.Context, session string) (*turnlock.Lease, error) {
	if session == "" {
		return turnlock.NewLease(ctx, turnlock.LeaseConfig{Release: func() {}}), nil
	}
	start := time.Now()
	lease, err := p.cfg.Locks.Acquire(ctx, session)
	since(p.metrics.lockWait, start)
	if err != nil {
		return nil, p.ended(ctx, err, time.Time{})
	}
	p.metrics.locksHeld.Inc()
	return turnlock.NewLease(lease.Context(), turnlock.LeaseConfig{Fence: lease.Fence(), Confirm: lease.Confirm, Release: func() {
		p.metrics.locksHeld.Dec()
		lease.Release()
	}}), nil
}

// turn runs one message under its session's lock and in an admission slot. The
// waiting for both can outlast the trust in its claim, which is confirmed last;
// a message without identity has no claim to hold. What the run returns counts
// only if the lock is still held then: a process that was frozen wakes up
// behind its session's next turn.
func (p *Pipeline) turn(lease *turnlock.Lease, t message.Turn, pol message.Policy, hold *idempotency.Hold) (message.Outcome, error) {
	ctx := lease.Context()
	t.Fence, t.Window = lease.Fence(), pol.TTL
	t.Confirm = func(ctx context.Context) error {
		if hold != nil {
			if err := hold.Confirm(ctx); err != nil {
				return err
			}
		}
		return lease.Confirm(ctx)
	}
	if err := p.admit(ctx, pol.Accept != nil); err != nil {
		return message.Outcome{}, p.ended(ctx, err, time.Time{})
	}
	defer p.leaveSlot()
	if err := t.Confirm(context.WithoutCancel(ctx)); err != nil {
		return message.Outcome{}, p.ended(ctx, err, time.Time{})
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.TurnTimeout, message.ErrTimeout)
	defer cancel()
	start := time.Now()
	outcome, err := p.call(ctx, t, pol)
	if err == nil {
		err = lease.Confirm(context.WithoutCancel(ctx))
	}
	if err = p.ended(ctx, err, start); err != nil {
		return message.Outcome{}, err
	}
	return outcome, nil
}

// admit takes a slot, or returns ErrBusy after QueueWait, which nobody waits for
// with a message that is acknowledged. It starts nothing whose end has already
// come.
func (p *Pipeline) admit(ctx context.Context, acknowledged bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	start := time.Now()
	defer func() { since(p.metrics.queueWait, start) }()
	select {
	case p.slots <- struct{}{}:
		p.metrics.running.Inc()
		return nil
	default:
	}
	p.metrics.waiting.Inc()
	defer p.metrics.waiting.Dec()
	timer := time.NewTimer(p.cfg.QueueWait)
	defer timer.Stop()
	if acknowledged {
		timer.Stop()
	}
	select {
	case p.slots <- struct{}{}:
		p.metrics.running.Inc()
		return nil
	case <-timer.C:
		return message.ErrBusy
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Pipeline) leaveSlot() {
	<-p.slots
	p.metrics.running.Dec()
	if p.taker != nil {
		p.taker.roomier()
	}
}

// call is the runner's boundary: a panic becomes an error of this turn alone.
func (p *Pipeline) call(ctx context.Context, t message.Turn, pol message.Policy) (outcome message.Outcome, err error) {
	defer func() {
		if r := recover(); r != nil {
			p.log.Error("panic in a run", "route", pol.Route, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			outcome, err = message.Outcome{}, errPanic
		}
	}()
	return pol.Runner.Run(ctx, t)
}

// ended counts how a turn ended, and how long it took if it ran, and gives its
// error the sentinel that the ingress answers by.
func (p *Pipeline) ended(ctx context.Context, err error, start time.Time) error {
	label, sentinel := ending(ctx, err)
	p.metrics.turns.WithLabelValues(label).Inc()
	if !start.IsZero() {
		since(p.metrics.turnSeconds.WithLabelValues(label), start)
	}
	if err == nil || errors.Is(err, sentinel) {
		return err
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}

// ending names the end of a turn. Why the context ended says more than the
// error that the runner made of it.
func ending(ctx context.Context, err error) (label string, sentinel error) {
	cause := context.Cause(ctx)
	is := func(target error) bool { return errors.Is(err, target) || errors.Is(cause, target) }
	switch {
	case err == nil:
		return turnDone, nil
	case errors.Is(err, errPanic):
		return turnPanic, errPanic
	case is(idempotency.ErrNotOwner):
		return turnLost, idempotency.ErrNotOwner
	case is(turnlock.ErrLost), errors.Is(err, agent.ErrStale):
		return turnLockLost, message.ErrRun
	case errors.Is(err, idempotency.ErrUnavailable):
		return turnUnavailable, message.ErrStoreUnavailable
	case is(message.ErrDraining):
		return turnDrained, message.ErrDraining
	case is(message.ErrTimeout):
		return turnTimeout, message.ErrTimeout
	case is(message.ErrBusy), is(turnlock.ErrBusy):
		return turnBusy, message.ErrBusy
	}
	return turnFailed, message.ErrRun
}
