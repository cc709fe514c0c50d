package redisclient

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// NewBreaker returns a breaker without a client.
func NewBreaker() redis.Hook { return newBreaker() }

// Connections are connections without a client.
type Connections struct{ all *connections }

// NewConnections returns none yet.
func NewConnections() Connections { return Connections{newConnections(time.Second)} }

func (c Connections) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return c.all.dial(ctx, "tcp", addr)
}

func (c Connections) Age() uint64       { return c.all.age() }
func (c Connections) GiveUp(age uint64) { c.all.giveUp(age) }
