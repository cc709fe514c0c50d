package redisstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

var _ idempotency.Roll = (*Store)(nil)

const (
	// maxReplicas bounds how many ids one Beat looks at; of more, others each time.
	maxReplicas = 1000
	// rollLife is how long the list of ids outlives the last Beat of any replica.
	rollLife = 24 * time.Hour
)

// heartbeat is one that the server has acknowledged.
type heartbeat struct {
	key, text string
	ttl       time.Duration
}

// fresh is what the heartbeat has left to live as long as it proves the server to
// have been awake.
func (h heartbeat) fresh() time.Duration { return h.ttl - h.ttl/4 }

// beaten is the text of a heartbeat. No two of one Store are alike, however
// often a replica says the same: one that is still on its way to the server
// must not be taken for the one that was acknowledged.
type beaten struct {
	health.Replica
	Beat uint64 `json:"beat"`
}

func (s *Store) heartbeatKey(replica string) string { return s.root + "replica:" + replica }

func (s *Store) rollKey() string { return s.root + "replicas" }

// Beat implements idempotency.Roll. The heartbeat can be acknowledged although
// an error is returned, which then is about the others'. The replicas are in
// the order of their ids.
func (s *Store) Beat(ctx context.Context, own health.Replica, ttl time.Duration) ([]health.Replica, error) {
	live, err := s.beatAndLook(ctx, own, ttl)
	if err != nil {
		return nil, fmt.Errorf("heartbeat: %w", redact.Error(err))
	}
	live = append(live, own)
	slices.SortFunc(live, func(a, b health.Replica) int { return cmp.Compare(a.ID, b.ID) })
	return live, nil
}

// beatAndLook writes the heartbeat of own and returns the other replicas.
func (s *Store) beatAndLook(ctx context.Context, own health.Replica, ttl time.Duration) ([]health.Replica, error) {
	text, err := json.Marshal(beaten{own, s.beats.Add(1)})
	if err != nil {
		return nil, err
	}
	beat := &heartbeat{key: s.heartbeatKey(own.ID), text: string(text), ttl: ttl}
	set := redis.NewStatusCmd(ctx, "set", beat.key, beat.text, "px", ttl.Milliseconds())
	members := redis.NewStringSliceCmd(ctx, "srandmember", s.rollKey(), maxReplicas)
	err = s.pipeline(ctx, set,
		redis.NewIntCmd(ctx, "sadd", s.rollKey(), own.ID),
		redis.NewIntCmd(ctx, "pexpire", s.rollKey(), rollLife.Milliseconds()),
		members)
	if set.Err() == nil {
		s.beat.Store(beat)
	}
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(members.Val(), func(id string) bool { return id == own.ID })
	return s.live(ctx, others)
}

// live reads the heartbeats of ids and takes those without one off the list. A
// replica that comes back in this moment is there again with its next one.
func (s *Store) live(ctx context.Context, ids []string) ([]health.Replica, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	read, remove := []any{"mget"}, []any{"srem", s.rollKey()}
	for _, id := range ids {
		read = append(read, s.heartbeatKey(id))
	}
	beats := redis.NewSliceCmd(ctx, read...)
	if err := s.client.Process(ctx, beats); err != nil {
		return nil, err
	}
	var live []health.Replica
	for i, id := range ids {
		text, ok := beats.Val()[i].(string)
		if !ok {
			remove = append(remove, id)
			continue
		}
		live = append(live, replicaOf(id, text))
	}
	if len(live) == len(ids) {
		return live, nil
	}
	return live, s.client.Process(ctx, redis.NewIntCmd(ctx, remove...))
}

// replicaOf reads a heartbeat; of one that cannot be read only id is known.
func replicaOf(id, text string) health.Replica {
	var r health.Replica
	if json.Unmarshal([]byte(text), &r) != nil {
		r = health.Replica{}
	}
	r.ID = id
	return r
}

// Leave implements idempotency.Roll.
func (s *Store) Leave(ctx context.Context, replica string) error {
	if own := s.beat.Load(); own != nil && own.key == s.heartbeatKey(replica) {
		s.beat.CompareAndSwap(own, nil)
	}
	err := s.pipeline(ctx,
		redis.NewIntCmd(ctx, "del", s.heartbeatKey(replica)),
		redis.NewIntCmd(ctx, "srem", s.rollKey(), replica))
	if err != nil {
		return fmt.Errorf("leave the replicas: %w", redact.Error(err))
	}
	return nil
}

// pipeline carries out cmds in one round trip. Each has its own error then; the
// first of them is returned.
func (s *Store) pipeline(ctx context.Context, cmds ...redis.Cmder) error {
	p := s.client.Pipeline()
	_ = p.BatchProcess(ctx, cmds...) // queueing cannot fail
	_, err := p.Exec(ctx)
	stamp(cmds, err)
	return err
}
