package platform

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// patience is the longest time that a platform may ask for and that is waited
// for on the spot. Whoever would wait longer is sent away, since a turn waits
// with them.
const patience = 5 * time.Second

// maxRetries bounds how often one Send waits on the spot: a platform that asks
// for a moment again and again means more than a moment.
const maxRetries = 3

var errHeld = errors.New("the platform has asked for no more replies to this target for now")

// Outbox is the way to all channels of this replica. What goes to one target
// goes one by one, in the order of the calls, and not faster than the platform
// wants; targets do not wait for each other. It is safe for concurrent use.
//
// It remembers the targets that somebody waits for, or that must not be sent
// anything yet, and no others.
type Outbox struct {
	senders map[string]Sender
	limited func(channel string)

	mu    sync.Mutex
	lanes map[address]*lane
}

// address is one target of one channel.
type address struct{ channel, target string }

// NewOutbox returns an outbox of channels by their names. It calls limited, for
// a counter, each time a platform asks for a pause; nil: nobody counts.
func NewOutbox(senders map[string]Sender, limited func(channel string)) *Outbox {
	if limited == nil {
		limited = func(string) {}
	}
	return &Outbox{senders: senders, limited: limited, lanes: make(map[address]*lane)}
}

// Idempotent reports whether a reply that may have been sent through the channel
// can be sent again under its key without being doubled.
func (o *Outbox) Idempotent(channel string) bool {
	s, ok := o.senders[channel]
	return ok && s.Idempotent()
}

// Send sends one reply when all that were given before to the same target are
// through. A platform that asks for a short pause gets it, and the reply again;
// after a longer one is asked for, this Send and all others to the target fail
// with the RetryAfter that is left, until it is over. Its error wraps what the
// Sender returned, or a *SendError of its own that says Unsent.
//
// ready is called last before the Sender is, each time: its error ends the Send,
// as one that is Unsent. Nil: there is nothing to do.
func (o *Outbox) Send(ctx context.Context, channel string, r Reply, ready func(context.Context) error) error {
	s, ok := o.senders[channel]
	if !ok {
		return &SendError{Unsent: true, Refused: true, Err: fmt.Errorf("there is no channel %q; add it to channels, or change the deliver_to that names it", channel)}
	}
	if ready == nil {
		ready = func(context.Context) error { return nil }
	}
	if err := o.send(ctx, s, address{channel, r.Target}, r, ready); err != nil {
		return fmt.Errorf("channel %s: %w", channel, err)
	}
	return nil
}

func (o *Outbox) send(ctx context.Context, s Sender, to address, r Reply, ready func(context.Context) error) error {
	l, err := o.enter(ctx, to)
	if err != nil {
		return err
	}
	defer o.leave(to, l)
	for retries := 0; ; retries++ {
		if err := l.wait(ctx); err != nil {
			return err
		}
		if err := ready(ctx); err != nil {
			return &SendError{Unsent: true, Err: err}
		}
		err := s.Send(ctx, r)
		l.pacedUntil = time.Now().Add(s.Interval())
		e, ok := errors.AsType[*SendError](err)
		if !ok || e.RetryAfter <= 0 {
			return err
		}
		o.limited(to.channel)
		l.heldUntil = time.Now().Add(e.RetryAfter)
		if !e.Unsent || e.Refused || e.RetryAfter > patience || retries == maxRetries {
			return err
		}
	}
}
