package sqlitestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
)

var _ idempotency.Roll = (*Store)(nil)

// maxHeartbeat bounds the bytes of a heartbeat. Of a longer one the others see
// the id alone, as of one that is just being written.
const maxHeartbeat = 64 << 10

// Beat implements idempotency.Roll. A heartbeat lives as long as the process;
// ttl counts on a file system whose locks another machine may not see.
func (s *Store) Beat(ctx context.Context, own health.Replica, ttl time.Duration) ([]health.Replica, error) {
	all, err := s.presence.beat(ctx, own, ttl)
	if err != nil {
		return nil, fmt.Errorf("show that replica %s lives: %w", own.ID, err)
	}
	return all, nil
}

// Leave implements idempotency.Roll.
func (s *Store) Leave(_ context.Context, replica string) error {
	err := s.presence.own(replica)
	if err == nil {
		err = s.presence.leave()
	}
	if err != nil {
		return fmt.Errorf("show that replica %s has ended: %w", replica, err)
	}
	return nil
}

// own returns an error unless replica is the one that this process shows.
func (p *presence) own(replica string) error {
	if replica != p.replica || replica == "" {
		return fmt.Errorf("the store was opened for replica %q", p.replica)
	}
	return nil
}

func (p *presence) beat(ctx context.Context, own health.Replica, ttl time.Duration) ([]health.Replica, error) {
	if err := errors.Join(ctx.Err(), p.own(own.ID)); err != nil {
		return nil, err
	}
	if err := p.write(ctx, own); err != nil {
		return nil, err
	}
	names, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	all := []health.Replica{own}
	for _, name := range names {
		if id := name.Name(); id != p.replica && validReplica(id) && p.lives(id, ttl) {
			all = append(all, p.read(id))
		}
	}
	return all, nil
}

// write writes the heartbeat into the file of this replica, which somebody may
// have deleted.
func (p *presence) write(ctx context.Context, own health.Replica) error {
	text, err := json.Marshal(own)
	if err != nil {
		return err
	}
	text = text[:min(len(text), maxHeartbeat)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return errClosed
	}
	if p.file != nil && !p.at(p.file) {
		_ = p.file.Close() // what was in it is gone
		p.file = nil
	}
	if p.file == nil {
		if err := p.take(ctx); err != nil {
			return err
		}
	}
	if _, err := p.file.WriteAt(text, 0); err != nil {
		return err
	}
	return p.file.Truncate(int64(len(text)))
}

// read returns what another replica says about itself. Its text may be torn:
// then its id is all that is known.
func (p *presence) read(replica string) health.Replica {
	unknown := health.Replica{ID: replica}
	file, err := os.Open(p.path(replica))
	if err != nil {
		return unknown
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, maxHeartbeat))
	var r health.Replica
	if err != nil || json.Unmarshal(text, &r) != nil || r.ID != replica {
		return unknown
	}
	return r
}
