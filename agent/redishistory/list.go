package redishistory

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/redact"
)

// Show implements agent.Sessions.
func (h *History) Show(ctx context.Context, session string) (agent.Session, []agent.Row, error) {
	s, rows, err := h.show(ctx, session)
	if err != nil {
		return agent.Session{}, nil, fmt.Errorf("show session %q: %w", session, err)
	}
	return s, rows, nil
}

func (h *History) show(ctx context.Context, session string) (agent.Session, []agent.Row, error) {
	fields, err := h.client.HGetAll(ctx, h.prefix+session).Result()
	if err != nil {
		return agent.Session{}, nil, explain(err)
	}
	if len(fields) == 0 {
		return agent.Session{}, nil, agent.ErrNoSession
	}
	return parse(session, fields)
}

// pageSize bounds how many sessions are asked for in one round trip.
const pageSize = 500

// List implements agent.Sessions. What is used meanwhile may be missing.
func (h *History) List(ctx context.Context, limit int) (sessions []agent.Session, more bool, err error) {
	sessions, err = h.list(ctx, limit+1) // one more than asked for tells whether others follow
	if err != nil {
		return nil, false, fmt.Errorf("list sessions: %w", redact.Error(err))
	}
	if more = len(sessions) > limit; more {
		sessions = sessions[:limit]
	}
	return sessions, more, nil
}

func (h *History) list(ctx context.Context, limit int) (sessions []agent.Session, err error) {
	now, err := h.client.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	over := "(" + strconv.FormatInt(now.Add(-h.ttl).UnixMicro(), 10)
	seen := make(map[string]bool) // what is used meanwhile moves others to the next page, again
	for offset := 0; len(sessions) < limit; {
		// The newer way to say it is not known before Redis 6.2.
		page := redis.NewStringSliceCmd(ctx, "zrevrangebyscore", h.index, "+inf", over, "limit", offset, min(limit-len(sessions), pageSize))
		if err := h.client.Process(ctx, page); err != nil {
			return nil, explain(err)
		}
		if len(page.Val()) == 0 {
			break
		}
		offset += len(page.Val())
		found, err := h.look(ctx, page.Val())
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			if !seen[s.ID] {
				sessions = append(sessions, s)
			}
			seen[s.ID] = true
		}
	}
	return sessions, nil
}

// look returns those of the named sessions that there are.
func (h *History) look(ctx context.Context, names []string) (sessions []agent.Session, err error) {
	fields := []string{createdField, usedField, firstField, nextField}
	cmds, err := h.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range names {
			p.HMGet(ctx, h.prefix+name, fields...)
		}
		return nil
	})
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			return nil, fmt.Errorf("session %q: %w", names[i], explain(err))
		}
	}
	if err != nil { // a new connection that was refused leaves the commands without it
		return nil, err
	}
	for i, cmd := range cmds {
		values := make(map[string]string, len(fields))
		for j, value := range cmd.(*redis.SliceCmd).Val() {
			if text, ok := value.(string); ok {
				values[fields[j]] = text
			}
		}
		if len(values) == 0 { // gone, while the index does not know yet
			continue
		}
		s, _, err := parseSession(names[i], func(name string) string { return values[name] })
		if err != nil {
			return nil, fmt.Errorf("session %q: %w", names[i], err)
		}
		sessions = append(sessions, s)
	}
	return sessions, nil
}
