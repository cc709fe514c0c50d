package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

// Renew implements idempotency.Store.
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	return s.settle(ctx, "renew", s.renewal(s.key(c.Key), c), c)
}

// Record implements idempotency.Store.
func (s *Store) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	return s.settle(ctx, "record", s.recording(s.key(c.Key), c, outcome), c)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, c idempotency.Claim) error {
	return s.settle(ctx, "release", s.releasing(s.key(c.Key), c), c)
}

func (s *Store) settle(ctx context.Context, what string, c change, claim idempotency.Claim) error {
	yes, err := s.apply(ctx, c)
	switch {
	case err != nil:
		return fmt.Errorf("%s %q: %w", what, claim.Key, redact.Error(err))
	case !yes:
		return idempotency.ErrNotOwner
	}
	return nil
}

func (s *Store) renewal(key string, c idempotency.Claim) change {
	held, lease := head(claimed, c.Token), c.Lease.Milliseconds()
	return change{
		key: key, script: s.scripts.renew, args: []any{held, lease}, headed: len(held),
		decide: func(found string) (bool, []any) {
			if found != held {
				return false, nil
			}
			return true, []any{"pexpire", key, lease}
		},
	}
}

func (s *Store) recording(key string, c idempotency.Claim, outcome []byte) change {
	held, done := head(claimed, c.Token), head(recorded, c.Token)
	record := append(appendValue(nil, recorded, c.Token, c.Fingerprint), outcome...)
	window, rest := c.TTL.Milliseconds(), c.RemainingTTL(s.now()).Milliseconds()
	return change{
		key: key, script: s.scripts.record, args: []any{held, done, record, window, rest}, headed: len(held),
		decide: func(found string) (bool, []any) {
			switch {
			case found == held:
				return true, []any{"set", key, record, "px", window}
			case found == "" && rest > 0:
				return true, []any{"set", key, record, "px", rest}
			}
			return found == done, nil
		},
	}
}

func (s *Store) releasing(key string, c idempotency.Claim) change {
	held := head(claimed, c.Token)
	return change{
		key: key, script: s.scripts.release, args: []any{held}, headed: len(held),
		decide: func(found string) (bool, []any) {
			if found != held {
				return found == "", nil
			}
			return true, []any{"del", key}
		},
	}
}

// change is one owner-checked change of a key: as a script, and as what to do
// where scripts are refused.
type change struct {
	key    string
	script script
	args   []any
	headed int                                       // how many bytes of the value decide
	decide func(head string) (yes bool, write []any) // write is a command; none: nothing to do
}

// apply carries c out and reports whether the key was the caller's.
func (s *Store) apply(ctx context.Context, c change) (bool, error) {
	if s.refusal.Load() != nil {
		return s.watch(ctx, c)
	}
	yes, err := s.eval(ctx, c.script, c.key, c.args...)
	if refused(err) {
		s.refusal.Store(&err)
		return s.watch(ctx, c)
	}
	return yes, err
}

// watch does by WATCH and MULTI what the script of c does.
func (s *Store) watch(ctx context.Context, c change) (bool, error) {
	for {
		var yes bool
		err := s.client.Watch(ctx, func(tx *redis.Tx) error {
			head, err := tx.GetRange(ctx, c.key, 0, int64(c.headed-1)).Result()
			if err != nil {
				return err
			}
			var write []any
			if yes, write = c.decide(head); write == nil {
				return nil
			}
			var cmd *redis.Cmd
			if _, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				cmd = p.Do(ctx, write...)
				return nil
			}); err != nil {
				return err
			}
			if cmd.Val() == int64(0) {
				// There was nothing to change any more: decide anew.
				return redis.TxFailedErr
			}
			return nil
		}, c.key)
		if !errors.Is(err, redis.TxFailedErr) {
			return yes && err == nil, err
		}
	}
}
