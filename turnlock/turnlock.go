// Package turnlock makes the turns of one session run one at a time: inside one
// process with Local, over all replicas with the package redislock.
package turnlock

import (
	"context"
	"errors"
	"sync"
)

// ErrLost is the cause with which Lease.Context ends when the lock may be
// somebody else's while it is still in use here.
var ErrLost = errors.New("turnlock: lock lost")

// ErrBusy is returned when the lock did not come free within the longest wait.
var ErrBusy = errors.New("turnlock: lock not free in time")

// Locker hands out the lock of each session. It is safe for concurrent use. A
// lock does not survive the process that holds it.
type Locker interface {
	// Acquire waits for the session's lock, first come first served. It holds
	// nothing and returns ctx's cause when ctx ends first, ErrBusy when the
	// longest wait is over. The lease's context is a child of ctx.
	Acquire(ctx context.Context, session string) (*Lease, error)
}

// Lease is a held lock.
type Lease struct {
	ctx    context.Context
	config LeaseConfig
	once   sync.Once
}

// LeaseConfig is what makes a Lease of a Locker.
type LeaseConfig struct {
	Fence   uint64
	Confirm func(ctx context.Context) error // see Lease.Confirm; nil: cannot be lost
	Release func()                          // one bounded attempt, called once
}

// NewLease is for implementations of Locker. ctx ends with the lock.
func NewLease(ctx context.Context, c LeaseConfig) *Lease { return &Lease{ctx: ctx, config: c} }

// Context ends when the lock is lost (cause ErrLost) or released, or when the
// context given to Acquire ends. Work under the lock runs on it.
func (l *Lease) Context() context.Context { return l.ctx }

// Fence rises with every acquisition of the session, so that a store can
// refuse the writes of an earlier holder.
func (l *Lease) Fence() uint64 { return l.config.Fence }

// Confirm makes sure, before something is done that cannot be undone, that the
// lock is still held: a process that was frozen wakes up with a context that
// has not ended yet. ErrLost means that it is not.
func (l *Lease) Confirm(ctx context.Context) error {
	if l.config.Confirm == nil {
		return nil
	}
	return l.config.Confirm(ctx)
}

// Release gives the lock to the next waiter. It is idempotent and works after
// the lease's context has ended.
func (l *Lease) Release() { l.once.Do(l.config.Release) }
