package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// turns is how the sides of a comparison take turns. The median of the turns
// counts.
type turns struct {
	each   time.Duration // how long a side runs at a time
	rounds int           // how often each side runs, after once that does not count
	before func(context.Context) error
}

// side is one side of a comparison, a call that is repeated.
type side func(ctx context.Context) error

// take returns the medians of the sides, each called by goroutines at once.
func (t turns) take(ctx context.Context, goroutines int, sides ...side) ([]load, error) {
	loads := make([][]load, len(sides))
	for round := range t.rounds + 1 {
		for i, call := range sides {
			if t.before != nil {
				if err := t.before(ctx); err != nil {
					return nil, err
				}
			}
			l, err := measure(ctx, goroutines, t.each, call)
			if err = errors.Join(err, ctx.Err()); err != nil {
				return nil, err
			}
			if round > 0 { // the first one fills pools and caches
				loads[i] = append(loads[i], l)
			}
		}
	}
	medians := make([]load, len(sides))
	for i := range loads {
		medians[i] = medianLoad(loads[i])
	}
	return medians, nil
}

// pair is take of two sides.
func (t turns) pair(ctx context.Context, goroutines int, base, ours side) (load, load, error) {
	loads, err := t.take(ctx, goroutines, base, ours)
	if err != nil {
		return load{}, load{}, err
	}
	return loads[0], loads[1], nil
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
