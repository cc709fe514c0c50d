// Package execagent is the agent that is a program: each turn starts it anew,
// gives it the wire form of agent.Turn on standard input, and takes what it
// prints for the answer, {"text": …} or plain text.
//
// A run ends with everything in it. Whatever the program has started is killed
// with its process group as soon as the program itself has ended, or the turn
// has; so nothing goes on working for a turn that is over. A process that
// leaves the group is not followed, but never waited for long either; one that
// the gateway may not kill, as behind sudo, is waited for. On Linux the program
// itself, not what it has started, also dies with the gateway. Orphans are
// collected by process 1, which in a container has to be an init.
//
// The program gets PATH, HOME and LANG of the gateway and what is configured,
// and nothing else of the gateway's environment, which may hold secrets.
package execagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/oncegate/oncegate/agent"
)

// Agent is an agent.Agent that starts a program.
type Agent struct {
	config agent.Config
	name   string // of the program, without its directory
	log    *slog.Logger
}

var _ agent.Agent = (*Agent)(nil)

// New returns the agent of a valid configuration of kind exec. The program is
// looked up with each run, so that it can be installed or replaced at any time.
// The end of its standard error goes to log, at level debug: it may hold
// anything, so it is nowhere else.
func New(c agent.Config, log *slog.Logger) *Agent {
	return &Agent{config: c, name: filepath.Base(c.Command[0]), log: log}
}

// Run implements agent.Agent. Its error is an *agent.Error, or wraps the cause
// of ctx's end.
func (a *Agent) Run(ctx context.Context, turn agent.Turn) (agent.Reply, error) {
	return a.config.Run(ctx, func(ctx context.Context) (agent.Reply, error) { return a.run(ctx, turn) })
}

func (a *Agent) run(ctx context.Context, turn agent.Turn) (agent.Reply, error) {
	if strings.ContainsRune(turn.Key, 0) || strings.ContainsRune(turn.Message.Session, 0) {
		return agent.Reply{}, &agent.Error{Kind: agent.Refused, Err: errors.New("the key or the session holds a NUL character, which no environment can")}
	}
	input, err := json.Marshal(turn)
	if err != nil {
		return agent.Reply{}, &agent.Error{Kind: agent.Refused, Err: err}
	}
	// The kernel takes the end of the thread that starts the program for the
	// gateway's. Locked, it lives on; see attributes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := a.start(append(input, '\n'), a.environ(turn))
	if err != nil {
		return agent.Reply{}, err
	}
	err = p.wait(ctx)
	if p.stderr.size > 0 {
		a.log.Debug("agent program wrote to standard error", "program", a.name, "key", turn.Key, "attempt", turn.Attempt,
			"bytes", p.stderr.size, "stderr", p.stderr.String())
	}
	if err != nil {
		return agent.Reply{}, err
	}
	reply, err := agent.ReadOutput(p.stdout.data)
	if err == nil && len(reply.Text) > agent.MaxReply { // what replaces a byte that is no UTF-8 has three
		return agent.Reply{}, errTooLarge()
	}
	return reply, err
}

func errTooLarge() *agent.Error {
	return &agent.Error{Kind: agent.TooLarge, Err: errors.New("the program printed more than a reply may have")}
}

func failed(format string, args ...any) *agent.Error {
	return &agent.Error{Kind: agent.Failed, Err: fmt.Errorf(format, args...)}
}
