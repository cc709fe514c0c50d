package gateway

import (
	"context"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/message"
)

// AgentRunner lets an agent answer the messages of a route.
type AgentRunner struct {
	Name  string
	Agent agent.Agent
}

var _ message.Runner = AgentRunner{}

// Run implements message.Runner.
func (r AgentRunner) Run(ctx context.Context, t message.Turn) (message.Outcome, error) {
	reply, err := r.Agent.Run(ctx, t)
	if err != nil {
		return message.Outcome{}, err
	}
	return message.Outcome{
		Action:  message.ActionAgent,
		Agent:   r.Name,
		Session: t.Message.Session,
		Reply:   reply.Text,
	}, nil
}
