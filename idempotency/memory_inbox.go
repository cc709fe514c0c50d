package idempotency

import (
	"cmp"
	"context"
	"slices"
	"time"
)

var _ Inbox = (*Memory)(nil)

// memoryMessage is what an entry has while an Inbox keeps its message. The
// entry's own deadline is that of Stored.Keep.
type memoryMessage struct {
	Stored
	state      State  // InFlight, Waiting or Dead
	accepted   string // the token of Accept
	replayed   string // the id of the last Replay
	number     uint64 // orders the messages of a session
	lease, ttl time.Duration
	due        time.Time // while waiting
	leaseEnds  time.Time // while in flight
}

// Accept implements Inbox.
func (m *Memory) Accept(ctx context.Context, key Key, req Request, a Acceptance) (Reservation, error) {
	if err := ctx.Err(); err != nil {
		return Reservation{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	won := req.Won(key, BackendMemory, now)
	won.Claim.Stored = &a.Stored
	switch e := m.live(key, now); {
	case e == nil:
	case e.message != nil && e.message.accepted == req.Token:
		won.Claim.Stored = e.message.copy()
		return won, nil
	default:
		return e.met(req, now), nil
	}
	m.lastNumber++
	msg := &memoryMessage{
		Stored: a.Stored, state: Waiting, accepted: req.Token, number: m.lastNumber,
		lease: req.Lease, ttl: req.TTL, due: now.Add(a.After),
	}
	if a.Held {
		msg.state, msg.leaseEnds = InFlight, now.Add(req.Lease)
	}
	m.entries[key] = &memoryEntry{token: req.Token, fingerprint: req.Fingerprint, deadline: now.Add(a.Keep), message: msg}
	return won, nil
}

func (msg *memoryMessage) copy() *Stored {
	s := msg.Stored
	return &s
}

// met is what a delivery meets that has not won the entry.
func (e *memoryEntry) met(req Request, now time.Time) Reservation {
	res := Reservation{State: InFlight, RetryAfter: e.deadline.Sub(now), FingerprintMatch: req.Matches(e.fingerprint)}
	switch {
	case e.record != nil:
		res.State, res.RetryAfter, res.Outcome = Recorded, 0, e.outcome
	case e.message == nil:
	case e.message.state == Dead:
		res.State, res.RetryAfter = Recorded, 0
	default:
		res.Stored, res.RetryAfter = true, max(e.message.left(now), time.Millisecond)
	}
	return res
}

// left returns what is left of the lease, or until the message is due.
func (msg *memoryMessage) left(now time.Time) time.Duration {
	if msg.state == InFlight {
		return msg.leaseEnds.Sub(now)
	}
	return msg.due.Sub(now)
}

// Take implements Inbox. It looks at every entry, and needs no Look for that.
func (m *Memory) Take(ctx context.Context, req TakeRequest) (Taking, error) {
	if err := ctx.Err(); err != nil {
		return Taking{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	taking := Taking{Buried: m.overtake(now)}
	for _, key := range m.due(req, now) {
		if len(taking.Taken) == len(req.Tokens) {
			break
		}
		e := m.entries[key]
		takenOver := e.message.state == InFlight
		e.token, e.deadline = req.Tokens[len(taking.Taken)], now.Add(e.message.Keep)
		e.message.state, e.message.leaseEnds = InFlight, now.Add(e.message.lease)
		e.message.Attempts++
		taking.Taken = append(taking.Taken, Taken{TakenOver: takenOver, Claim: Claim{
			Key: key, Token: e.token, Fingerprint: e.fingerprint, Lease: e.message.lease, TTL: e.message.ttl,
			Confirmed: now, Backend: BackendMemory, Stored: e.message.copy(),
		}})
	}
	return taking, nil
}

// unfinished returns the messages that wait or run, by session, each in order.
func (m *Memory) unfinished(now time.Time) map[string][]Key {
	sessions := make(map[string][]Key)
	for key := range m.entries {
		if e := m.live(key, now); e != nil && e.message != nil && e.message.state != Dead {
			sessions[e.message.Session] = append(sessions[e.message.Session], key)
		}
	}
	for _, keys := range sessions {
		slices.SortFunc(keys, func(a, b Key) int {
			return cmp.Compare(m.entries[a].message.number, m.entries[b].message.number)
		})
	}
	return sessions
}

// overtake buries the messages whose retries have kept a later one waiting for
// too long.
func (m *Memory) overtake(now time.Time) (buried []Key) {
	for session, keys := range m.unfinished(now) {
		for session != "" && len(keys) > 1 {
			first, second := m.entries[keys[0]].message, m.entries[keys[1]].message
			if first.state != Waiting || first.Attempts == 0 || now.Before(second.due.Add(second.OrderWait)) {
				break
			}
			m.bury(keys[0], CauseOvertaken, now)
			buried, keys = append(buried, keys[0]), keys[1:]
		}
	}
	return buried
}

// due returns the messages that may be taken, the longest due first.
func (m *Memory) due(req TakeRequest, now time.Time) (due []Key) {
	for session, keys := range m.unfinished(now) {
		if session != "" {
			keys = keys[:1]
		}
		for _, key := range keys {
			e := m.entries[key]
			abandoned := e.message.state == InFlight && req.Owners != nil && req.Owners.Abandoned(e.token)
			if e.message.left(now) <= 0 || abandoned {
				due = append(due, key)
			}
		}
	}
	slices.SortFunc(due, func(a, b Key) int {
		x, y := m.entries[a].message, m.entries[b].message
		return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.number, y.number))
	})
	return due
}

// Checkpoint implements Inbox.
func (m *Memory) Checkpoint(ctx context.Context, c Claim, reply []byte) error {
	return m.hold(ctx, c, func(e *memoryEntry, _ time.Time) { e.message.Reply = slices.Clone(reply) })
}

// Retry implements Inbox.
func (m *Memory) Retry(ctx context.Context, c Claim, r Retry) error {
	return m.hold(ctx, c, func(e *memoryEntry, now time.Time) {
		e.message.state, e.message.due, e.message.Cause = Waiting, now.Add(r.After), r.Cause
		if r.Uncounted {
			e.message.Attempts--
		}
	})
}

// Bury implements Inbox.
func (m *Memory) Bury(ctx context.Context, c Claim, cause string) error {
	return m.hold(ctx, c, func(_ *memoryEntry, now time.Time) { m.bury(c.Key, cause, now) })
}

func (m *Memory) bury(key Key, cause string, now time.Time) {
	e := m.entries[key]
	e.message.state, e.message.Cause, e.deadline = Dead, cause, now.Add(e.message.Keep)
}

// hold changes a message that c's token runs. Repeated by the token that has
// made the last change of it, it changes nothing.
func (m *Memory) hold(ctx context.Context, c Claim, do func(*memoryEntry, time.Time)) error {
	return m.change(ctx, c, func(e *memoryEntry, now time.Time) error {
		switch {
		case e == nil, e.message == nil, e.token != c.Token:
			return ErrNotOwner
		case e.message.state == InFlight:
			e.deadline = now.Add(e.message.Keep)
			do(e, now)
		}
		return nil
	})
}

// Replay implements Inbox.
func (m *Memory) Replay(ctx context.Context, key Key, id string) error {
	return m.stored(ctx, key, func(e *memoryEntry, now time.Time) error {
		switch {
		case e.message != nil && e.message.replayed == id:
			return nil
		case e.message == nil, e.message.state != Dead:
			return ErrNotDead
		}
		m.lastNumber++
		e.message.state, e.message.replayed, e.message.number = Waiting, id, m.lastNumber
		e.message.due, e.message.Attempts, e.message.Cause = now, 0, ""
		e.deadline = now.Add(e.message.Keep)
		return nil
	})
}

// Drop implements Inbox.
func (m *Memory) Drop(ctx context.Context, key Key, owners Owners) error {
	return m.stored(ctx, key, func(e *memoryEntry, now time.Time) error {
		free := e.message != nil && (e.message.state != InFlight || e.message.left(now) <= 0 || owners != nil && owners.Abandoned(e.token))
		if !free {
			return ErrHeld
		}
		m.drop(key, e)
		return nil
	})
}

func (m *Memory) stored(ctx context.Context, key Key, do func(*memoryEntry, time.Time) error) error {
	return m.change(ctx, Claim{Key: key}, func(e *memoryEntry, now time.Time) error {
		if e == nil {
			return ErrNotFound
		}
		return do(e, now)
	})
}

// Count implements Inbox.
func (m *Memory) Count(ctx context.Context) (Counts, error) {
	if err := ctx.Err(); err != nil {
		return Counts{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	var n Counts
	for key := range m.entries {
		if e := m.live(key, now); e != nil && e.message != nil {
			n.Stored++
			if e.message.state == Waiting && e.message.left(now) <= 0 {
				n.Due++
			}
		}
	}
	return n, nil
}
