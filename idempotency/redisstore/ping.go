package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

// epochLife is how long the epoch outlives the last Ping of any replica.
const epochLife = 30 * 24 * time.Hour

// ping is what Ping remembers. The epoch is a random value that lives in the
// server as long as everything else there: a new one means that all is lost.
type ping struct {
	turn chan struct{} // held by the one call that may look at the rest
	id   string        // of this Store, so that two never read each other's value
	seen string        // the epoch that was found last; empty before the first
	// proposal is written where there is no epoch. It stays the same until it
	// is found, so that one whose answer was lost is still known to be new.
	proposal string
}

func newPing() ping {
	return ping{turn: make(chan struct{}, 1), id: rand.Text(), proposal: rand.Text()}
}

// Ping implements idempotency.Store: it writes a value and reads it back.
// For a replica ErrEmptied means that the server had no epoch, or has another
// than before; whoever only looks leaves the epoch alone, since a replica that
// starts later has to find it missing.
func (s *Store) Ping(ctx context.Context) error {
	select {
	case s.ping.turn <- struct{}{}:
		defer func() { <-s.ping.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	epoch, err := s.writeAndRead(ctx)
	if err != nil {
		return fmt.Errorf("ping: %w", redact.Error(err))
	}
	if !s.replica {
		return nil
	}
	p := &s.ping
	made := epoch == p.proposal
	emptied := made || p.seen != "" && epoch != p.seen
	p.seen = epoch
	if made {
		p.proposal = rand.Text()
	}
	if emptied {
		return fmt.Errorf("ping: the epoch of the server is new, so it is a new server, was flushed, or restarted without its data: %w", idempotency.ErrEmptied)
	}
	return nil
}

// writeAndRead writes a value and reads it back, and returns the epoch, which
// it writes where there is none.
func (s *Store) writeAndRead(ctx context.Context) (epoch string, err error) {
	key, written := s.prefix+"ping:"+s.ping.id, rand.Text()
	var read, found *redis.StringCmd
	_, err = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, key, written, time.Minute)
		if read = p.Get(ctx, key); !s.replica {
			return nil
		}
		p.SetNX(ctx, s.root+"epoch", s.ping.proposal, epochLife)
		found = p.Get(ctx, s.root+"epoch")
		p.PExpire(ctx, s.root+"epoch", epochLife)
		return nil
	})
	if err != nil {
		return "", err
	}
	if read.Val() != written {
		return "", fmt.Errorf("read %q back, not what was written", read.Val())
	}
	if !s.replica {
		return "", nil
	}
	return found.Val(), nil
}
