// Package redisstore keeps claims in Redis, where every replica sees them.
//
// It promises what idempotency.Store does as long as the server keeps its
// writes. Ping notices a server that has lost everything; a failover to a
// replica that lacks some, or an eviction, forgets claims and records, and
// nothing here notices.
//
// Its stored messages need scripts; the claims alone do without where the server
// refuses them.
//
// Commands of concurrent callers share round trips; see trips.
package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

// Config is what a Store needs beside its client.
type Config struct {
	Prefix  string           // begins every key; the environment
	Now     func() time.Time // default time.Now
	Replica bool             // for a replica, which watches the epoch; else for a look
}

// Store is a Store in Redis. Several on one server and prefix are one.
type Store struct {
	client  redis.UniversalClient
	trips   *trips
	scripts scripts
	root    string // begins every key
	prefix  string // begins a claim's
	index   string // the key of the index of stored messages
	replica bool   // see Config
	now     func() time.Time
	sets    sync.Pool // of *setCommand
	ping    ping
	beats   atomic.Uint64             // how many heartbeats have been written
	beat    atomic.Pointer[heartbeat] // the last one that was acknowledged

	refusal  atomic.Pointer[error] // what the server said when it refused a script
	plainSet atomic.Bool           // the server does not know SET with NX and GET together
}

var _ idempotency.Store = (*Store)(nil)

// New returns a store on client, which stays the caller's: it is closed after
// the store. Nothing is sent yet.
func New(client redis.UniversalClient, c Config) *Store {
	now := c.Now
	if now == nil {
		now = time.Now
	}
	return &Store{
		client:  client,
		trips:   newTrips(client),
		scripts: newScripts(),
		root:    c.Prefix,
		prefix:  c.Prefix + "hookidem:",
		index:   c.Prefix + "hookmsg",
		replica: c.Replica,
		now:     now,
		sets:    sync.Pool{New: newSetCommand},
		ping:    newPing(),
	}
}

func (s *Store) key(key idempotency.Key) string { return s.prefix + string(key) }

// Reserve implements idempotency.Store.
func (s *Store) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	r, err := s.reserve(ctx, key, req)
	if err != nil {
		return idempotency.Reservation{}, fmt.Errorf("reserve %q: %w", key, redact.Error(err))
	}
	return r, nil
}

func (s *Store) reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	reclaims := false // a claim of another owner has been asked for
	// Another round means that the holder changed between two commands.
	for {
		sent := s.now()
		set, found, err := s.setOrGet(ctx, key, req)
		if err != nil {
			return idempotency.Reservation{}, err
		}
		won := req.Won(key, idempotency.BackendRedis, sent)
		if set {
			return won, nil
		}
		held, err := parse(found)
		if err != nil {
			return idempotency.Reservation{}, err
		}
		if held.stored || held.state == idempotency.Recorded {
			left := time.Duration(0)
			if held.state != idempotency.Recorded && held.state != idempotency.Dead {
				left = s.storedLeft(ctx, key, held.state, req.Lease)
			}
			return held.met(req, left), nil
		}
		if held.token == req.Token {
			// An answer was lost, here or in the client, and the claim is ours.
			won.TakenOver = reclaims
			if answer, err := s.apply(ctx, s.renewal(s.key(key), won.Claim)); answer == yes || err != nil {
				return won, err
			}
			continue
		}
		c, ok := s.reclaiming(key, req, held.token)
		var left time.Duration
		if ok {
			reclaims, won.TakenOver = true, true
			answer, err := s.apply(ctx, c)
			if err != nil || answer == reclaimed {
				return won, err
			}
			left = time.Duration(answer) * time.Millisecond
		} else {
			left = s.leaseLeft(ctx, s.key(key), req.Lease)
		}
		if left > 0 {
			return held.met(req, left), nil
		}
	}
}

// leaseLeft returns what is left of the lease on a key that is held, 0 when it
// has just ended. That the key is held is known already and is the answer that
// counts: where its time cannot be learnt, a whole lease is the safe advice.
func (s *Store) leaseLeft(ctx context.Context, key string, lease time.Duration) time.Duration {
	const absent = -2 // as the client hands on the server's answer
	cmd := redis.NewDurationCmd(ctx, time.Millisecond, "pttl", key)
	if err := s.trips.do(ctx, cmd); err != nil {
		return lease
	}
	switch left := cmd.Val(); {
	case left == absent:
		return 0
	case left < 0:
		return lease
	default:
		return max(left, time.Millisecond)
	}
}

// Close waits for the calls that are under way. It leaves the client open.
func (s *Store) Close() error {
	s.trips.close()
	return nil
}
