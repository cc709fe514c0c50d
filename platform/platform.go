// Package platform is the way out: how a reply reaches the people on the other
// side of a channel. Each kind of channel is a subpackage with a Sender; what
// all have in common, the order and the pace of what goes to one target, is the
// Outbox's.
package platform

import (
	"context"
	"time"
)

// Sender sends replies through one channel. It is safe for concurrent use.
type Sender interface {
	// Send hands one reply to the platform, once, and returns when that has
	// taken it. An error that is, or wraps, a *SendError says what is known of
	// the reply's fate; after any other it may have been sent. Send returns
	// soon after ctx ends, with a *SendError that wraps the cause.
	Send(ctx context.Context, r Reply) error

	// Idempotent reports whether the platform takes a reply that is sent again
	// under the same key for the same one. A reply without a key is a new one
	// every time.
	Idempotent() bool

	// Interval is the time that the platform wants between two replies to one
	// target; 0: none.
	Interval() time.Duration
}

// Reply is one text on its way out.
type Reply struct {
	Key    string // the message that it answers; the same for every attempt; empty for a message without identity
	Target string // whom it is for, as the platform names them
	Text   string
}

// SendError is how a Send failed. One of three things is known of the reply:
//
//   - Refused, always with Unsent: the platform does not have it, and would
//     refuse it again. Sending it again is of use only after a person has
//     changed something.
//   - Unsent alone: the platform does not have it. There was no connection to
//     send it over, its turn never came, or the platform has answered that it
//     did not take it. It can be sent again, and is never doubled by that.
//   - Neither: it may have been sent. There was a connection, and it broke, or
//     the time was up, before the platform had answered; or the answer does not
//     tell, such as that of a proxy that got none itself. Sent again it is
//     doubled, unless the Sender is Idempotent.
type SendError struct {
	Unsent     bool          // the platform does not have the reply
	Refused    bool          // and would refuse it again
	RetryAfter time.Duration // what the platform asked for, on behalf of the target; 0: nothing
	Err        error         // for the log: it names no secret and no address
}

// Error implements error.
func (e *SendError) Error() string { return "send: " + e.Err.Error() }

// Unwrap returns what the platform or the connection said, or the cause of the
// context's end.
func (e *SendError) Unwrap() error { return e.Err }
