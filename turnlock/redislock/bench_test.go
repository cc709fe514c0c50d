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
	client := newClient(b, s.Addr())
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			// Not a whole second, for which the client would send EX.
			if err := client.SetNX(b.Context(), "plain", "a.ABCDEFGHIJKLMNOPQRSTUVWXYZ", time.Minute+time.Millisecond).Err(); err != nil {
				b.Fatal(err)
			}
			if err := client.Del(b.Context(), "plain").Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lock", func(b *testing.B) {
		a := newReplica(b, s.Addr(), "a", ttl(turnlock.DefaultTTL))
		b.ReportAllocs()
		for b.Loop() {
			lease, err := a.Acquire(b.Context(), "s")
			if err != nil {
				b.Fatal(err)
			}
			lease.Release()
		}
	})
}
