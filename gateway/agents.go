package gateway

import (
	"context"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/message"
)

// AgentRunner lets an agent answer the messages of a route. In a session the
// agent is given what was said before, and what it says is kept.
type AgentRunner struct {
	Name     string
	Agent    agent.Agent
	Sessions *Sessions // nil: every message is the first of its session
	Metrics  *Metrics  // nil: failures are not counted
}

var _ message.Runner = AgentRunner{}

// Run implements message.Runner. A message that the session's history shows to
// be answered is not asked again: its run ended between that note and its
// record.
func (r AgentRunner) Run(ctx context.Context, t message.Turn) (message.Outcome, error) {
	outcome := message.Outcome{Action: message.ActionAgent, Agent: r.Name, Session: t.Message.Session}
	if r.Sessions == nil || t.Message.Session == "" {
		reply, err := r.ask(ctx, agent.Turn{Turn: t})
		outcome.Reply = reply.Text
		return outcome, err
	}
	memory, err := r.Sessions.begin(ctx, t)
	if err != nil {
		return message.Outcome{}, err
	}
	if memory.answered {
		outcome.Reply = memory.answer
		return outcome, nil
	}
	reply, err := r.ask(ctx, agent.Turn{Turn: t, History: memory.earlier})
	if err != nil {
		return message.Outcome{}, err
	}
	if err := r.Sessions.finish(ctx, t, memory, reply); err != nil {
		return message.Outcome{}, err
	}
	outcome.Reply = reply.Text
	return outcome, nil
}

// ask runs the agent and counts its own failures, not those of the turn.
func (r AgentRunner) ask(ctx context.Context, t agent.Turn) (agent.Reply, error) {
	reply, err := r.Agent.Run(ctx, t)
	if err != nil && ctx.Err() == nil && r.Metrics != nil {
		r.Metrics.agentErrors.WithLabelValues(string(agent.KindOf(err))).Inc()
	}
	return reply, err
}
