package idempotency

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxUnsettled bounds the table. A claim past it stays in the weaker store
// alone; its record is carried all the same.
const maxUnsettled = 100_000

// unsettled is the table of claims that are not, or not surely, where their
// Backend says, by token.
type unsettled struct {
	count atomic.Int64 // of entries; nearly always 0, which find can tell without the lock

	mu      sync.Mutex
	entries map[string]*entry
}

// entry follows one claim through the stores.
type entry struct {
	lock chan struct{} // held while a call for the claim is under way; guards the rest

	claim   Claim
	running bool   // its run goes on; otherwise only doubts are left
	home    int    // the tier that has the claim, while running
	doubts  uint64 // bit i: tier i may hold the claim without our knowing
	confirm uint64 // bit i: the release in tier i has been acknowledged and is repeated once, after due
	due     time.Time
	gone    bool // no longer in the table
}

func newEntry(c Claim) *entry { return &entry{lock: make(chan struct{}, 1), claim: c} }

// acquire locks the entry, unless ctx ends first.
func (e *entry) acquire(ctx context.Context) error {
	select {
	case e.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *entry) free() { <-e.lock }

func bit(tier int) uint64 { return 1 << tier }

// moves reports whether the claim has to be taken into a tier.
func (e *entry) moves(tier int) bool { return !e.gone && e.running && e.home > tier }

// pending reports whether a tier has to be told that nobody holds the claim.
func (e *entry) pending(tier int) bool { return !e.gone && !e.running && e.doubts&bit(tier) != 0 }

// settled reports whether nothing is left to follow.
func (e *entry) settled() bool { return !e.running && e.doubts == 0 && e.confirm == 0 }

// add enters e and reports whether there was room.
func (u *unsettled) add(e *entry) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.entries) >= maxUnsettled {
		e.gone = true
		return false
	}
	if u.entries == nil {
		u.entries = make(map[string]*entry)
	}
	u.entries[e.claim.Token] = e
	u.count.Store(int64(len(u.entries)))
	return true
}

func (u *unsettled) find(token string) *entry {
	if u.count.Load() == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.entries[token]
}

// tidy takes e out of the table once it is settled. The caller holds e.
func (u *unsettled) tidy(e *entry) {
	if !e.settled() || e.gone {
		return
	}
	e.gone = true
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.entries, e.claim.Token)
	u.count.Store(int64(len(u.entries)))
}

func (u *unsettled) all() []*entry {
	if u.count.Load() == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.entries))
}
