package idempotency

import (
	"context"
	"maps"
	"slices"
)

var (
	_ Lister = (*Memory)(nil)
	_ Shadow = (*Memory)(nil)
)

// Get implements Lister.
func (m *Memory) Get(ctx context.Context, key Key) (Entry, error) {
	if err := ctx.Err(); err != nil {
		return Entry{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entry(key)
	if !ok {
		return Entry{}, ErrNotFound
	}
	return e, nil
}

// List implements Lister: in the order of the keys.
func (m *Memory) List(ctx context.Context, req ListRequest) (Page, error) {
	return m.list(ctx, req, func(_ Key, state State) bool { return req.State == 0 || state == req.State })
}

// Uncarried implements Shadow: on one page, since each page sorts every key.
func (m *Memory) Uncarried(ctx context.Context, all bool, req ListRequest) (Page, error) {
	req.Limit = MaxRecords
	return m.list(ctx, req, func(key Key, state State) bool {
		return state == Recorded && (all || !m.entries[key].carried)
	})
}

// Carried implements Shadow.
func (m *Memory) Carried(ctx context.Context, key Key, token string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.live(key, m.now()); e != nil && e.token == token && e.record != nil && !e.carried {
		e.carried = true
		m.backlog--
	}
	return nil
}

// Backlog implements Shadow.
func (m *Memory) Backlog(ctx context.Context) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.backlog, ctx.Err()
}

// list returns what is wanted, which is asked under the lock.
func (m *Memory) list(ctx context.Context, req ListRequest, wanted func(Key, State) bool) (Page, error) {
	if err := ctx.Err(); err != nil {
		return Page{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var page Page
	for _, key := range slices.Sorted(maps.Keys(m.entries)) {
		if string(key) <= req.After {
			continue
		}
		e, ok := m.entry(key)
		if !ok || !wanted(key, e.State) {
			continue
		}
		if len(page.Entries) == req.Limit {
			page.Next = string(page.Entries[req.Limit-1].Key)
			break
		}
		page.Entries = append(page.Entries, e)
	}
	return page, nil
}

// entry returns what is known of key, if its time is not over. The caller
// holds mu.
func (m *Memory) entry(key Key) (Entry, bool) {
	now := m.now()
	e := m.live(key, now)
	if e == nil {
		return Entry{}, false
	}
	entry := Entry{Key: key, State: InFlight, Token: e.token, Fingerprint: e.fingerprint, Left: e.deadline.Sub(now), Outcome: e.outcome}
	switch {
	case e.record != nil:
		entry.State = Recorded
	case e.message != nil:
		entry.State, entry.Stored = e.message.state, e.message.copy()
		entry.Lease, entry.TTL = e.message.lease, e.message.ttl
		if entry.State != Dead {
			entry.Left = max(e.message.left(now), 0)
		}
	}
	return entry, true
}
