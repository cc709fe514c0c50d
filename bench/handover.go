package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/oncegate/oncegate/turnlock"
)

// handOverRounds is how often the sides of the comparison take turns.
const handOverRounds = 10

// paced is one side of the comparison: single events, each after a rest of once
// to twice the same time. So every one meets goroutines, threads and a server
// that have gone to sleep, as they have in the middle of a turn, and a waiter
// that retries is met at any moment between two tries.
type paced struct {
	rest  time.Duration
	times int // in a round
	once  func(ctx context.Context, rest time.Duration) (time.Duration, error)
	took  []time.Duration
}

// handOver measures the time from the Release of a lock on one replica until
// the Acquire of a waiter on another returns, against a round trip.
func (b *lockBench) handOver(ctx context.Context, r *report) (err error) {
	from, err := b.replica(ctx, "a", turnlock.DefaultTTL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.stop()) }()
	to, err := b.replica(ctx, "b", turnlock.DefaultTTL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.stop()) }()

	const rest = 10 * time.Millisecond
	ping := &paced{rest: rest, times: 50, once: func(ctx context.Context, rest time.Duration) (time.Duration, error) {
		time.Sleep(rest)
		start := time.Now()
		err := to.client.Ping(ctx).Err()
		return time.Since(start), err
	}}
	ours := &paced{rest: rest, times: 50, once: between(from.acquire, to.acquire)}
	bsm := &paced{rest: bsmRetry, times: 50, once: between(bsmLock(from.client), bsmLock(to.client))}
	redsync := &paced{rest: redsyncRetry, times: 5, once: between(redsyncLock(from.client), redsyncLock(to.client))}
	for range handOverRounds {
		for _, side := range []*paced{ping, ours, bsm, redsync} {
			if err := side.round(ctx); err != nil {
				return err
			}
		}
	}
	trip := ping.median()
	r.atMost("hand-over to another replica in µs, base: a PING, also paced", ours.median(), trip, 3)
	r.note("on the same base bsm/redislock takes %.4g (%.1f), redsync %.4g (%.1f)",
		bsm.median(), bsm.median()/trip, redsync.median(), redsync.median()/trip)

	busy, err := measure(ctx, 1, time.Second, func(ctx context.Context) error { return to.client.Ping(ctx).Err() })
	if err != nil {
		return err
	}
	r.note("a PING right behind another takes %.4g: the hand-over takes %.1f of those", busy.p50, ours.median()/busy.p50)
	return nil
}

func (p *paced) round(ctx context.Context) error {
	for range p.times {
		took, err := p.once(ctx, p.rest+rand.N(p.rest))
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		p.took = append(p.took, took)
	}
	return nil
}

// median is in µs.
func (p *paced) median() float64 { return float64(quantile(p.took, 0.5)) / float64(time.Microsecond) }

// between returns what hands a lock over: a waiter waits while its holder rests.
func between(from, to acquire) func(context.Context, time.Duration) (time.Duration, error) {
	type acquired struct {
		at      time.Time
		release func() error
		err     error
	}
	return func(ctx context.Context, rest time.Duration) (time.Duration, error) {
		const session = "handed over"
		release, err := from(ctx, session)
		if err != nil {
			return 0, err
		}
		got := make(chan acquired, 1)
		go func() {
			release, err := to(ctx, session)
			got <- acquired{time.Now(), release, err}
		}()
		time.Sleep(rest)
		start := time.Now()
		err = release()
		next := <-got
		if err = errors.Join(err, next.err); err != nil {
			return 0, err
		}
		return next.at.Sub(start), next.release()
	}
}
