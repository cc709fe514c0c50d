// Package turnlock makes the turns of one session run one at a time.
package turnlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrLost is the cause with which Lease.Context ends when the lock went to
// somebody else while it was held.
var ErrLost = errors.New("turnlock: lock lost")

// ErrBusy is returned when the lock did not come free within the longest wait.
var ErrBusy = errors.New("turnlock: lock not free in time")

// DefaultMaxWait is the longest wait for a lock where turns are no longer than
// by default. It has to be longer than the longest turn.
const DefaultMaxWait = 15 * time.Minute

// Locker hands out the lock of each session. It is safe for concurrent use.
type Locker interface {
	// Acquire waits for the session's lock, first come first served. It holds
	// nothing and returns ctx's cause when ctx ends first, ErrBusy when the
	// longest wait is over. The lease's context is a child of ctx.
	Acquire(ctx context.Context, session string) (*Lease, error)
}

// Lease is a held lock.
type Lease struct {
	ctx     context.Context
	fence   uint64
	release func()
}

// NewLease is for implementations of Locker. ctx ends with the lock; release
// is one bounded attempt and may be called more than once.
func NewLease(ctx context.Context, fence uint64, release func()) *Lease {
	return &Lease{ctx: ctx, fence: fence, release: release}
}

// Context ends when the lock is lost (cause ErrLost) or released, or when the
// context given to Acquire ends. Work under the lock runs on it.
func (l *Lease) Context() context.Context { return l.ctx }

// Fence rises with every acquisition of the session, so that a store can
// refuse the writes of an earlier holder.
func (l *Lease) Fence() uint64 { return l.fence }

// Release gives the lock to the next waiter. It is idempotent and works after
// the lease's context has ended.
func (l *Lease) Release() { l.release() }

// BackendLocal names the lock inside one process.
const BackendLocal = "local"

// Config is the section gateway.turn_lock of gateway.yaml.
type Config struct {
	Backend string `yaml:"backend"`
}

// DefaultConfig returns the settings of a file that names none.
func DefaultConfig() Config { return Config{Backend: BackendLocal} }

// Validate returns every problem, joined; each begins with the key's name.
func (c Config) Validate() error {
	if c.Backend != BackendLocal {
		return fmt.Errorf("backend: %q is not one of %s", c.Backend, BackendLocal)
	}
	return nil
}
