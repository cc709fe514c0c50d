package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// Tier is one store of a Failover.
type Tier struct {
	Name       string                                   // BackendRedis, BackendSQLite or BackendMemory
	Open       func(ctx context.Context) (Store, error) // tried until it succeeds, and again after ErrReplaced
	Timeout    time.Duration                            // budget of one call; 0: the caller's context alone
	Classify   func(error) string                       // the degraded owner's class
	Lasting    func(class string) bool                  // whether a person has to end trouble of a class; nil: never
	Heartbeats bool                                     // the store is a Roll in which a replica without a heartbeat is dead
}

// openTimeout bounds one attempt to open a store, to probe one that has no
// budget of its own, and to carry claims into it: longer than a file is waited
// for that another process has locked.
const openTimeout = 10 * time.Second

// probeTimeout bounds the write probe and the heartbeat of a store with a
// budget, so that a server that has frozen is noticed within two seconds.
const probeTimeout = time.Second

// tier is a Tier at work.
type tier struct {
	Tier
	index   int
	opened  atomic.Pointer[Store]
	emptied bool         // the prober's: it has lost what it held, and does not have that again yet
	stale   bool         // the prober's: opened is closed, because its file has been replaced
	writes  atomic.Int64 // records that this process has begun to write into a Shadow
	carried atomic.Int64 // writes, when nothing was left to carry; -1: there may be more
	backlog atomic.Int64 // records to carry out of a Shadow, when they were counted last
	wake    chan struct{}
	woken   time.Time // the prober's

	// Guarded by the Failover's mu.
	up     bool
	worked bool // was up at some time
	err    error
}

// store returns the open store; nil before the first time, never once the tier
// was up.
func (t *tier) store() Store {
	if s := t.opened.Load(); s != nil {
		return *s
	}
	return nil
}

// watch probes a tier until ctx ends: each second and, since a single answer
// that was late should cost no more than that, at once when it was lost. Each
// tier has a watch of its own, so that one that hangs keeps no other down.
func (f *Failover) watch(ctx context.Context, t *tier) {
	ticker := time.NewTicker(f.cfg.ProbeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			if now := f.cfg.Now(); now.Sub(t.woken) < f.cfg.ProbeEvery/4 {
				continue // lost again as soon as it was back: no hurry
			}
			t.woken = f.cfg.Now()
		case <-ticker.C:
		}
		f.round(ctx, t)
	}
}

// round probes a tier, unless it stands idle behind a better one, and does what
// has to be done from time to time.
func (f *Failover) round(ctx context.Context, t *tier) {
	if best := f.serving(Open); best == nil || best.index >= t.index || !f.isUp(t) {
		f.probe(ctx, t)
	}
	if f.isUp(t) {
		f.sweepReleases(ctx, t)
	}
	if t.index == 0 {
		f.carryBacklog(ctx)
		f.known.sweep()
	}
}

// probe opens a tier if need be, proves it by a write and brings it up once
// nothing is left to carry into it. Calls for one tier never overlap.
func (f *Failover) probe(ctx context.Context, t *tier) {
	err := f.open(ctx, t)
	if err == nil {
		err = f.prove(ctx, t)
	}
	if err == nil && !f.isUp(t) {
		// As long as there is something to carry and it can be carried: every
		// call on the way is bounded.
		err = f.settle(ctx, t)
	}
	if err != nil && ctx.Err() == nil {
		f.down(t, err)
	}
}

