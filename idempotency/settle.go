package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	holdOff = time.Second
)

// settle carries everything that belongs into a tier and brings it up. Most of
// it goes while messages still run; the rest, with claims held off.
func (f *Failover) settle(ctx context.Context, i int) error {
	for range maxPasses {
		carried, err := f.carryAll(ctx, i)
		if err != nil {
			return err
		}
		if carried <= fewLeft {
			break
		}
	}
	ctx, cancel := context.WithTimeout(ctx, holdOff)
	defer cancel()
	if err := f.claiming.shut(ctx); err != nil {
		return fmt.Errorf("hold claims off: %w", err)
	}
	defer f.claiming.open()
	if _, err := f.carryAll(ctx, i); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tiers[i]
	t.up, t.worked, t.err = true, true, nil
	f.overflowed = false
	f.report()
	return nil
}

// carryAll carries what there is and returns how much that was.
func (f *Failover) carryAll(ctx context.Context, i int) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		carried int
		first   error
	)
	slots := make(chan struct{}, carriers)
	for _, e := range f.unsettled.all() {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			did, err := f.carry(ctx, i, e)
			mu.Lock()
			defer mu.Unlock()
			if did {
				carried++
			}
			if err != nil && first == nil {
				first = err
				cancel()
			}
		})
	}
	wg.Wait()
	return carried, first
}

// carry does what has to be done for one claim in tier i and reports whether
// there was anything. Only tier i is asked, so that a fault elsewhere cannot
// keep it down.
func (f *Failover) carry(ctx context.Context, i int, e *entry) (bool, error) {
	if err := e.acquire(ctx); err != nil {
		return false, err
	}
	defer e.free()
	if !e.concerns(i) {
		return false, nil
	}
	ctx, cancel := f.tiers[i].budget(ctx)
	defer cancel()
	var err error
	switch {
	case e.state == entryRecorded && e.home > i:
		err = f.carryRecord(ctx, i, e)
	case e.state == entryRunning && e.home > i:
		err = f.carryRunning(ctx, i, e)
	default:
		if err = f.tiers[i].store.Release(ctx, e.claim); answered(err) {
			err = nil // ours and released, or never ours
			e.doubts &^= bit(i)
		}
	}
	if errors.Is(err, ErrNotOwner) {
		// Somebody else had the message there meanwhile. Our run, if it goes
		// on, ends where its claim is.
		f.unsettled.drop(e)
		f.cfg.Events.slipped()
		f.cfg.Log.Warn("slipped duplicate", "key", string(e.claim.Key), "store", f.tiers[i].Name)
		return true, nil
	}
	f.unsettled.tidy(e)
	return true, err
}

// carryRunning takes the claim of a run that goes on. The claim in the weaker
// store is left to its lease: should the better one go away again, it keeps
// this replica from running the message twice.
func (f *Failover) carryRunning(ctx context.Context, i int, e *entry) error {
	c := e.claim
	res, err := f.tiers[i].store.Reserve(ctx, c.Key, Request{Token: c.Token, Lease: c.Lease, TTL: c.TTL, Fingerprint: c.Fingerprint})
	switch {
	case err != nil:
		e.doubts |= bit(i)
		return err
	case res.State != Won:
		return ErrNotOwner
	}
	e.home = i
	e.doubts &^= bit(i)
	return nil
}

func (f *Failover) carryRecord(ctx context.Context, i int, e *entry) error {
	c := e.claim
	now := f.cfg.Now()
	if c.TTL = c.RemainingTTL(now); c.TTL <= 0 {
		e.state = entryReleased // its window is over; a doubt may be left
		return nil
	}
	c.Confirmed = now
	if err := f.tiers[i].store.Record(ctx, c, e.outcome); err != nil {
		return err
	}
	e.home = i
	e.doubts &^= bit(i)
	return nil
}

// Renew implements Store.
func (f *Failover) Renew(ctx context.Context, c Claim) error {
	e, home, err := f.locate(ctx, c)
	if err != nil {
		return err
	}
	if e != nil {
		defer e.free()
	}
	return f.call(ctx, home, func(ctx context.Context, s Store) error { return s.Renew(ctx, c) })
}

