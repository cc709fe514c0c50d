package idempotency

import (
	"context"
	"errors"
)

// Renew implements Store.
func (f *Failover) Renew(ctx context.Context, c Claim) error {
	e, home, err := f.locate(ctx, c)
	if err != nil {
		return err
	}
	if e != nil {
		defer e.free()
	}
	err = f.call(ctx, f.tiers[home], func(ctx context.Context, s Store) error {
		if f.tiers[home].Heartbeats {
			if err := f.live.ensure(ctx); err != nil {
				return err
			}
		}
		return s.Renew(ctx, c)
	})
	switch {
	case err == nil:
		f.known.renewed(c)
	case errors.Is(err, ErrNotOwner):
		f.known.ended(c.Key, c.Token)
	}
	return err
}

// Record implements Store. A record that its own store cannot take is kept in
// the next one that can, and carried back later.
func (f *Failover) Record(ctx context.Context, c Claim, outcome []byte) error {
	e, home, err := f.locate(ctx, c)
	if err != nil {
		return err
	}
	writes := f.tiers[home].writes.Add(1)
	err = f.call(ctx, f.tiers[home], func(ctx context.Context, s Store) error { return s.Record(ctx, c, outcome) })
	if e == nil && !answered(err) {
		// In the table before any other store is asked: whoever brings the
		// store back meanwhile waits for the entry.
		e = f.track(ctx, c)
	}
	for !answered(err) && home+1 < len(f.tiers) {
		home++
		writes = f.tiers[home].writes.Add(1)
		err = f.call(ctx, f.tiers[home], func(ctx context.Context, s Store) error { return settleIn(ctx, s, c, outcome) })
	}
	if e != nil {
		defer e.free()
		e.running = false
		if err == nil {
			e.doubts = 0 // the record is carried over it; a release first would let somebody else in
		}
		f.unsettled.tidy(e)
	}
	f.finished(c, outcome, home, err)
	if err == nil && home > 0 {
		f.carryOne(ctx, c, home, writes, outcome)
	}
	return err
}

// settleIn records a message in a store behind the one that has its claim. What
// stands there is older, such as the claim of a run that was moved away.
func settleIn(ctx context.Context, s Store, c Claim, outcome []byte) error {
	_, err := s.(Settler).Settle(ctx, c, outcome)
	return err
}

// finished notes how Record ended. A run that succeeded and is recorded nowhere
// keeps its claim: it is not abandoned.
func (f *Failover) finished(c Claim, outcome []byte, home int, err error) {
	switch {
	case err == nil:
		f.known.recorded(c, outcome, home)
	case answered(err):
		f.known.ended(c.Key, c.Token)
	}
}

// Release implements Store. A release that a store cannot take is repeated by
// the next probe that finds it there.
func (f *Failover) Release(ctx context.Context, c Claim) error {
	e, home, err := f.locate(ctx, c)
	if err != nil {
		return err
	}
	f.known.ended(c.Key, c.Token) // first: who brings an emptied store's claims back asks for it
	err = f.call(ctx, f.tiers[home], func(ctx context.Context, s Store) error { return s.Release(ctx, c) })
	if e == nil && answered(err) {
		return err
	}
	if e == nil {
		e = f.track(ctx, c)
	}
	defer e.free()
	e.running = false
	if !answered(err) {
		e.doubts |= bit(home)
	}
	f.unsettled.tidy(e)
	return err
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
		if !e.gone && e.running {
			return e, e.home, nil
		}
		e.free()
	}
	if i := f.tierOf(c.Backend); i >= 0 {
		return nil, i, nil
	}
	return nil, 0, ErrNotOwner
}

// track enters a claim whose store gave no answer and returns its entry,
// locked. It passes the gate, which is never shut for long: either a store that
// comes back finds the entry, or its owner finds the store.
func (f *Failover) track(ctx context.Context, c Claim) *entry {
	e := newEntry(c)
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
	f.cfg.Events.Uncarried()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.overflowed {
		f.overflowed = true
		f.cfg.Log.Error("too many claims to follow in this outage; other replicas will not know them before they are recorded", "bound", maxUnsettled)
	}
}