func (f *Failover) open(ctx context.Context, t *tier) error {
	if t.store() != nil && !t.stale {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	store, err := t.Open(ctx)
	if err != nil {
		return err
	}
	t.opened.Store(&store)
	t.stale = false
	t.carried.Store(-1) // who knows what an earlier process has left
	if shadow, ok := store.(Shadow); ok && t.index > 0 {
		if n, err := shadow.Backlog(ctx); err == nil && n == 0 {
			t.carried.Store(t.writes.Load())
		}
	}
	if roll, ok := store.(Roll); ok && t.index == 0 && f.cfg.Self != nil {
		f.live.attach(roll, t.Heartbeats)
	}
	return nil
}

// prove makes the write probe. A store that has lost what it held is taken out
// of service, and one whose file is no longer where it was is closed: the next
// probe opens what is there now.
func (f *Failover) prove(ctx context.Context, t *tier) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	switch err := t.ping(ctx); {
	case errors.Is(err, ErrEmptied):
		t.emptied = true
		if f.isUp(t) {
			f.down(t, err)
		}
		return nil
	case errors.Is(err, ErrReplaced):
		f.down(t, err)
		t.stale, t.emptied = true, true
		return errors.Join(err, t.store().Close())
	default:
		return err
	}
}

// hasRecords reports whether a Shadow may hold records that are not carried.
func (t *tier) hasRecords() bool { return t.writes.Load() != t.carried.Load() }

func (t *tier) ping(ctx context.Context) error {
	if t.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(t.Timeout, probeTimeout))
		defer cancel()
	}
	return t.store().Ping(ctx)
}

// budget bounds one call.
func (t *tier) budget(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, t.Timeout)
}

func (f *Failover) isUp(t *tier) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return t.up
}

// down takes a tier out of service until a probe succeeds, the first of which
// is made at once: a single answer that was late costs no more than that. The
// degraded owner is entered under the same lock: nothing is claimed in a weaker
// store before.
func (f *Failover) down(t *tier, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if class := t.class(err); t.index > 0 && (t.up || t.err == nil || class != t.class(t.err)) {
		level := slog.LevelWarn
		if t.Lasting != nil && t.Lasting(class) {
			level = slog.LevelError
		}
		f.cfg.Log.Log(context.Background(), level, "store behind the configured one not available", "store", t.Name, "class", class, "error", err)
	}
	if t.up {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	if t.Heartbeats {
		f.live.interrupted()
	}
	t.up, t.err = false, err
	f.report()
}

// raise brings a tier into service.
func (f *Failover) raise(t *tier) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t.up, t.worked, t.err = true, true, nil
	f.overflowed = false
	f.report()
}

// serving returns the tier that claims go to under a policy, or nil.
func (f *Failover) serving(policy string) *tier {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.firstUp(policy)
}

// firstUp is serving for callers that hold mu.
func (f *Failover) firstUp(policy string) *tier {
	if policy == "" {
		policy = f.cfg.OnUnavailable
	}
	if policy == Closed && !f.tiers[0].up {
		return nil
	}
	if i := slices.IndexFunc(f.tiers, func(t *tier) bool { return t.up }); i >= 0 {
		return f.tiers[i]
	}
	return nil
}

// tierOf returns the index of a backend's tier, or -1.
func (f *Failover) tierOf(backend string) int {
	return slices.IndexFunc(f.tiers, func(t *tier) bool { return t.Name == backend })
}

// answered reports whether a store said yes or no, or that it cannot tell for
// this key alone.
func answered(err error) bool {
	return err == nil || errors.Is(err, ErrNotOwner) || errors.Is(err, ErrForeign)
}

// call runs one operation in a tier, inside its budget, and takes the tier
// down if it gives no answer. A tier that is down already is not waited for.
func (f *Failover) call(ctx context.Context, t *tier, do func(context.Context, Store) error) error {
	f.mu.Lock()
	up, why := t.up, t.err
	f.mu.Unlock()
	if !up {
		return errors.Join(why, ErrUnavailable)
	}
	bounded, cancel := t.budget(ctx)
	defer cancel()
	err := do(bounded, t.store())
	if !answered(err) && ctx.Err() == nil {
		f.down(t, err)
	}
	return err
}

// class is the kind of trouble that err means for the tier.
func (t *tier) class(err error) string {
	if errors.Is(err, ErrEmptied) {
		return "emptied"
	}
	return t.Classify(err)
}

// settler returns the store as one that takes records of others.
func (t *tier) settler() (Settler, error) {
	if s, ok := t.store().(Settler); ok {
		return s, nil
	}
	return nil, fmt.Errorf("the %s store takes no records back", t.Name)
}
