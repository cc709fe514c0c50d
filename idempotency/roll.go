package idempotency

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/health"
)

// KeyFormat is the number of the format in which keys and values are written.
// Replicas show it to each other.
const KeyFormat = 1

// Roll is where the replicas that share a store say that they live.
type Roll interface {
	// Beat writes own's heartbeat, which lives for ttl unless it is written
	// again, and returns those of all live replicas, own among them.
	Beat(ctx context.Context, own health.Replica, ttl time.Duration) ([]health.Replica, error)

	// Leave takes the heartbeat of a replica back that stops and holds no
	// claims any more.
	Leave(ctx context.Context, replica string) error
}
