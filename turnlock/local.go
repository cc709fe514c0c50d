package turnlock

import (
	"context"
	"sync"
	"time"
)

// Local is a Locker inside one process. It does not serialise the turns of
// other processes.
type Local struct {
	maxWait time.Duration
	queue   Queue
	fences  Fences
}

var _ Locker = (*Local)(nil)

// NewLocal returns a Locker without held locks. Fences follow now, so that
// they rise over a restart too. No wait is longer than maxWait.
func NewLocal(now func() time.Time, maxWait time.Duration) *Local {
	return &Local{maxWait: maxWait, fences: Fences{Now: now}}
}

// Acquire implements Locker.
func (l *Local) Acquire(ctx context.Context, session string) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	place := l.queue.Join(session)
	if err := l.wait(ctx, place); err != nil {
		place.Leave()
		return nil, err
	}
	held, cancel := context.WithCancelCause(ctx)
	return NewLease(held, LeaseConfig{
		Fence: l.fences.Next(),
		Release: func() {
			cancel(context.Canceled)
			place.Leave()
		},
	}), nil
}

func (l *Local) wait(ctx context.Context, place *Place) error {
	if place.IsTurn() {
		return nil
	}
	timer := time.NewTimer(l.maxWait)
	defer timer.Stop()
	select {
	case <-place.Turn():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return ErrBusy
	}
}

// Fences are those that one process gives out by its own clock. They exceed the
// ones that it has had from elsewhere.
type Fences struct {
	Now func() time.Time

	mu   sync.Mutex
	last uint64
}

// Next returns a fence above every earlier one: the time in µs if it is.
func (f *Fences) Next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last+1, uint64(f.Now().UnixMicro()))
	return f.last
}

// Last returns the fence given out last, 0 if there was none.
func (f *Fences) Last() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// Raise makes later fences exceed one that was given out elsewhere.
func (f *Fences) Raise(to uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last, to)
}
