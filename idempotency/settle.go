package idempotency

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// carriers is how many claims are carried at once; they share round trips.
	carriers = 64
	// fewLeft is what may be left to carry while claims are held off.
	fewLeft = carriers
	// maxPasses bounds the attempts to get down to fewLeft while messages
	// keep coming; then the rest is carried all the same.
	maxPasses = 20
	// holdOff bounds how long claims wait for a store to come back.
	holdOff = 500 * time.Millisecond
	// pageSize is how many records are read at once for carrying.
	pageSize = 256
)

// settle carries everything that belongs into a tier and raises it. The order:
// what nobody holds is given back, the heartbeat acknowledged, then claims and
// records are carried. Most of it goes while messages still run; the rest, with
// claims held off.
func (f *Failover) settle(ctx context.Context, t *tier) error {
	if err := f.carryClaims(ctx, t, (*entry).pending, f.release); err != nil {
		return err
	}
	if err := f.beat(ctx, t); err != nil {
		return err
	}
	if t.emptied {
		if err := f.restore(ctx, t); err != nil {
			return err
		}
	}
	total := 0
	for range maxPasses {
		carried, err := f.carryAll(ctx, t)
		if total += carried; err != nil {
			return err
		}
		if carried <= fewLeft {
			break
		}
	}
	if err := f.readable(ctx, t); err != nil {
		return err
	}
	if err := f.raiseSettled(ctx, t); err != nil || total == 0 {
		return err
	}
	f.cfg.Log.Info("messages of an outage carried", "store", t.Name, "messages", total)
	return f.beat(ctx, t) // so that the others hear of it now
}

// readable returns why what a weaker store holds for a better one cannot be
// read: then it has not come back.
func (f *Failover) readable(ctx context.Context, t *tier) error {
	shadow, ok := t.store().(Shadow)
	if !ok || t.index == 0 || !t.hasRecords() {
		return nil
	}
	_, err := readPage(ctx, shadow, false, "")
	return err
}

// raiseSettled carries the rest with claims held off, and raises the tier. A
// weaker store that is slow does not keep the better one away: after holdOff
// it is raised all the same. Then a claim that was being made is made again,
// see claim, a record being written is carried by who writes it, and the rest
// by the next round.
func (f *Failover) raiseSettled(ctx context.Context, t *tier) error {
	f.settling.Lock()
	defer f.settling.Unlock()
	held, cancel := context.WithTimeout(ctx, holdOff)
	defer cancel()
	if f.claiming.shut(held) == nil {
		defer f.claiming.open()
	}
	if _, err := f.carryAll(held, t); err != nil && held.Err() == nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.raise(t)
	return nil
}

// beat writes a heartbeat. Where the tier wants one before it is claimed in,
// one that is not acknowledged is an error.
func (f *Failover) beat(ctx context.Context, t *tier) error {
	if t.index > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := f.live.beat(ctx, true); err != nil && t.Heartbeats {
		return err
	}
	return nil
}

// carryAll carries what there is and returns how much that was.
func (f *Failover) carryAll(ctx context.Context, t *tier) (int, error) {
	if err := f.carryClaims(ctx, t, (*entry).pending, f.release); err != nil {
		return 0, err
	}
	var moved atomic.Int64
	err := f.carryClaims(ctx, t, (*entry).moves, func(ctx context.Context, t *tier, e *entry) error {
		moved.Add(1)
		return f.move(ctx, t, e)
	})
	carried := int(moved.Load())
	if err != nil {
		return carried, err
	}
	for _, from := range f.tiers[t.index+1:] {
		n, err := f.carryRecords(ctx, t, from, false)
		if carried += n; err != nil {
			return carried, err
		}
	}
	return carried, nil
}

// carryClaims does what has to be done in a tier for the claims of the table.
// Only that tier is asked, so that a fault elsewhere cannot keep it down.
func (f *Failover) carryClaims(ctx context.Context, t *tier, concerned func(*entry, int) bool, do func(context.Context, *tier, *entry) error) error {
	return each(ctx, f.unsettled.all(), func(ctx context.Context, e *entry) error {
		if err := e.acquire(ctx); err != nil {
			return err
		}
		defer e.free()
		if !concerned(e, t.index) {
			return nil
		}
		err := do(ctx, t, e)
		f.unsettled.tidy(e)
		return err
	})
}

