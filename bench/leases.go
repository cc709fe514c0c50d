package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/turnlock"
)

// How many leases are held, and for how long: a lock that is there after more
// than twice its life, and was never lost, has been renewed at least twice.
const (
	leases   = 10_000
	leaseTTL = 3 * time.Second
	leaseFor = 3 * leaseTTL
)

// hold counts the goroutines that a Locker adds, all of its own included, while
// it holds leases and renews them, and takes the processor time of it.
func (b *lockBench) hold(ctx context.Context, r *report) (err error) {
	before := runtime.NumGoroutine()
	replica, err := b.replica(ctx, "a", leaseTTL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, replica.stop()) }()
	for i := range leases {
		lease, err := replica.Acquire(ctx, strconv.Itoa(i))
		if err != nil {
			return err
		}
		defer lease.Release()
	}
	start, err := spent(ctx, replica.client)
	if err != nil {
		return err
	}
	most := 0
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for end := time.After(leaseFor); end != nil; {
		select {
		case <-look.C:
			most = max(most, runtime.NumGoroutine()-before)
		case <-end:
			end = nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	end, err := spent(ctx, replica.client)
	if err != nil {
		return err
	}
	if err := stillHeld(ctx, replica.client); err != nil {
		return err
	}
	r.atMost(fmt.Sprintf("goroutines that hold and renew %d leases, base: 1 for 1000", leases), float64(most), leases/1000, 1)
	perSecond := func(d time.Duration) float64 { return d.Seconds() * 1000 / leaseFor.Seconds() }
	mine, redis := perSecond(end.process-start.process), perSecond(end.redis-start.redis)
	r.note("with a ttl of %s they cost this process %.3g ms of processor time in a second, and Redis %.3g; with the default of %s a part in %.0f of that",
		leaseTTL, mine, redis, turnlock.DefaultTTL, turnlock.DefaultTTL.Seconds()/leaseTTL.Seconds())
	return nil
}

// stillHeld makes sure that every lock is there and will be for a while.
func stillHeld(ctx context.Context, client redis.UniversalClient) error {
	pipe := client.Pipeline()
	left := make([]*redis.DurationCmd, leases)
	for i := range left {
		left[i] = pipe.PTTL(ctx, lockPrefix+"turnlock:"+strconv.Itoa(i))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for i, cmd := range left {
		// Due after a third of its life, it may have waited for the round trip of others.
		if d := cmd.Val(); d < leaseTTL/2 || d > leaseTTL {
			return fmt.Errorf("lock %d lives for %s more, which is not what renewing leaves it", i, d)
		}
	}
	return nil
}

// processors is the processor time that was spent so far.
type processors struct{ process, redis time.Duration }

func spent(ctx context.Context, client redis.UniversalClient) (processors, error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return processors{}, err
	}
	cpu := client.InfoMap(ctx, "cpu")
	if cpu.Err() != nil {
		return processors{}, cpu.Err()
	}
	var redis float64 // in s
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		s, err := strconv.ParseFloat(cpu.Item("CPU", name), 64)
		if err != nil {
			return processors{}, err
		}
		redis += s
	}
	return processors{
		process: time.Duration(own.Utime.Nano() + own.Stime.Nano()),
		redis:   time.Duration(redis * float64(time.Second)),
	}, nil
}
