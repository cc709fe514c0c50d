package idempotency

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// maxUnsettled bounds what is remembered for carrying. A claim past it stays in
// the weaker store and counts as slipped when the better one is back.
const maxUnsettled = 100_000

// unsettled is the table of claims that are not, or not surely, in the store
// that their name says, by token.
type unsettled struct {
	size atomic.Int64 // of entries; nearly always 0, which find can tell without the lock

	mu      sync.Mutex
	entries map[string]*entry
}

// entry follows one claim. Its mutex orders the run's own calls against the
// carrying of the claim from one store to another.
type entry struct {
	mu      sync.Mutex
	claim   Claim
	tier    int // the store that has the claim
	doubted int // a better store that may have it too; -1 if none
	state   entryState
	gone    bool // carried, dropped or slipped; no longer in the table
}

type entryState int

const (
	entryRunning entryState = iota
	entryRecorded
	entryReleased // nothing is left but a doubt
)

// run enters a claim that was made in a weaker store.
func (u *unsettled) run(c Claim, tier int) {
	if e := u.find(c.Token); e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.gone {
			e.claim, e.tier, e.state = c, tier, entryRunning
			return
		}
	}
	u.add(&entry{claim: c, tier: tier, doubted: -1})
}

// doubt enters a claim that a store may have without our knowing.
func (u *unsettled) doubt(c Claim, tier int) {
	if u.find(c.Token) == nil {
		u.add(&entry{claim: c, tier: tier, doubted: tier, state: entryReleased})
	}
}

func (u *unsettled) add(e *entry) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.entries == nil {
		u.entries = make(map[string]*entry)
	}
	if len(u.entries) < maxUnsettled {
		u.entries[e.claim.Token] = e
		u.size.Store(int64(len(u.entries)))
	}
}

func (u *unsettled) find(token string) *entry {
	if u.size.Load() == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.entries[token]
}

// drop takes e out of the table. The caller holds e.mu.
func (u *unsettled) drop(e *entry) {
	e.gone = true
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.entries, e.claim.Token)
	u.size.Store(int64(len(u.entries)))
}

func (u *unsettled) all() []*entry {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.entries))
}

// settle carries everything that belongs into tier i and brings it up. Most of
// it goes while messages still run; the rest, with claims held off.
func (f *Failover) settle(ctx context.Context, i int) error {
	if err := f.carryAll(ctx, i); err != nil {
		return err
	}
	f.claiming.Lock()
	defer f.claiming.Unlock()
	if err := f.carryAll(ctx, i); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tiers[i]
	t.up, t.worked, t.err = true, true, nil
	f.report()
	return nil
}

func (f *Failover) carryAll(ctx context.Context, i int) error {
	for _, e := range f.unsettled.all() {
		if err := f.carry(ctx, i, e); err != nil {
			return err
		}
	}
	return nil
}

// carry moves one claim into tier i. ErrNotOwner and a lost reservation mean
// that somebody else had the message there meanwhile: it slipped.
func (f *Failover) carry(ctx context.Context, i int, e *entry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := f.tiers[i].budget(ctx)
	defer cancel()
	var err error
	switch {
	case e.gone, e.tier < i, e.tier == i && e.doubted != i:
		return nil
	case e.state == entryReleased:
		if err = f.tiers[i].store.Release(ctx, e.claim); answered(err) {
			f.unsettled.drop(e)
			return nil
		}
		return err
	case e.state == entryRecorded:
		err = f.carryRecord(ctx, i, e)
	default:
		err = f.carryRunning(ctx, i, e)
	}
	if errors.Is(err, ErrNotOwner) {
		f.unsettled.drop(e)
		f.cfg.Events.slipped()
		f.cfg.Log.Warn("slipped duplicate", "key", string(e.claim.Key), "store", f.tiers[i].Name)
		return nil
	}
	return err
}

func (f *Failover) carryRunning(ctx context.Context, i int, e *entry) error {
	c := e.claim
	res, err := f.tiers[i].store.Reserve(ctx, c.Key, Request{Token: c.Token, Lease: c.Lease, TTL: c.TTL, Fingerprint: c.Fingerprint})
	if err != nil {
		return err
	}
	if res.State != Won {
		return ErrNotOwner
	}
	// The run goes on under the claim in the better store; the weaker one must
	// not answer "in flight" for it in a later outage.
	_ = f.tiers[e.tier].store.Release(ctx, c) // its lease ends by itself
	e.moved(i)
	return nil
}

