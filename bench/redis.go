package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
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
	t := turns{each: 700 * time.Millisecond, rounds: 7, before: func(ctx context.Context) error { return client.FlushAll(ctx).Err() }}
	return t.pair(ctx, goroutines, setNX, reserve)
}
