package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/sqlitehistory"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/hooks"
)

// counter is an agent that counts what it is told in a chat.
type counter struct{}

// Run implements agent.Agent. The history has two rows for each earlier turn.
func (counter) Run(_ context.Context, turn agent.Turn) (agent.Reply, error) {
	return agent.Reply{Text: fmt.Sprintf("message %d: %s", len(turn.History)/2+1, turn.Message.Text)}, nil
}

// chat has one hook: the sender numbers the messages of each chat, and a chat
// is a session.
func chat() hooks.Config {
	hook := hooks.DefaultHook()
	hook.Path = "chat"
	hook.Channel, hook.IdempotencyKey = "{{ payload.chat }}", "{{ payload.id }}"
	hook.Session, hook.Message = "chat:{{ payload.chat }}", "{{ payload.text }}"
	c := hooks.DefaultConfig()
	c.Idempotency.Lease = time.Minute // for so long a message waits whose run a crash has cut off
	c.Hooks = []hooks.Hook{hook}
	return c
}

// newSessions returns sessions in a SQLite file. While it is away turns run
// without history, and the log says so.
func newSessions(path string, metrics *gateway.Metrics, log *slog.Logger) *gateway.Sessions {
	return gateway.NewSessions(gateway.SessionsConfig{
		Backend: agent.BackendSQLite,
		Open: func(ctx context.Context) (gateway.History, error) {
			history, err := sqlitehistory.Open(ctx, sqlitehistory.Config{Path: path, MaxTurns: 50, TTL: 30 * 24 * time.Hour, Log: log})
			if err != nil {
				return nil, err // and not a nil pointer in the interface
			}
			return history, nil
		},
		Timeout:  2 * time.Second,
		Classify: func(error) string { return "other" },
		Hint:     func(string) string { return "look at the disk of " + path },
		Health:   health.NewRegistry(log), Metrics: metrics, Log: log,
	})
}
