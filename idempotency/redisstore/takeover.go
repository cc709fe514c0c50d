package redisstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
)

// reclaiming returns the change by which req takes the claim on key from its
// holder; not ok where the holder is to be left alone.
func (s *Store) reclaiming(key idempotency.Key, req idempotency.Request, holder string) (c change, ok bool) {
	if req.Abandoned(holder) {
		return s.reclaimingAbandoned(s.key(key), req, holder), true
	}
	owner := idempotency.ReplicaOf(holder)
	own := s.beat.Load()
	if own == nil || owner == holder || !isReplica(owner) || !req.MayTakeOver() {
		return change{}, false
	}
	return s.reclaimingDead(s.key(key), req, holder, s.heartbeatKey(owner), *own), true
}

// reclaimingAbandoned takes a claim that nobody runs, whatever lives.
func (s *Store) reclaimingAbandoned(key string, req idempotency.Request, holder string) change {
	held, value, lease := head(claimed, holder), newValue(req), req.Lease.Milliseconds()
	return change{
		keys: []string{key}, script: s.scripts.reclaim, args: []any{held, value, lease}, headed: len(held),
		decide: func(found string) (int64, []any) {
			if found != held {
				return moved, nil
			}
			return reclaimed, []any{"set", key, value, "px", lease}
		},
	}
}

// reclaimingDead takes a claim whose owner has no heartbeat under ownerKey,
// provided that own, the caller's, proves the server to have been awake.
func (s *Store) reclaimingDead(key string, req idempotency.Request, holder, ownerKey string, own heartbeat) change {
	c := s.reclaimingAbandoned(key, req, holder)
	c.keys = append(c.keys, ownerKey, own.key)
	fresh := own.ttl - own.ttl/4
	c.args = append(c.args, own.text, fresh.Milliseconds())

	var dead bool
	var left int64 // of the owner's lease, in ms
	take := c.decide
	c.read = func(ctx context.Context, tx *redis.Tx) (err error) {
		dead, left, err = readOwner(ctx, tx, c.keys, own.text, fresh)
		return err
	}
	c.decide = func(found string) (int64, []any) {
		answer, write := take(found)
		switch {
		case answer == moved || dead:
			return answer, write
		case left < 0: // it has no end, or came to it between two commands
			return req.Lease.Milliseconds(), nil
		}
		return max(left, 1), nil
	}
	return c
}

// readOwner reads what reclaim.lua does of the keys that it gets. The server may
// freeze between two of the commands: only because the caller's heartbeat comes
// last does it prove that the owner's was absent while the server was awake.
func readOwner(ctx context.Context, tx *redis.Tx, keys []string, text string, fresh time.Duration) (dead bool, left int64, err error) {
	lease := redis.NewIntCmd(ctx, "pttl", keys[0])
	owner := redis.NewIntCmd(ctx, "exists", keys[1])
	own := redis.NewStringCmd(ctx, "get", keys[2])
	lives := redis.NewIntCmd(ctx, "pttl", keys[2])
	for _, cmd := range []redis.Cmder{lease, owner, own, lives} {
		if err := tx.Process(ctx, cmd); err != nil && !errors.Is(err, redis.Nil) {
			return false, 0, err
		}
	}
	dead = owner.Val() == 0 && own.Val() == text && lives.Val() >= fresh.Milliseconds()
	return dead, lease.Val(), nil
}

// isReplica reports whether a text, which anybody may have written, looks like
// what idempotency.NewReplicaID returns.
func isReplica(text string) bool {
	const longest = 64
	return text != "" && len(text) <= longest && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
