package idempotency

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Renewer extends the leases of running claims, each at a third of its lease,
// with one goroutine and one timer for all of them.
//
// A renewal without an answer is tried again until there is one. A claim that
// the store says is not ours any more is reported once and renewed no longer.
type Renewer struct {
	store Store
	now   func() time.Time
	log   *slog.Logger
	wake  chan struct{} // the earliest time has moved forward

	mu   sync.Mutex
	held holdHeap
	next time.Time // when Run looks again; zero: not before it is woken
}

// retryRenewal is the pause before a renewal without an answer is repeated.
const retryRenewal = time.Second

// renewalsAtOnce bounds the renewals under way. They share round trips.
const renewalsAtOnce = 128

// NewRenewer returns a Renewer over store; Run makes it work.
func NewRenewer(store Store, now func() time.Time, log *slog.Logger) *Renewer {
	return &Renewer{store: store, now: now, log: log.With("component", "renewer"), wake: make(chan struct{}, 1)}
}

// Hold is one claim that is kept renewed.
type Hold struct {
	renewer *Renewer
	lost    func(error)

	// Guarded by the renewer's mutex.
	claim Claim
	due   time.Time
	index int // in the heap; -1 outside
	done  bool
}

// Hold keeps c renewed until Stop. If c is lost, lost is called once with the
// reason, from another goroutine.
func (r *Renewer) Hold(c Claim, lost func(error)) *Hold {
	h := &Hold{renewer: r, lost: lost, claim: c, due: c.Confirmed.Add(c.Lease / 3)}
	r.mu.Lock()
	heap.Push(&r.held, h)
	earlier := r.next.IsZero() || h.due.Before(r.next)
	if earlier {
		r.next = h.due
	}
	r.mu.Unlock()
	if earlier {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	return h
}

// Stop ends the renewing and returns the claim with its last confirmation. A
// renewal that is under way may still reach the store.
func (h *Hold) Stop() Claim {
	r := h.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	h.done = true
	if h.index >= 0 {
		heap.Remove(&r.held, h.index)
	}
	return h.claim
}

// Run renews until ctx ends.
func (r *Renewer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		r.renewAll(ctx, r.takeDue())
		if wait, ok := r.untilNext(); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

func (r *Renewer) takeDue() []*Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var due []*Hold
	for len(r.held) > 0 && !r.held[0].due.After(now) {
		due = append(due, heap.Pop(&r.held).(*Hold))
	}
	return due
}

func (r *Renewer) untilNext() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 {
		r.next = time.Time{}
		return 0, false
	}
	r.next = r.held[0].due
	return r.next.Sub(r.now()), true
}

func (r *Renewer) renewAll(ctx context.Context, due []*Hold) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, renewalsAtOnce)
	for _, h := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r.renew(ctx, h)
		})
	}
	wg.Wait()
}

func (r *Renewer) renew(ctx context.Context, h *Hold) {
	r.mu.Lock()
	c, done := h.claim, h.done
	r.mu.Unlock()
	if done {
		return
	}
	sent := r.now()
	err := r.store.Renew(ctx, c)
	lost := errors.Is(err, ErrNotOwner)

	r.mu.Lock()
	lost = lost && !h.done // a run that has ended settled the claim itself
	switch {
	case h.done || lost:
	case err == nil:
		h.claim.Confirmed = sent
		h.due = sent.Add(c.Lease / 3)
		heap.Push(&r.held, h)
	default:
		h.due = sent.Add(min(retryRenewal, c.Lease/3))
		heap.Push(&r.held, h)
	}
	r.mu.Unlock()
	if lost {
		r.log.Warn("claim lost", "key", string(c.Key))
		h.lost(err)
	}
}

// holdHeap orders holds by the time at which they are due.
type holdHeap []*Hold

func (q holdHeap) Len() int           { return len(q) }
func (q holdHeap) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q holdHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *holdHeap) Push(x any) {
	h := x.(*Hold)
	h.index = len(*q)
	*q = append(*q, h)
}

// Pop implements heap.Interface.
func (q *holdHeap) Pop() any {
	old := *q
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	h.index = -1
	return h
}
