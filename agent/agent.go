// Package agent is the contract of the programs that answer messages, and of
// the history that they are given. The simplest agent, Echo, lives here; every
// other kind and every history have a package of their own.
package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/message"
)

// Agent answers one message. Implementations are safe for concurrent use.
//
// Run returns soon after ctx ends. Any error means that the turn left no effect
// that forbids running it again; see Error. An empty Reply without an error is
// a finished turn.
type Agent interface {
	Run(ctx context.Context, turn Turn) (Reply, error)
}

// Turn is what an agent is given for one message. Key, as Idempotency-Key, and
// Fence are for the agent's own protection against a repeated or outdated run.
type Turn struct {
	message.Turn
	History []Row // of the session before this message, oldest first

	// OnDelta is told each piece of a reply that comes in pieces, in order and
	// before Run returns. What a failed run told is void. Nil: nobody listens.
	OnDelta func(text string)
}

// Delta hands a piece of the reply on.
func (t Turn) Delta(text string) {
	if t.OnDelta != nil && text != "" {
		t.OnDelta(text)
	}
}

// Prompt returns what a language model is told: the message, with what
// strangers wrote marked as data.
func (t Turn) Prompt() string {
	if t.Message.Prompt != "" {
		return t.Message.Prompt
	}
	return t.Message.Text
}

// Reply is an agent's answer.
type Reply struct {
	Text string
}

// MaxReply bounds a reply in bytes. A longer one is an Error of kind TooLarge.
const MaxReply = 1 << 20

// Run calls run within the timeout of c, for the kinds that have one. What run
// returns beside an error counts as long as its time is not over; else the
// error is an Error of kind Timeout, or wraps the cause of ctx's end.
func (c Config) Run(ctx context.Context, run func(context.Context) (Reply, error)) (Reply, error) {
	if ctx.Err() != nil {
		return Reply{}, fmt.Errorf("agent: %w", context.Cause(ctx))
	}
	bounded := ctx
	if c.Timeout != nil {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, *c.Timeout)
		defer cancel()
	}
	reply, err := run(bounded)
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() != nil:
		return Reply{}, fmt.Errorf("agent: %w", context.Cause(ctx))
	case bounded.Err() != nil:
		return Reply{}, &Error{Kind: Timeout, Err: errors.New("no answer within the timeout of the agent")}
	}
	return Reply{}, err
}

// Echo answers with the message's own text.
type Echo struct{}

var _ Agent = Echo{}

// Run implements Agent.
func (Echo) Run(ctx context.Context, turn Turn) (Reply, error) {
	return Reply{Text: turn.Message.Text}, ctx.Err()
}
