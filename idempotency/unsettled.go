package idempotency

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"context"
)

// Bounds of what is remembered for carrying. A claim past them stays in the
// weaker store alone; a record past them is carried without its outcome.
const (
	maxUnsettled     = 100_000
	maxUnsettledSize = 64 << 20 // bytes of outcomes
)

// unsettled is the table of claims that are not, or not surely, where their
// Backend says, by token.
type unsettled struct {
	count atomic.Int64 // of entries; nearly always 0, which find can tell without the lock

	mu      sync.Mutex
	entries map[string]*entry
	size    int // bytes of outcomes
}

// entry follows one claim through the stores.
type entry struct {
	lock chan struct{} // held while a call for the claim is under way; guards the rest

	claim   Claim // Confirmed: of the lease, or when the message was recorded
	state   entryState
	home    int    // the tier that has the claim or record; len(tiers): this table alone
	doubts  uint64 // bit i: tier i may hold the claim without our knowing
	outcome []byte // of a record
	gone    bool   // no longer in the table
}

type entryState int

const (
	entryRunning entryState = iota
	entryRecorded
	entryReleased // nothing is left but doubts
)

func newEntry(c Claim, state entryState, home int) *entry {
	return &entry{lock: make(chan struct{}, 1), claim: c, state: state, home: home}
}

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

// concerns reports whether something of the claim has to be done in a tier.
func (e *entry) concerns(tier int) bool {
	return !e.gone && (e.state != entryReleased && e.home > tier || e.doubts&bit(tier) != 0)
}

// settled reports whether nothing is left to follow.
func (e *entry) settled() bool {
	return e.doubts == 0 && (e.state == entryReleased || e.state == entryRecorded && e.home == 0)
}

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

// keep gives e its outcome, or none if that would be too much. The caller
// holds e.
func (u *unsettled) keep(e *entry, outcome []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.size -= len(e.outcome)
	if e.outcome = outcome; u.size+len(outcome) > maxUnsettledSize {
		e.outcome = nil
	}
	u.size += len(e.outcome)
}

// tidy takes e out of the table once it is settled. The caller holds e.
func (u *unsettled) tidy(e *entry) {
	if e.settled() {
		u.drop(e)
	}
}

// drop takes e out of the table. The caller holds e.
func (u *unsettled) drop(e *entry) {
	if e.gone {
		return
	}
	e.gone = true
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.entries, e.claim.Token)
	u.size -= len(e.outcome)
	u.count.Store(int64(len(u.entries)))
}

func (u *unsettled) all() []*entry {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.entries))
}
