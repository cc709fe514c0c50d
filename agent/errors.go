package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/message"
)

// ErrRefused marks a failure that would be the same with the next attempt, such
// as a wrong API key. Every other failure may pass.
var ErrRefused = errors.New("agent: another attempt would fail alike")

// Kind says in what way an agent failed. It is the label of a counter.
type Kind string

// The kinds of failures.
const (
	Unreachable Kind = "unreachable"  // no connection, or it broke before the answer was complete
	RateLimited Kind = "rate_limited" // told to come later
	ServerError Kind = "server_error" // a 5xx, or an error in the middle of a stream
	Timeout     Kind = "timeout"      // no answer within the agent's own time
	Refused     Kind = "refused"      // a 4xx: the request itself is wrong
	Malformed   Kind = "malformed"    // an answer that cannot be read
	TooLarge    Kind = "too_large"    // an answer over MaxReply
	SoftFailure Kind = "soft_failure" // an answer that says of itself that it failed
	Failed      Kind = "failed"       // a program that could not be started or did not end with 0
	Other       Kind = "other"        // of an agent that does not return an *Error
)

// Kinds lists every Kind, for counters that start at zero.
var Kinds = []Kind{Unreachable, RateLimited, ServerError, Timeout, Refused, Malformed, TooLarge, SoftFailure, Failed, Other}

// Error is how an agent failed. Its text is for the log: it names no secret, no
// address and nothing of the conversation.
type Error struct {
	Kind       Kind
	Status     int           // of an HTTP answer; 0: there was none
	RetryAfter time.Duration // what the other side asked for; 0: nothing
	Err        error         // more about it; may be nil
}

// Error implements error.
func (e *Error) Error() string {
	text := "agent: " + string(e.Kind)
	if e.Status != 0 {
		text += fmt.Sprintf(" (status %d)", e.Status)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns what is known beside the kind.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the failure is of target's class: ErrRefused, or
// message.ErrTimeout.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrRefused:
		return e.Kind == Refused || e.Kind == TooLarge
	case message.ErrTimeout:
		return e.Kind == Timeout
	}
	return false
}

// KindOf returns the kind of an error that an agent returned.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Other
}
