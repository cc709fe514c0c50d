package redislock_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/turnlock"
)

// BenchmarkUncontended compares a turn of a session that nobody else wants with
// one SET NX PX and one DEL on the same client and server.
func BenchmarkUncontended(b *testing.B) {
	s := redistest.Start(b)
	a := newReplica(b, s.Addr(), "a", ttl(turnlock.DefaultTTL))
	b.Run("plain", func(b *testing.B) {
		client := newClient(b, s.Addr())
		b.ReportAllocs()
		for b.Loop() {
			// Not a whole second, for which the client would send EX.
			if err := client.SetNX(b.Context(), "plain", "a.ABCDEFGHIJKLMNOPQRSTUVWXYZ", turnlock.DefaultTTL+time.Millisecond).Err(); err != nil {
				b.Fatal(err)
			}
			if err := client.Del(b.Context(), "plain").Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			mustAcquire(b, a, "s").Release()
		}
	})
}

// BenchmarkHandOver takes the time from the Release on one replica until a
// waiter on another has the lock.
func BenchmarkHandOver(b *testing.B) {
	s := redistest.Start(b)
	from, to := newReplica(b, s.Addr(), "a", ttl(turnlock.DefaultTTL)), newReplica(b, s.Addr(), "b", ttl(turnlock.DefaultTTL))
	look := s.Client()
	await(b, "a subscription of each replica", func() bool {
		return len(look.PubSubChannels(b.Context(), prefix+"turnwake:*").Val()) == 2
	})
	for b.Loop() {
		b.StopTimer()
		held := mustAcquire(b, from, "s")
		got := make(chan *turnlock.Lease, 1)
		go func() {
			lease, err := to.Acquire(b.Context(), "s")
			if err != nil {
				b.Error(err)
			}
			got <- lease
		}()
		awaitWaiting(b, look, "s", 1)
		b.StartTimer()
		held.Release()
		next := <-got
		b.StopTimer()
		if next == nil {
			return
		}
		next.Release()
		b.StartTimer()
	}
}
