package idempotency

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/message"
)

// Memory is a Store in this process's memory: nothing survives a restart and
// no other process sees it. Its size is bounded: past MaxRecords the oldest
// record is forgotten, never a claim in flight. As a Shadow it remembers what
// has to be carried as long as the process lives.
type Memory struct {
	now        func() time.Time
	maxRecords int

	mu      sync.Mutex
	entries map[Key]*memoryEntry
	records list.List // of Key, oldest record first
	backlog int       // records that are not carried

	lastNumber uint64 // of a stored message
}

var _ Settler = (*Memory)(nil)

// MaxRecords bounds a Memory store.
const MaxRecords = 100_000

type memoryEntry struct {
	token       string
	fingerprint message.Fingerprint
	deadline    time.Time // of the lease, or of the record window
	outcome     []byte
	record      *list.Element // nil while in flight
	carried     bool          // a record that the better store has, see Shadow

	message *memoryMessage // while an Inbox keeps it
}

// NewMemory returns an empty store that reads the time from now.
func NewMemory(now func() time.Time) *Memory {
	return &Memory{now: now, maxRecords: MaxRecords, entries: make(map[Key]*memoryEntry)}
}

// Reserve implements Store.
func (m *Memory) Reserve(ctx context.Context, key Key, req Request) (Reservation, error) {
	if err := ctx.Err(); err != nil {
		return Reservation{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	e := m.live(key, now)
	held := e != nil && e.record == nil && e.message == nil
	abandoned := held && e.token != req.Token && req.Abandoned(e.token)
	switch {
	case e == nil, held && e.token == req.Token, abandoned:
		m.entries[key] = &memoryEntry{token: req.Token, fingerprint: req.Fingerprint, deadline: now.Add(req.Lease)}
		won := req.Won(key, BackendMemory, now)
		won.TakenOver = abandoned
		return won, nil
	default:
		return e.met(req, now), nil
	}
}

// Renew implements Store.
func (m *Memory) Renew(ctx context.Context, c Claim) error {
	return m.change(ctx, c, func(e *memoryEntry, now time.Time) error {
		switch {
		case e == nil || !e.heldBy(c.Token):
			return ErrNotOwner
		case e.message != nil:
			e.message.leaseEnds, e.deadline = now.Add(c.Lease), now.Add(e.message.Keep)
		default:
			e.deadline = now.Add(c.Lease)
		}
		return nil
	})
}

// Record implements Store.
func (m *Memory) Record(ctx context.Context, c Claim, outcome []byte) error {
	return m.change(ctx, c, func(e *memoryEntry, now time.Time) error {
		ttl := c.TTL
		switch {
		case e == nil:
			if ttl = c.RemainingTTL(now); ttl <= 0 {
				return ErrNotOwner
			}
			e = &memoryEntry{token: c.Token, fingerprint: c.Fingerprint}
			m.entries[c.Key] = e
		case e.token == c.Token && e.record != nil:
			return nil
		case !e.heldBy(c.Token):
			return ErrNotOwner
		}
		e.deadline, e.outcome, e.message = now.Add(ttl), outcome, nil
		m.keep(c.Key, e, now)
		return nil
	})
}

// Release implements Store.
func (m *Memory) Release(ctx context.Context, c Claim) error {
	return m.change(ctx, c, func(e *memoryEntry, _ time.Time) error {
		if e == nil {
			return nil
		}
		if !e.heldBy(c.Token) {
			return ErrNotOwner
		}
		delete(m.entries, c.Key)
		return nil
	})
}

// Settle implements Settler.
func (m *Memory) Settle(ctx context.Context, c Claim, outcome []byte) (slipped bool, err error) {
	err = m.change(ctx, c, func(e *memoryEntry, now time.Time) error {
		slipped = e != nil && e.token != c.Token
		if e != nil && e.record != nil {
			return nil
		}
		e = &memoryEntry{token: c.Token, fingerprint: c.Fingerprint, deadline: now.Add(c.TTL), outcome: outcome}
		m.entries[c.Key] = e
		m.keep(c.Key, e, now)
		return nil
	})
	return slipped, err
}

// heldBy reports whether token holds the claim of the message.
func (e *memoryEntry) heldBy(token string) bool {
	return e.token == token && e.record == nil && (e.message == nil || e.message.state == InFlight)
}

func (m *Memory) change(ctx context.Context, c Claim, do func(*memoryEntry, time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	return do(m.live(c.Key, now), now)
}

// live returns the entry of key, dropping it first if its time is over.
func (m *Memory) live(key Key, now time.Time) *memoryEntry {
	e := m.entries[key]
	if e != nil && !now.Before(e.deadline) {
		m.drop(key, e)
		return nil
	}
	return e
}

// keep makes e a record.
func (m *Memory) keep(key Key, e *memoryEntry, now time.Time) {
	e.record = m.records.PushBack(key)
	m.backlog++
	m.forget(now)
}

// forget drops expired records from the old end, and live ones past the bound.
func (m *Memory) forget(now time.Time) {
	for el := m.records.Front(); el != nil; el = m.records.Front() {
		key := el.Value.(Key)
		e := m.entries[key]
		if now.Before(e.deadline) && m.records.Len() <= m.maxRecords {
			return
		}
		m.drop(key, e)
	}
}

func (m *Memory) drop(key Key, e *memoryEntry) {
	delete(m.entries, key)
	if e.record != nil {
		m.records.Remove(e.record)
		if !e.carried {
			m.backlog--
		}
	}
}

// Ping implements Store.
func (m *Memory) Ping(ctx context.Context) error { return ctx.Err() }

// Close implements Store.
func (m *Memory) Close() error { return nil }
