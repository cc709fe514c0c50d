package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

var _ idempotency.Inbox = (*Store)(nil)

// errForm is of an answer that no script here gives.
var errForm = errors.New("the answer of a script has another form")

// Accept implements idempotency.Inbox.
func (s *Store) Accept(ctx context.Context, key idempotency.Key, req idempotency.Request, m idempotency.Acceptance) (idempotency.Reservation, error) {
	r, err := s.accept(ctx, s.place(key, m.Session), req, m)
	if err != nil {
		return idempotency.Reservation{}, fmt.Errorf("accept %q: %w", key, redact.Error(err))
	}
	return r, nil
}

func (s *Store) accept(ctx context.Context, p place, req idempotency.Request, m idempotency.Acceptance) (idempotency.Reservation, error) {
	const met, accepted, acceptedBefore = 0, 1, 2
	won := req.Won(idempotency.Key(p.key), idempotency.BackendRedis, s.now())
	state, lease := byte(waiting), int64(0)
	if m.Held {
		state, lease = running, req.Lease.Milliseconds()
	}
	args := p.args(req.Token, appendValue(nil, state, req.Token, req.Fingerprint),
		m.After.Milliseconds(), lease, m.Keep.Milliseconds(), m.OrderWait.Milliseconds())
	cmd, err := onMessage(ctx, s, redis.NewSliceCmd, s.scripts.inbox.accept, p.keys(), append(args, newFields(req, m.Stored)...))
	if err != nil {
		return won, err
	}
	switch answer := cmd.Val(); {
	case len(answer) == 1 && answer[0] == int64(accepted):
		won.Claim.Stored = &m.Stored
		return won, nil
	case len(answer) == 2 && answer[0] == int64(acceptedBefore):
		won.Claim.Stored = flat(answer[1]).stored()
		return won, nil
	case len(answer) == 3 && answer[0] == int64(met):
		text, _ := answer[1].(string)
		left, _ := answer[2].(int64)
		held, err := parse(text)
		return held.met(req, time.Duration(left)*time.Millisecond), err
	}
	return won, errForm
}

// Checkpoint implements idempotency.Inbox.
func (s *Store) Checkpoint(ctx context.Context, c idempotency.Claim, reply []byte) error {
	answer, err := s.byOwner(ctx, c, s.scripts.inbox.checkpoint, reply)
	return asOwner("checkpoint", c, answer, err)
}

// Retry implements idempotency.Inbox.
func (s *Store) Retry(ctx context.Context, c idempotency.Claim, r idempotency.Retry) error {
	count := 0
	if r.Uncounted {
		count = -1
	}
	answer, err := s.byOwner(ctx, c, s.scripts.inbox.retry, r.After.Milliseconds(), r.Cause, count)
	return asOwner("retry", c, answer, err)
}

// Bury implements idempotency.Inbox.
func (s *Store) Bury(ctx context.Context, c idempotency.Claim, cause string) error {
	answer, err := s.byOwner(ctx, c, s.scripts.inbox.bury, cause)
	return asOwner("bury", c, answer, err)
}

// Replay implements idempotency.Inbox.
func (s *Store) Replay(ctx context.Context, key idempotency.Key, id string) error {
	const free, moved = -1, 2
	for {
		session, err := s.sessionOf(ctx, key)
		if err != nil {
			return fmt.Errorf("replay %q: %w", key, redact.Error(err))
		}
		p := s.place(key, session)
		cmd, err := onMessage(ctx, s, redis.NewIntCmd, s.scripts.inbox.replay, p.keys(), p.args(id))
		switch {
		case err != nil:
			return fmt.Errorf("replay %q: %w", key, redact.Error(err))
		case cmd.Val() == free:
			return idempotency.ErrNotFound
		case cmd.Val() == no:
			return idempotency.ErrNotDead
		case cmd.Val() != moved:
			return nil
		}
	}
}

// Drop implements idempotency.Inbox.
func (s *Store) Drop(ctx context.Context, key idempotency.Key, owners idempotency.Owners) error {
	err := s.drop(ctx, key, owners)
	if err == nil || errors.Is(err, idempotency.ErrNotFound) || errors.Is(err, idempotency.ErrHeld) {
		return err
	}
	return fmt.Errorf("drop %q: %w", key, redact.Error(err))
}

func (s *Store) drop(ctx context.Context, key idempotency.Key, owners idempotency.Owners) error {
	for {
		claim := redis.NewStringCmd(ctx, "get", s.key(key))
		switch err := s.trips.do(ctx, claim); {
		case errors.Is(err, redis.Nil):
			return idempotency.ErrNotFound
		case err != nil:
			return err
		}
		held, err := parse(claim.Val())
		if err != nil {
			return err
		}
		if !held.stored {
			return idempotency.ErrHeld
		}
		session, err := s.sessionOf(ctx, key)
		if err != nil {
			return err
		}
		p, owner := s.place(key, session), s.ownerOf(held.token, owners)
		cmd, err := onMessage(ctx, s, redis.NewIntCmd, s.scripts.inbox.drop, p.keys(owner.keys...), p.args(append([]any{claim.Val()}, owner.args...)...))
		switch {
		case err != nil:
			return err
		case cmd.Val() == no:
			return idempotency.ErrHeld
		case cmd.Val() == yes:
			return nil
		}
	}
}

// Count implements idempotency.Inbox, out of the index alone. It counts a message
// whose Keep is over until a Take gets to it, and the second of a session as due
// only once its OrderWait is over.
func (s *Store) Count(ctx context.Context) (idempotency.Counts, error) {
	cmd, err := onMessage(ctx, s, redis.NewIntSliceCmd, s.scripts.inbox.count, []string{s.index}, nil)
	if err == nil && len(cmd.Val()) != 2 {
		err = errForm
	}
	if err != nil {
		return idempotency.Counts{}, fmt.Errorf("count messages: %w", redact.Error(err))
	}
	return idempotency.Counts{Stored: int(cmd.Val()[0]), Due: int(cmd.Val()[1])}, nil
}
