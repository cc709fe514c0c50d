package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/turnlock/redislock"
	"github.com/oncegate/oncegate/turnlock/turnlocktest"
)

const maxWait = 1500 * time.Millisecond

// suite returns the conformance suite of a Locker on the server at addr. Each
// of its tests has a prefix of its own.
func suite(addr string, look *redis.Client) turnlocktest.Suite {
	return turnlocktest.Suite{MaxWait: maxWait, Rounds: 20, New: func(t *testing.T) *turnlocktest.Backend {
		own := "{" + t.Name() + "}:"
		r := newReplica(t, addr, "a", func(c *redislock.Config) { c.Prefix, c.MaxWait, c.TTL = own, maxWait, time.Second })
		return &turnlocktest.Backend{
			Locker: r,
			Await: func(t *testing.T, session string, n int) {
				await(t, "a queue of the length", func() bool {
					return look.ZCard(context.Background(), own+"turnqueue:"+session).Val() == int64(n)
				})
			},
			Lose: func(t *testing.T, session string) {
				// What another replica's acquisition leaves behind.
				if err := look.Set(t.Context(), own+"turnlock:"+session, "b.token|9007199254740000", 2*time.Second).Err(); err != nil {
					t.Fatal(err)
				}
			},
		}
	}}
}

func TestLockerOnRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	turnlocktest.Run(t, suite(s.Addr(), s.Client()))
}

func TestLockerOnMiniredis(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	look := redis.NewClient(&redis.Options{Addr: m.Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = look.Close() })
	turnlocktest.Run(t, suite(m.Addr(), look))
}
