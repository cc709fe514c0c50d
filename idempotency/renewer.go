package idempotency

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Renewer extends the leases of running claims, each at a third of its lease,
// with one goroutine and one timer for all of them.
//
// A renewal without an answer is tried again until the lease is over. A claim
// that the store says is not ours any more, or whose lease is over by our own
// clock, is reported once and renewed no longer.
type Renewer struct {
	cfg  RenewerConfig
	now  func() time.Time
	log  *slog.Logger
	wake chan struct{} // the earliest time has moved forward

	mu   sync.Mutex
	held holdHeap
	next time.Time // when Run looks again; zero: not before it is woken
}

// retryRenewal is the pause before a renewal without an answer is repeated.
const retryRenewal = time.Second

// renewalsAtOnce bounds the renewals under way. They share round trips.
const renewalsAtOnce = 128

// RenewerConfig is what a Renewer needs.
type RenewerConfig struct {
	Store   Store
	InDoubt func(Claim) bool // whether somebody may have taken a claim over; nil: nobody can
	Now     func() time.Time
	Log     *slog.Logger
}

// NewRenewer returns a Renewer; Run makes it work.
func NewRenewer(cfg RenewerConfig) *Renewer {
	return &Renewer{cfg: cfg, now: cfg.Now, log: cfg.Log.With("component", "renewer"), wake: make(chan struct{}, 1)}
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

// Confirm makes sure, before something is done that cannot be undone, that the
// claim still is its owner's. One in doubt is renewed: ErrNotOwner, of which
// the owner is told as of any lost claim, means that somebody else has it. If
// the store does not answer the claim's policy decides: with Closed Confirm
// returns ErrUnavailable, with Open nil, and the message may run twice.
func (h *Hold) Confirm(ctx context.Context) error {
	r := h.renewer
	r.mu.Lock()
	c := h.claim
	r.mu.Unlock()
	if r.cfg.InDoubt == nil || !r.cfg.InDoubt(c) {
		return nil
	}
	sent := r.now()
	err := r.cfg.Store.Renew(ctx, c)
	switch {
	case err == nil:
		r.mu.Lock()
		h.claim.Confirmed = sent
		r.mu.Unlock()
		return nil
	case errors.Is(err, ErrNotOwner):
		r.lose(h, err)
		return err
	case c.OnUnavailable == Closed:
		return fmt.Errorf("confirm %q: %w: %w", c.Key, ErrUnavailable, err)
	}
	r.log.Warn("claim could not be confirmed; its run goes on, as on_unavailable says", "key", string(c.Key), "error", err)
	return nil
}

// lose tells the owner of h, once, that its claim is lost.
func (r *Renewer) lose(h *Hold, why error) {
	r.mu.Lock()
	told := h.done
	h.done = true
	if h.index >= 0 {
		heap.Remove(&r.held, h.index)
	}
	r.mu.Unlock()
	if !told {
		r.log.Warn("claim lost", "key", string(h.claim.Key), "cause", why)
		h.lost(why)
	}
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
	err := r.cfg.Store.Renew(ctx, c)
	if err != nil && !errors.Is(err, ErrNotOwner) {
		if r.now().Sub(c.Confirmed) < c.Lease { // by the monotonic clock
			r.schedule(h, sent.Add(min(retryRenewal, c.Lease/3)), time.Time{})
			return
		}
		err = fmt.Errorf("%w: its lease ended without a renewal that was answered: %w", ErrNotOwner, err)
	}
	if err != nil {
		r.lose(h, err)
		return
	}
	r.schedule(h, sent.Add(c.Lease/3), sent)
}

// schedule has h renewed when it is due, unless it has been stopped meanwhile.
func (r *Renewer) schedule(h *Hold, due, confirmed time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.done {
		return // a run that has ended settles the claim itself
	}
	if confirmed.After(h.claim.Confirmed) {
		h.claim.Confirmed = confirmed
	}
	h.due = due
	heap.Push(&r.held, h)
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
