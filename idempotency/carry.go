package idempotency

import (
	"context"
	"errors"
)

// carryRecords takes the records of a weaker store into a better one: those of
// this process and of earlier ones. A fault of the weaker store does not keep
// the better one down: what this process itself remembers is carried, and the
// rest when the weaker store is back.
func (f *Failover) carryRecords(ctx context.Context, t, from *tier, all bool) (int, error) {
	shadow, ok := from.store().(Shadow)
	if !ok || !all && !from.hasRecords() {
		return 0, nil
	}
	if !f.isUp(from) {
		return f.carryKnown(ctx, t, func(home int) bool { return home == from.index })
	}
	carried := 0
	for after := ""; ; {
		writes := from.writes.Load()
		page, err := readPage(ctx, shadow, all, after)
		if err != nil {
			f.down(from, err)
			n, err := f.carryKnown(ctx, t, func(home int) bool { return home == from.index })
			return carried + n, err
		}
		if len(page.Entries) == 0 && after == "" {
			from.carried.Store(writes)
		}
		err = each(ctx, page.Entries, func(ctx context.Context, e Entry) error {
			c := Claim{Key: e.Key, Token: e.Token, Fingerprint: e.Fingerprint, TTL: e.Left}
			if err := f.carry(ctx, t, c, e.Outcome); err != nil {
				return err
			}
			f.noteCarried(ctx, from, c)
			return nil
		})
		carried += len(page.Entries)
		if after = page.Next; err != nil || after == "" {
			return carried, err
		}
	}
}

// readPage bounds what a weaker store may take: claims may be waiting.
func readPage(ctx context.Context, shadow Shadow, all bool, after string) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, holdOff/2)
	defer cancel()
	return shadow.Uncarried(ctx, all, ListRequest{After: after, Limit: pageSize})
}

// carryKnown carries the records that this process remembers and that are where
// says.
func (f *Failover) carryKnown(ctx context.Context, t *tier, where func(home int) bool) (int, error) {
	_, records := f.known.all(where)
	return len(records), each(ctx, records, func(ctx context.Context, r knownRecord) error {
		return f.carry(ctx, t, r.claim, r.outcome)
	})
}

// noteCarried tells a weaker store that a better one has its record. If it does
// not hear that the record is carried once more.
func (f *Failover) noteCarried(ctx context.Context, from *tier, c Claim) {
	shadow, ok := from.store().(Shadow)
	if !ok || !f.isUp(from) {
		return
	}
	if err := shadow.Carried(ctx, c.Key, c.Token); err != nil && ctx.Err() == nil {
		f.down(from, err)
	}
}

// carryOne takes a record that was made in a weaker tier, as its write number
// writes, into the better one that has come back meanwhile, if one has.
func (f *Failover) carryOne(ctx context.Context, c Claim, home int, writes int64, outcome []byte) {
	for _, t := range f.tiers[:home] {
		if !f.isUp(t) {
			continue
		}
		if err := f.carry(ctx, t, c, outcome); err != nil {
			if ctx.Err() == nil {
				f.down(t, err) // and the next probe carries it
			}
			return
		}
		f.noteCarried(ctx, f.tiers[home], c)
		f.tiers[home].carried.CompareAndSwap(writes-1, writes)
		return
	}
}

// carry settles one record in a tier.
func (f *Failover) carry(ctx context.Context, t *tier, c Claim, outcome []byte) error {
	ctx, cancel := t.budget(ctx)
	defer cancel()
	settler, err := t.settler()
	if err != nil {
		return err
	}
	t.writes.Add(1) // where t is a Shadow itself
	c.Confirmed = f.cfg.Now()
	switch slipped, err := settler.Settle(ctx, c, outcome); {
	case errors.Is(err, ErrForeign):
		return nil // that key is of no use to anybody
	case err != nil:
		return err
	case slipped:
		f.slipped(c, t)
	}
	f.known.carried(c, t.index)
	return nil
}

// slipped counts, once, a message that ran here while somebody else had it too.
func (f *Failover) slipped(c Claim, t *tier) {
	if f.known.slips(c.Key, c.Token) {
		f.cfg.Events.Slipped()
		f.cfg.Log.Warn("slipped duplicate", "key", string(c.Key), "store", t.Name)
	}
}

// restore brings back what a store had and has lost: the claims that this
// process has there, the records that it remembers, and every record of the
// weaker stores.
func (f *Failover) restore(ctx context.Context, t *tier) error {
	claims, _ := f.known.all(func(int) bool { return false })
	if err := each(ctx, claims, func(ctx context.Context, c Claim) error { return f.restoreClaim(ctx, t, c) }); err != nil {
		return err
	}
	if _, err := f.carryKnown(ctx, t, func(int) bool { return true }); err != nil {
		return err
	}
	for _, from := range f.tiers[t.index+1:] {
		if _, err := f.carryRecords(ctx, t, from, true); err != nil {
			return err
		}
	}
	t.emptied = false
	return nil
}

// restoreClaim takes a claim anew that the tier had. One that began in a weaker
// store is moved out of that once more.
func (f *Failover) restoreClaim(ctx context.Context, t *tier, c Claim) error {
	if e := f.unsettled.find(c.Token); e != nil {
		if err := e.acquire(ctx); err != nil {
			return err
		}
		defer e.free()
		if e.running && e.home == t.index {
			e.home = f.tierOf(c.Backend)
		}
		return nil
	}
	if f.tierOf(c.Backend) != t.index {
		return nil
	}
	ctx, cancel := t.budget(ctx)
	defer cancel()
	_, err := t.store().Reserve(ctx, c.Key, Request{Token: c.Token, Lease: c.Lease, TTL: c.TTL, Fingerprint: c.Fingerprint})
	if answered(err) && !f.known.holds(c.Token) {
		err = t.store().Release(ctx, c) // its run has ended meanwhile
	}
	if answered(err) {
		return nil // ours again, or somebody else's by now: its renewal finds out
	}
	return err
}