func (f *Failover) carryRecord(ctx context.Context, i int, e *entry) error {
	c := e.claim
	held, err := f.tiers[e.tier].store.Reserve(ctx, c.Key, Request{Token: c.Token, Lease: c.Lease, TTL: c.TTL})
	if err != nil {
		return err
	}
	if held.State != Recorded {
		// The window ended in the meantime: there is nothing to carry.
		_ = f.tiers[e.tier].store.Release(ctx, c) // its lease ends by itself
		f.unsettled.drop(e)
		return nil
	}
	if err := f.tiers[i].store.Record(ctx, c, held.Outcome); err != nil {
		return err
	}
	e.moved(i)
	if i == 0 {
		f.unsettled.drop(e)
	}
	return nil
}

func (e *entry) moved(tier int) {
	e.tier = tier
	if e.doubted == tier {
		e.doubted = -1
	}
}

// Renew implements Store.
func (f *Failover) Renew(ctx context.Context, c Claim) error {
	return f.at(c, func(i int, _ *entry) error {
		return f.call(ctx, i, func(ctx context.Context, s Store) error { return s.Renew(ctx, c) })
	})
}

// Record implements Store. A record that its own store cannot take is kept in
// the next one that can, and carried back later.
func (f *Failover) Record(ctx context.Context, c Claim, outcome []byte) error {
	return f.at(c, func(home int, e *entry) error {
		record := func(ctx context.Context, s Store) error { return s.Record(ctx, c, outcome) }
		i, err := home, f.call(ctx, home, record)
		for !answered(err) && i+1 < len(f.tiers) && ctx.Err() == nil {
			i++
			err = f.call(ctx, i, record)
		}
		switch {
		case !answered(err):
		case e != nil && (i == 0 || err != nil):
			f.unsettled.drop(e)
		case e != nil:
			e.claim, e.tier, e.state = c, i, entryRecorded
		case i != home && err == nil:
			f.unsettled.add(&entry{claim: c, tier: i, doubted: -1, state: entryRecorded})
		}
		return err
	})
}

// Release implements Store. A release that its store cannot take is repeated
// when the store is back.
func (f *Failover) Release(ctx context.Context, c Claim) error {
	return f.at(c, func(i int, e *entry) error {
		err := f.call(ctx, i, func(ctx context.Context, s Store) error { return s.Release(ctx, c) })
		switch {
		case e == nil && !answered(err):
			f.unsettled.doubt(c, i)
		case e != nil && e.doubted < 0 && answered(err):
			f.unsettled.drop(e)
		case e != nil:
			e.state = entryReleased
			if answered(err) {
				e.tier = e.doubted
			} else if e.doubted < 0 {
				e.doubted = e.tier
			}
		}
		return err
	})
}

// answered reports whether a store said yes or no.
func answered(err error) bool { return err == nil || errors.Is(err, ErrNotOwner) }

// at finds the tier that has the claim and keeps it there while do runs.
func (f *Failover) at(c Claim, do func(tier int, e *entry) error) error {
	if e := f.unsettled.find(c.Token); e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.gone {
			return do(e.tier, e)
		}
	}
	for i, t := range f.tiers {
		if t.Name == c.Backend {
			return do(i, nil)
		}
	}
	return ErrNotOwner
}

// call runs one operation in a tier that has been opened, inside its budget,
// and takes the tier down if it gives no answer. A tier that is down already
// is not waited for.
func (f *Failover) call(ctx context.Context, i int, do func(context.Context, Store) error) error {
	f.mu.Lock()
	t := f.tiers[i]
	store, up, why := t.store, t.up, t.err
	f.mu.Unlock()
	if !up {
		return why
	}
	bounded, cancel := t.budget(ctx)
	defer cancel()
	err := do(bounded, store)
	if !answered(err) && ctx.Err() == nil {
		f.down(i, err)
	}
	return err
}
