// Package agent is the contract of the programs that answer messages, and the
// simplest of them.
package agent

import (
	"context"
	"fmt"

	"github.com/oncegate/oncegate/message"
)

// Agent answers one message. Implementations are safe for concurrent use.
//
// Run returns soon after ctx ends, with ctx's error. Any error means that the
// turn left no effect that forbids running it again; an empty Reply without an
// error is a finished turn.
type Agent interface {
	Run(ctx context.Context, turn message.Turn) (Reply, error)
}

// Reply is an agent's answer.
type Reply struct {
	Text string
}

// KindEcho names the agent that repeats what it is told.
const KindEcho = "echo"

// Config is one entry of the section agents of gateway.yaml.
type Config struct {
	Kind string `yaml:"kind"`
}

// DefaultConfig returns the settings of an entry that names none.
func DefaultConfig() Config { return Config{Kind: KindEcho} }

// Validate returns every problem, joined; each begins with the key's name.
func (c Config) Validate() error {
	if c.Kind != KindEcho {
		return fmt.Errorf("kind: %q is not one of %s", c.Kind, KindEcho)
	}
	return nil
}

// Echo answers with the message's own text.
type Echo struct{}

var _ Agent = Echo{}

// Run implements Agent.
func (Echo) Run(ctx context.Context, turn message.Turn) (Reply, error) {
	return Reply{Text: turn.Message.Text}, ctx.Err()
}
