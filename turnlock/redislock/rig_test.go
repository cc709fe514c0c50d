package redislock_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/turnlock"
	"github.com/oncegate/oncegate/turnlock/redislock"
)

const prefix = "gateway:"

// replica is one process's Locker, running.
type replica struct {
	*redislock.Locker
	id             string
	health         *health.Registry
	lost, failOpen atomic.Int32
	stop           func() // ends Run and waits for it
}

// settings are what tests change of a Config.
type settings = func(*redislock.Config)

// newReplica returns a running Locker with the id on the server at addr.
func newReplica(t testing.TB, addr, id string, change ...settings) *replica {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := &replica{id: id, health: health.NewRegistry(log)}
	r.health.Enter(health.Ready)
	c := redislock.Config{
		Client: newClient(t, addr), Prefix: prefix, Replica: id, TTL: 3 * time.Second, MaxWait: 10 * time.Second, Timeout: time.Second,
		Health: r.health,
		Events: redislock.Events{Lost: func() { r.lost.Add(1) }, FailOpen: func() { r.failOpen.Add(1) }},
		Now:    time.Now, Log: log,
	}
	for _, set := range change {
		set(&c)
	}
	r.Locker = redislock.New(c)
	r.Start(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx) // ends with nil
	}()
	r.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(r.stop)
	return r
}

func newClient(t testing.TB, addr string) redis.UniversalClient {
	t.Helper()
	c, err := redisclient.New(redisURL(addr), redisclient.Options{PoolSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // may be closed already
	return c
}

func redisURL(addr string) redisconf.Config {
	c := redisconf.DefaultConfig()
	c.URL = secret.New("redis://" + addr)
	if addr[0] == '/' {
		c.URL = secret.New("unix://" + addr)
	}
	return c
}

// await asks again and again until condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	end, tick := time.NewTimer(15*time.Second), time.NewTicker(2*time.Millisecond)
	defer end.Stop()
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("%s has not come about", what)
		}
	}
}

// awaitWaiting returns when n waiters have their place in the server's queue.
func awaitWaiting(t testing.TB, look *redis.Client, session string, n int) {
	t.Helper()
	await(t, "a queue of the length", func() bool {
		return look.ZCard(context.Background(), prefix+"turnqueue:"+session).Val() == int64(n)
	})
}

func mustAcquire(t testing.TB, l turnlock.Locker, session string) *turnlock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), session)
	if err != nil {
		t.Fatalf("Acquire(%q) = %v", session, err)
	}
	return lease
}
