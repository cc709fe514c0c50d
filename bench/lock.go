package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest/redisproc"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/turnlock"
	"github.com/oncegate/oncegate/turnlock/redislock"
)

const lockPrefix = "bench:"

// benchLock compares the turn lock in Redis with what it is made of, a pair of
// plain commands and a round trip, and with two lock libraries that make no
// queue: on one private server, on a unix socket.
func benchLock(ctx context.Context, r *report) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return fmt.Errorf("bench lock: %w", err)
	}
	defer os.RemoveAll(dir)
	server, err := redisproc.Start(ctx, dir)
	if err != nil {
		return fmt.Errorf("bench lock: %w", err)
	}
	defer server.Kill()
	b := &lockBench{socket: server.Socket()}
	r.section("Turn lock in Redis, unix socket")
	if err := b.uncontended(ctx, r); err != nil {
		return fmt.Errorf("bench lock: uncontended: %w", err)
	}
	if err := b.handOver(ctx, r); err != nil {
		return fmt.Errorf("bench lock: hand-over: %w", err)
	}
	if err := b.hold(ctx, r); err != nil {
		return fmt.Errorf("bench lock: held leases: %w", err)
	}
	return nil
}

// lockBench knows the server.
type lockBench struct{ socket string }

func (b *lockBench) client() (redis.UniversalClient, error) {
	return redisclient.New(redisconf.Config{URL: secret.New("unix://" + b.socket)}, redisclient.Options{})
}

// replica is a Locker that runs, as in a process of its own.
type replica struct {
	*redislock.Locker
	client redis.UniversalClient
	lost   atomic.Int32 // locks that were lost, and turns that went on without one
	cancel context.CancelFunc
	ran    chan error
}

func (b *lockBench) replica(ctx context.Context, id string, ttl time.Duration) (*replica, error) {
	client, err := b.client()
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	r := &replica{client: client, ran: make(chan error, 1)}
	count := func() { r.lost.Add(1) }
	r.Locker = redislock.New(redislock.Config{
		Client: client, Prefix: lockPrefix, Replica: id, TTL: ttl, MaxWait: turnlock.DefaultMaxWait, Timeout: 2 * time.Second,
		Health: health.NewRegistry(log), Events: redislock.Events{Lost: count, FailOpen: count}, Now: time.Now, Log: log,
	})
	r.Start(ctx)
	ctx, r.cancel = context.WithCancel(ctx)
	go func() { r.ran <- r.Run(ctx) }()
	return r, nil
}

// stop fails if the replica was ever without a lock that it thought it had.
func (r *replica) stop() error {
	r.cancel()
	err := errors.Join(<-r.ran, r.client.Close())
	if n := r.lost.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d locks lost or never held", n))
	}
	return err
}

// acquire waits for a lock and returns what gives it back.
type acquire func(ctx context.Context, name string) (release func() error, err error)

func (r *replica) acquire(ctx context.Context, name string) (func() error, error) {
	lease, err := r.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	return func() error { lease.Release(); return nil }, nil
}

// bsmLock retries each 10 ms.
func bsmLock(client redis.UniversalClient) acquire {
	locker := bsm.New(client)
	return func(ctx context.Context, name string) (func() error, error) {
		lock, err := locker.Obtain(ctx, lockPrefix+"bsm:"+name, turnlock.DefaultTTL, &bsm.Options{RetryStrategy: bsm.LinearBackoff(bsmRetry)})
		if err != nil {
			return nil, err
		}
		return func() error { return lock.Release(ctx) }, nil
	}
}

// redsyncLock retries after its default of 50 to 250 ms.
func redsyncLock(client redis.UniversalClient) acquire {
	locker := redsync.New(goredis.NewPool(client))
	return func(ctx context.Context, name string) (func() error, error) {
		lock := locker.NewMutex(lockPrefix+"redsync:"+name, redsync.WithExpiry(turnlock.DefaultTTL))
		if err := lock.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error { _, err := lock.UnlockContext(ctx); return err }, nil
	}
}

// The longest retry delays.
const (
	bsmRetry     = 10 * time.Millisecond
	redsyncRetry = 250 * time.Millisecond
)

// uncontended holds a turn of a session that nobody else wants against one SET
// NX PX and one DEL, on the same client.
func (b *lockBench) uncontended(ctx context.Context, r *report) (err error) {
	ours, err := b.replica(ctx, "a", turnlock.DefaultTTL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	var id atomic.Int64
	// Sessions come again, as they do in earnest, but not while one is held.
	session := func() string { return strconv.FormatInt(id.Add(1)%10_000, 10) }
	token := "a.ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	pair := func(ctx context.Context) error {
		key := lockPrefix + "plain:" + session()
		// Not a whole second, for which the client would send EX.
		if won, err := ours.client.SetNX(ctx, key, token, turnlock.DefaultTTL+time.Millisecond).Result(); err != nil || !won {
			return errors.Join(err, errors.New("a free key was not set"))
		}
		return ours.client.Del(ctx, key).Err()
	}
	turn := func(take acquire) side {
		return func(ctx context.Context) error {
			release, err := take(ctx, session())
			if err != nil {
				return err
			}
			return release()
		}
	}
	sides := []side{pair, turn(ours.acquire), turn(bsmLock(ours.client)), turn(redsyncLock(ours.client))}
	t := turns{each: 700 * time.Millisecond, rounds: 7}
	alone, err := t.take(ctx, 1, sides...)
	if err != nil {
		return err
	}
	pairs, locks, bsms, redsyncs := alone[0].p50, alone[1].p50, alone[2].p50, alone[3].p50
	r.atMost("Acquire + Release in µs, base: SET NX PX + DEL", locks, pairs, 2.2)
	r.note("on the same base bsm/redislock takes %.4g (%.2f), redsync %.4g (%.2f)", bsms, bsms/pairs, redsyncs, redsyncs/pairs)
	// So many that neither side sleeps: what is compared is the work.
	busy, err := t.take(ctx, 64, sides...)
	if err != nil {
		return err
	}
	cost := func(i int) float64 { return busy[0].rate / busy[i].rate }
	r.note("64 at once, each with a session of its own, %.4g pairs/s cost as much as %.4g turns/s (%.2f each); bsm/redislock %.2f, redsync %.2f",
		busy[0].rate, busy[1].rate, cost(1), cost(2), cost(3))
	return nil
}