// release tells a tier that nobody holds the claim of e. Once that has been
// acknowledged it is repeated after a while: a Reserve that had no answer may
// be carried out even later.
func (f *Failover) release(ctx context.Context, t *tier, e *entry) error {
	ctx, cancel := t.budget(ctx)
	defer cancel()
	if err := t.store().Release(ctx, e.claim); !answered(err) {
		return err
	}
	e.doubts &^= bit(t.index) // ours and released, or never ours
	if t.Heartbeats {
		e.confirm |= bit(t.index)
		e.due = f.cfg.Now().Add(f.cfg.TakeoverAfter)
	}
	return nil
}

// sweepReleases repeats the releases whose time has come in a tier, and makes
// those that it did not take when it should have.
func (f *Failover) sweepReleases(ctx context.Context, t *tier) {
	now := f.cfg.Now()
	due := func(e *entry, i int) bool { return !e.gone && e.confirm&bit(i) != 0 && !now.Before(e.due) }
	err := f.carryClaims(ctx, t, (*entry).pending, f.release)
	if err == nil {
		err = f.carryClaims(ctx, t, due, f.releaseAgain)
	}
	if err != nil && ctx.Err() == nil {
		f.down(t, err)
	}
}

// carryBacklog carries into the configured store, while it serves, what a
// weaker one holds for it that has come back later, and what was under way when
// it was raised.
func (f *Failover) carryBacklog(ctx context.Context) {
	best := f.tiers[0]
	if f.isUp(best) {
		if _, err := f.carryAll(ctx, best); err != nil && ctx.Err() == nil {
			f.down(best, err)
		}
	}
	for _, t := range f.tiers[1:] {
		f.count(ctx, t)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report()
}

func (f *Failover) releaseAgain(ctx context.Context, t *tier, e *entry) error {
	ctx, cancel := t.budget(ctx)
	defer cancel()
	if err := t.store().Release(ctx, e.claim); !answered(err) {
		return err
	}
	e.confirm &^= bit(t.index)
	return nil
}

// move takes the claim of a run that goes on into a better tier. The claim in
// the weaker store is left to its lease: should the better one go away again,
// it keeps this replica from running the message twice. Where somebody else has
// the message meanwhile, the run ends in the weaker store, and its record is
// settled then.
func (f *Failover) move(ctx context.Context, t *tier, e *entry) error {
	ctx, cancel := t.budget(ctx)
	defer cancel()
	c := e.claim
	res, err := t.store().Reserve(ctx, c.Key, Request{Token: c.Token, Lease: c.Lease, TTL: c.TTL, Fingerprint: c.Fingerprint, Owners: owners{f, t}})
	switch {
	case errors.Is(err, ErrForeign), err == nil && res.State != Won:
		f.slipped(c, t)
	case err != nil:
		e.doubts |= bit(t.index)
		return err
	default:
		e.home = t.index
		e.doubts &^= bit(t.index)
	}
	return nil
}

// Backlog returns how many messages of an outage are not in the configured
// store yet, as they were counted last. It asks no store.
func (f *Failover) Backlog() int {
	n := 0
	for _, e := range f.unsettled.all() {
		select {
		case e.lock <- struct{}{}:
			if e.moves(0) {
				n++
			}
			e.free()
		default: // a call for it is under way
			n++
		}
	}
	for _, t := range f.tiers[1:] {
		if t.hasRecords() {
			n += max(1, int(t.backlog.Load()))
		}
	}
	return n
}

// count counts the records to carry out of a weaker store.
func (f *Failover) count(ctx context.Context, t *tier) {
	shadow, ok := t.store().(Shadow)
	if !ok || !t.hasRecords() || !f.isUp(t) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, holdOff)
	defer cancel()
	if n, err := shadow.Backlog(ctx); err == nil {
		t.backlog.Store(int64(n))
	}
}

// each calls do for every item, carriers at a time, and returns the first
// error, after which no more are begun.
func each[T any](ctx context.Context, items []T, do func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	slots := make(chan struct{}, carriers)
	for _, item := range items {
		if ctx.Err() != nil {
			break
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := do(ctx, item); err != nil {
				once.Do(func() {
					first = err
					cancel(err)
				})
			}
		})
	}
	wg.Wait()
	if first == nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return first
}
