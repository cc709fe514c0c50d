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
	replica, own := s.mortal(holder, req.Owners)
	if own == nil {
		return change{}, false
	}
	return s.reclaimingDead(s.key(key), req, holder, s.heartbeatKey(replica), *own), true
}

// mortal returns the replica whose heartbeat tells whether holder is dead, and
// the caller's own heartbeat; nil where holder is to be left alone.
func (s *Store) mortal(holder string, owners idempotency.Owners) (replica string, own *heartbeat) {
	replica, own = idempotency.ReplicaOf(holder), s.beat.Load()
	if own == nil || replica == holder || !isReplica(replica) || owners == nil || !owners.MayTakeOver() {
		return "", nil
	}
	return replica, own
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
	fresh := own.fresh()
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

// owner is what scripts about a stored message are told of its owner.
type owner struct {
	gone bool     // it is known to be
	keys []string // its heartbeat and the caller's; none where it is left alone
	args []any    // gone, and the caller's heartbeat as it was acknowledged
}

// ownerOf returns what is known of the holder of a token.
func (s *Store) ownerOf(holder string, owners idempotency.Owners) owner {
	if owners != nil && owners.Abandoned(holder) {
		return owner{gone: true, args: []any{1}}
	}
	replica, own := s.mortal(holder, owners)
	if own == nil {
		return owner{args: []any{0}}
	}
	return owner{keys: []string{s.heartbeatKey(replica), own.key}, args: []any{0, own.text, own.fresh().Milliseconds()}}
}

// isReplica reports whether a text, which anybody may have written, looks like
// what idempotency.NewReplicaID returns.
func isReplica(text string) bool {
	const longest = 64
	return text != "" && len(text) <= longest && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
