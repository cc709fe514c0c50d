package platform

import (
	"context"
	"slices"
	"time"
)

// lane is the queue in front of one target. Its times belong to whoever has the
// turn; all else is guarded by the Outbox's mutex.
type lane struct {
	busy   bool            // somebody has the turn
	queue  []chan struct{} // those who wait for it; closed to hand it over
	forget *time.Timer     // set once the lane was idle with a time to come

	pacedUntil time.Time // as Interval says
	heldUntil  time.Time // as RetryAfter said
}

// free returns when the target may be sent something again.
func (l *lane) free() time.Time {
	if l.heldUntil.After(l.pacedUntil) {
		return l.heldUntil
	}
	return l.pacedUntil
}

// enter returns when it is the caller's turn, who then calls leave.
func (o *Outbox) enter(ctx context.Context, to address) (*lane, error) {
	o.mu.Lock()
	l := o.lanes[to]
	if l == nil {
		l = &lane{}
		o.lanes[to] = l
	}
	if !l.busy {
		l.busy = true
		o.mu.Unlock()
		return l, nil
	}
	turn := make(chan struct{})
	l.queue = append(l.queue, turn)
	o.mu.Unlock()
	select {
	case <-turn:
		return l, nil
	case <-ctx.Done():
		o.giveUp(to, l, turn)
		return nil, ended(ctx)
	}
}

// giveUp takes a turn off the queue, or passes it on if it has just come.
func (o *Outbox) giveUp(to address, l *lane, turn chan struct{}) {
	o.mu.Lock()
	place := slices.Index(l.queue, turn)
	if place >= 0 {
		l.queue = slices.Delete(l.queue, place, place+1)
	}
	o.mu.Unlock()
	if place < 0 {
		o.leave(to, l)
	}
}

// leave hands the turn to the next in the queue. A lane without one is kept only
// while its times matter.
func (o *Outbox) leave(to address, l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(l.queue) > 0 {
		close(l.queue[0])
		l.queue = slices.Delete(l.queue, 0, 1)
		return
	}
	l.busy = false
	wait := time.Until(l.free())
	switch {
	case wait <= 0:
		delete(o.lanes, to)
	case l.forget == nil:
		l.forget = time.AfterFunc(wait, func() { o.expire(to, l) })
	default:
		l.forget.Reset(wait)
	}
}

// expire drops a lane that is idle. Its timer may be an old one, of a lane that
// is in use again, has got later times, or is gone.
func (o *Outbox) expire(to address, l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lanes[to] == l && !l.busy && time.Until(l.free()) <= 0 {
		delete(o.lanes, to)
	}
}

// wait returns nil when the target may be sent something.
func (l *lane) wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if held := time.Until(l.heldUntil); held > patience {
		return &SendError{Unsent: true, RetryAfter: held, Err: errHeld}
	}
	pause := time.Until(l.free())
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// ended is the failure of a reply whose turn to be sent did not come in time.
func ended(ctx context.Context) error { return &SendError{Unsent: true, Err: context.Cause(ctx)} }
