package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/message"
)

// BenchmarkReserve compares a reservation with one plain SET NX PX for each
// round trip, on the same client and server.
func BenchmarkReserve(b *testing.B) {
	c := newClient(b, redistest.Start(b).Addr())
	s := newStore(b, c)
	for _, goroutines := range []int{1, 2, 8, 64, 256} {
		b.Run(fmt.Sprintf("plain/%d", goroutines), func(b *testing.B) {
			spread(b, goroutines, func(ctx context.Context, id string) error {
				return c.SetNX(ctx, "plain:"+id, "r1."+id, time.Minute).Err()
			})
		})
		b.Run(fmt.Sprintf("store/%d", goroutines), func(b *testing.B) {
			req := idempotency.Request{Lease: time.Minute, TTL: time.Hour, Fingerprint: message.Fingerprint{1}}
			spread(b, goroutines, func(ctx context.Context, id string) error {
				req := req
				req.Token = "r1." + id
				_, err := s.Reserve(ctx, idempotency.Key("hook::bench:"+id), req)
				return err
			})
		})
		if err := c.FlushAll(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
	}
}

var nextID atomic.Int64

// spread makes b.N calls from that many goroutines.
func spread(b *testing.B, goroutines int, call func(context.Context, string) error) {
	b.ReportAllocs()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(ctx, strconv.FormatInt(nextID.Add(1), 10)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
