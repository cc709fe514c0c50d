package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// The answers of the owner-checked changes, see the scripts.
const (
	no, yes = 0, 1 // record, release, renew

	settled, slipped, foreign = 0, 1, -1

	stored = 2 // of all these: the key has a stored message, which has scripts of its own

	reclaimed, moved = -1, 0 // above: what is left of the lease in ms
)

// change is one owner-checked change of a claim: as a script, and as what to
// do where scripts are refused.
type change struct {
	keys   []string // the claim's first; on all of them depends what is done
	script script
	args   []any
	headed int                                           // how many bytes of the claim's value decide
	read   func(ctx context.Context, tx *redis.Tx) error // reads what decide needs beside them; nil: nothing
	decide func(head string) (answer int64, write []any) // write is a command; none: nothing to do
}

// apply carries c out and returns its answer.
func (s *Store) apply(ctx context.Context, c change) (int64, error) {
	if s.refusal.Load() != nil {
		return s.watch(ctx, c)
	}
	answer, err := s.eval(ctx, c)
	if refused(err) {
		s.refusal.Store(&err)
		return s.watch(ctx, c)
	}
	return answer, err
}

// watch does by WATCH and MULTI what the script of c does.
func (s *Store) watch(ctx context.Context, c change) (int64, error) {
	for {
		var answer int64
		err := s.client.Watch(ctx, func(tx *redis.Tx) error {
			head, err := tx.GetRange(ctx, c.keys[0], 0, int64(c.headed-1)).Result()
			if err != nil {
				return err
			}
			if c.read != nil {
				if err := c.read(ctx, tx); err != nil {
					return err
				}
			}
			var write []any
			if answer, write = c.decide(head); write == nil {
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
		}, c.keys...)
		if !errors.Is(err, redis.TxFailedErr) {
			return answer, err
		}
	}
}
