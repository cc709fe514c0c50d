package redisstore

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
)

// setOrGet sets key to a claim by req if it is absent, or else returns the
// value that is there.
func (s *Store) setOrGet(ctx context.Context, key idempotency.Key, req idempotency.Request) (set bool, found string, err error) {
	if s.plainSet.Load() {
		return s.setThenGet(ctx, key, req)
	}
	c := s.sets.Get().(*setCommand)
	c.fill(s.prefix, key, req)
	// The nil that says "won" is an error to the client, and a dear one:
	// looking into it costs more than the rest of the call. Hence a raw reply.
	raw := redis.NewRawCmd(ctx, c.args[:]...)
	if err := s.trips.do(ctx, raw); err != nil {
		return false, "", err // the arguments may still be under way: not to be used again
	}
	s.sets.Put(c)
	if text, null, ok := bulk(raw.Val()); ok {
		return null, text, nil
	}
	// A refusal. Asked again without tricks the client retries, or leaves the
	// connection, as it demands; that the claim may be ours by now does no harm.
	cmd := redis.NewStringCmd(ctx, "set", s.key(key), newValue(req), "px", req.Lease.Milliseconds(), "nx", "get")
	switch err := s.trips.do(ctx, cmd); {
	case err == nil:
		return false, cmd.Val(), nil
	case errors.Is(err, redis.Nil):
		return true, "", nil
	case isSyntaxError(err):
		s.plainSet.Store(true)
		return s.setThenGet(ctx, key, req)
	default:
		return false, "", err
	}
}

// setCommand holds the arguments of SET, which point into it, so that they can
// be used for one claim after the other.
type setCommand struct {
	key, value text
	lease      int64 // ms
	args       [7]any
}

func newSetCommand() any {
	c := new(setCommand)
	c.args = [...]any{"set", &c.key, &c.value, "px", &c.lease, "nx", "get"}
	return c
}

func (c *setCommand) fill(prefix string, key idempotency.Key, req idempotency.Request) {
	c.key = append(append(c.key[:0], prefix...), key...)
	c.value = appendValue(c.value[:0], claimed, req.Token, req.Fingerprint)
	c.lease = req.Lease.Milliseconds()
}

// text is an argument that is sent as it is. The client reads it by
// MarshalBinary and, where it routes by key, by String.
type text []byte

// MarshalBinary returns t itself.
func (t *text) MarshalBinary() ([]byte, error) { return *t, nil }

func (t *text) String() string { return string(*t) }

// bulk takes a raw bulk reply apart: a text or a null; not ok is anything else.
func bulk(reply []byte) (text string, null, ok bool) {
	switch head, rest, _ := bytes.Cut(reply, []byte("\r\n")); {
	case string(head) == "$-1", string(head) == "_":
		return "", true, true
	case len(head) > 0 && head[0] == '$' && len(rest) >= 2:
		return string(rest[:len(rest)-2]), false, true
	}
	return "", false, false
}

// setThenGet is setOrGet for servers before version 7.
func (s *Store) setThenGet(ctx context.Context, key idempotency.Key, req idempotency.Request) (set bool, found string, err error) {
	for {
		cmd := redis.NewStatusCmd(ctx, "set", s.key(key), newValue(req), "px", req.Lease.Milliseconds(), "nx")
		if err := s.trips.do(ctx, cmd); !errors.Is(err, redis.Nil) {
			return err == nil, "", err
		}
		get := redis.NewStringCmd(ctx, "get", s.key(key))
		switch err := s.trips.do(ctx, get); {
		case err == nil:
			return false, get.Val(), nil
		case !errors.Is(err, redis.Nil):
			return false, "", err
		}
	}
}

func isSyntaxError(err error) bool {
	answer, ok := errors.AsType[redis.Error](err)
	return ok && strings.Contains(answer.Error(), "syntax error")
}