// Record implements Store. A record that its own store cannot take is kept in
// the next one that can, or in memory, and carried back later.
func (f *Failover) Record(ctx context.Context, c Claim, outcome []byte) error {
	e, home, err := f.locate(ctx, c)
	if err != nil {
		return err
	}
	record := func(ctx context.Context, s Store) error { return s.Record(ctx, c, outcome) }
	if err = f.call(ctx, home, record); e == nil {
		if answered(err) {
			return err
		}
		// In the table before any other store is asked: whoever brings the
		// store back meanwhile waits for the entry.
		e = f.track(ctx, c, home)
	}
	defer f.catchUp(ctx, e)
	defer e.free()
	now := f.cfg.Now()
	for !answered(err) && home < len(f.tiers) {
		if home++; home < len(f.tiers) {
			err = f.call(ctx, home, record)
		}
	}
	if errors.Is(err, ErrNotOwner) {
		e.state = entryReleased
	} else {
		e.claim, e.state, e.home = c, entryRecorded, home
		e.claim.Confirmed = now
		f.unsettled.keep(e, outcome)
	}
	f.unsettled.tidy(e)
	return err
}

// Release implements Store. A release that its store cannot take is repeated
// when the store is back.
func (f *Failover) Release(ctx context.Context, c Claim) error {
	e, home, err := f.locate(ctx, c)
	if err != nil {
		return err
	}
	err = f.call(ctx, home, func(ctx context.Context, s Store) error { return s.Release(ctx, c) })
	if e == nil {
		if answered(err) {
			return err
		}
		e = f.track(ctx, c, home)
	}
	defer f.catchUp(ctx, e)
	defer e.free()
	e.state = entryReleased
	if !answered(err) {
		e.doubts |= bit(home)
	}
	f.unsettled.tidy(e)
	return err
}

// answered reports whether a store said yes or no, or that it cannot tell for
// this key alone.
func answered(err error) bool {
	return err == nil || errors.Is(err, ErrNotOwner) || errors.Is(err, ErrForeign)
}

// locate finds the tier that has the claim. If the claim is in the table its
// entry is returned locked.
func (f *Failover) locate(ctx context.Context, c Claim) (*entry, int, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if e := f.unsettled.find(c.Token); e != nil {
		if err := e.acquire(ctx); err != nil {
			return nil, 0, err
		}
		if !e.gone {
			return e, e.home, nil
		}
		e.free()
	}
	for i, t := range f.tiers {
		if t.Name == c.Backend {
			return nil, i, nil
		}
	}
	return nil, 0, ErrNotOwner
}

// track enters a claim whose store gave no answer and returns its entry,
// locked. It passes the gate, which is never shut for long: either a store that
// comes back finds the entry, or catchUp finds the store.
func (f *Failover) track(ctx context.Context, c Claim, home int) *entry {
	e := newEntry(c, entryRunning, home)
	e.lock <- struct{}{}
	_ = f.claiming.enter(context.WithoutCancel(ctx)) // never ends
	defer f.claiming.leave()
	f.add(e)
	return e
}

// add enters an entry, and says so once an outage if there is no room.
func (f *Failover) add(e *entry) {
	if f.unsettled.add(e) {
		return
	}
	f.cfg.Events.uncarried()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.overflowed {
		f.overflowed = true
		f.cfg.Log.Error("too many messages to carry after this outage; other replicas will not know them", "bound", maxUnsettled)
	}
}

// catchUp carries a claim into a store that came back while the claim was
// being settled in a weaker one.
func (f *Failover) catchUp(ctx context.Context, e *entry) {
	for i := range f.tiers {
		if !f.isUp(i) {
			continue
		}
		if _, err := f.carry(ctx, i, e); err != nil && ctx.Err() == nil {
			f.down(i, err) // and the next probe carries it
		}
		return
	}
}

// call runs one operation in a tier, inside its budget, and takes the tier
// down if it gives no answer. A tier that is down already is not waited for.
func (f *Failover) call(ctx context.Context, i int, do func(context.Context, Store) error) error {
	if i == len(f.tiers) {
		return ErrUnavailable // no store has the claim
	}
	f.mu.Lock()
	t := f.tiers[i]
	store, up, why := t.store, t.up, t.err
	f.mu.Unlock()
	if !up {
		return errors.Join(why, ErrUnavailable)
	}
	bounded, cancel := t.budget(ctx)
	defer cancel()
	err := do(bounded, store)
	if !answered(err) && ctx.Err() == nil {
		f.down(i, err)
	}
	return err
}
