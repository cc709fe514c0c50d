package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest/redisproc"
	"github.com/oncegate/oncegate/message"
)

// How long each side of a comparison runs at a time, and how often the sides
// take turns. The median of the turns counts.
const (
	redisTurn  = 700 * time.Millisecond
	redisTurns = 7
)

// benchRedis compares reservations in Redis with one plain SET NX PX for each
// round trip, on the same client of the same server: a private one on a
// TCP port of 127.0.0.1, as a server is reached in earnest.
func benchRedis(ctx context.Context, r *report) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return fmt.Errorf("bench redis: %w", err)
	}
	defer os.RemoveAll(dir)
	port, err := freePort()
	if err != nil {
		return fmt.Errorf("bench redis: %w", err)
	}
	server, err := redisproc.Start(ctx, dir, "--bind", "127.0.0.1", "--port", strconv.Itoa(port))
	if err != nil {
		return fmt.Errorf("bench redis: %w", err)
	}
	defer server.Kill()
	client, err := redisclient.New(redisconf.Config{Host: "127.0.0.1", Port: port}, redisclient.Options{})
	if err != nil {
		return fmt.Errorf("bench redis: %w", err)
	}
	defer client.Close()
	store := redisstore.New(client, redisstore.Config{Prefix: "bench:"})
	defer store.Close()

	r.section("Redis reserve against one SET NX PX per round trip, TCP on 127.0.0.1")
	for _, c := range []struct {
		goroutines int
		print      func(plain, ours load)
	}{
		{256, func(plain, ours load) {
			r.atLeast("256 goroutines, claims/s", ours.rate, plain.rate, 4)
			r.atMost("256 goroutines, p99 in µs", ours.p99, plain.p99, 0.4)
		}},
		{64, func(plain, ours load) {
			r.atLeast("64 goroutines, claims/s", ours.rate, plain.rate, 3)
		}},
		{1, func(plain, ours load) {
			r.atMost("1 goroutine, median latency in µs", ours.p50, plain.p50, 1.2)
		}},
	} {
		plain, ours, err := compareRedis(ctx, client, store, c.goroutines)
		if err != nil {
			return fmt.Errorf("bench redis: %w", err)
		}
		c.print(plain, ours)
	}
	return nil
}

// freePort returns a port of 127.0.0.1 that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// compareRedis returns the medians of both sides.
func compareRedis(ctx context.Context, client redis.UniversalClient, store *redisstore.Store, goroutines int) (plain, ours load, err error) {
	const lease = 15 * time.Minute
	var id atomic.Int64
	next := func() string { return strconv.FormatInt(id.Add(1), 10) }
	token := idempotency.NewToken(idempotency.NewReplicaID())
	setNX := func(ctx context.Context) error {
		// Not a whole second, for which the client would send EX.
		return client.SetNX(ctx, "bench:hookidem:hook::bench:"+next(), token, lease+time.Millisecond).Err()
	}
	reserve := func(ctx context.Context) error {
		r, err := store.Reserve(ctx, idempotency.Key("hook::bench:"+next()), idempotency.Request{
			Token: token, Lease: lease, TTL: 24 * time.Hour, Fingerprint: message.Fingerprint{1},
		})
		if err == nil && r.State != idempotency.Won {
			err = errors.New("a new key was not won")
		}
		return err
	}
	var plains, ourss []load
	for turn := range redisTurns + 1 {
		for _, side := range []struct {
			call  func(context.Context) error
			loads *[]load
		}{{setNX, &plains}, {reserve, &ourss}} {
			if err := client.FlushAll(ctx).Err(); err != nil {
				return plain, ours, err
			}
			l, err := measure(ctx, goroutines, redisTurn, side.call)
			if err != nil {
				return plain, ours, err
			}
			if turn > 0 { // the first turn fills pools and caches
				*side.loads = append(*side.loads, l)
			}
		}
	}
	return medianLoad(plains), medianLoad(ourss), nil
}

// load is what a number of goroutines got through.
type load struct{ rate, p50, p99 float64 } // calls/s, µs, µs

// measure has goroutines repeat call for d.
func measure(ctx context.Context, goroutines int, d time.Duration, call func(context.Context) error) (load, error) {
	latencies := make([][]time.Duration, goroutines)
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range goroutines {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx) // its own, as every request has
			defer cancel()
			for sent := time.Now(); sent.Sub(start) < d; {
				if errs[i] = call(ctx); errs[i] != nil {
					return
				}
				now := time.Now()
				latencies[i] = append(latencies[i], now.Sub(sent))
				sent = now
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return load{}, errs[i]
	}
	all := slices.Concat(latencies...)
	micros := func(q float64) float64 { return float64(quantile(all, q)) / float64(time.Microsecond) }
	return load{rate: float64(len(all)) / elapsed.Seconds(), p50: micros(0.5), p99: micros(0.99)}, nil
}

// medianLoad takes each figure's median by itself.
func medianLoad(loads []load) load {
	median := func(figure func(load) float64) float64 {
		var all []float64
		for _, l := range loads {
			all = append(all, figure(l))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return load{
		rate: median(func(l load) float64 { return l.rate }),
		p50:  median(func(l load) float64 { return l.p50 }),
		p99:  median(func(l load) float64 { return l.p99 }),
	}
}
