package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/message"
)

func toAccept(session string) idempotency.Acceptance {
	return idempotency.Acceptance{Stored: idempotency.Stored{
		Session: session, Body: []byte(strings.Repeat("x", 1024)), OrderWait: time.Minute, Keep: time.Hour,
	}}
}

// benchAccept accepts messages of 1 KB, each of a session of its own.
func benchAccept(b *testing.B, s *redisstore.Store, goroutines int) {
	spread(b, goroutines, func(ctx context.Context, id string) error {
		req := idempotency.Request{Token: "r1." + id, Lease: time.Minute, TTL: time.Hour, Fingerprint: message.Fingerprint{1}}
		_, err := s.Accept(ctx, idempotency.Key("hook::bench:"+id), req, toAccept("bench:"+id))
		return err
	})
}

// BenchmarkAccept compares storing a message of 1 KB with a plain claim.
func BenchmarkAccept(b *testing.B) {
	c := newClient(b, redistest.Start(b).Addr())
	s := newStore(b, c)
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("reserve/%d", goroutines), func(b *testing.B) {
			spread(b, goroutines, func(ctx context.Context, id string) error {
				req := idempotency.Request{Token: "r1." + id, Lease: time.Minute, TTL: time.Hour, Fingerprint: message.Fingerprint{1}}
				_, err := s.Reserve(ctx, idempotency.Key("hook::bench:"+id), req)
				return err
			})
		})
		b.Run(fmt.Sprintf("accept/%d", goroutines), func(b *testing.B) { benchAccept(b, s, goroutines) })
		if err := c.FlushAll(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBacklog measures a call of Take, the CPU time that it costs the server
// as cpu-µs/op, and Accept, with nothing stored and with a million messages.
func BenchmarkBacklog(b *testing.B) {
	for _, backlog := range []struct {
		name     string
		messages int
		later    time.Duration
		sessions int
	}{
		{"none", 0, 0, 1},
		{"million of one session", 1_000_000, 0, 1},
		{"million to be retried", 1_000_000, time.Hour, 1_000_000},
	} {
		b.Run(backlog.name, func(b *testing.B) {
			c := newClient(b, redistest.Start(b).Addr())
			s := newStore(b, c)
			for i := 0; i < backlog.messages; i += 10_000 {
				storeMany(b, s, i, 10_000, backlog.sessions, backlog.later)
			}
			b.Run("take", func(b *testing.B) { benchTake(b, c, s) })
			b.Run("accept", func(b *testing.B) { benchAccept(b, s, 1) })
			b.Run("accept/64", func(b *testing.B) { benchAccept(b, s, 64) })
		})
	}
}

func storeMany(b *testing.B, s *redisstore.Store, from, n, sessions int, later time.Duration) {
	b.Helper()
	errs := make(chan error, 64)
	for worker := range cap(errs) {
		go func() {
			var err error
			for i := from + worker; i < from+n && err == nil; i += cap(errs) {
				m := toAccept(fmt.Sprint("s", i%sessions))
				m.Body, m.After = m.Body[:100], later
				req := idempotency.Request{Token: "r1." + strconv.Itoa(i), Lease: time.Minute, TTL: time.Hour}
				_, err = s.Accept(context.Background(), idempotency.Key("hook::backlog:"+strconv.Itoa(i)), req, m)
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}

func benchTake(b *testing.B, c redis.UniversalClient, s *redisstore.Store) {
	before := serverCPU(b, c)
	for i := range b.N {
		if _, err := s.Take(b.Context(), idempotency.TakeRequest{Tokens: []string{"r1.t" + strconv.Itoa(i)}, Look: 5 * time.Second}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((serverCPU(b, c)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// serverCPU returns the CPU time that the server has used.
func serverCPU(b *testing.B, c redis.UniversalClient) (total time.Duration) {
	b.Helper()
	info, err := c.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			total += time.Duration(seconds * float64(time.Second))
		}
	}
	return total
}
