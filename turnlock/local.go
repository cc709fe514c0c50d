package turnlock

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Local is a Locker inside one process. It does not serialise the turns of
// other processes.
type Local struct {
	now     func() time.Time
	maxWait time.Duration

	mu      sync.Mutex
	fence   uint64
	waiting map[string][]chan struct{} // a held session has an entry; its waiters, first come first
}

var _ Locker = (*Local)(nil)

// NewLocal returns a Locker without held locks. Fences follow now, so that
// they rise over a restart too. No wait is longer than maxWait.
func NewLocal(now func() time.Time, maxWait time.Duration) *Local {
	return &Local{now: now, maxWait: maxWait, waiting: make(map[string][]chan struct{})}
}

// Acquire implements Locker.
func (l *Local) Acquire(ctx context.Context, session string) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := l.wait(ctx, session, l.join(session)); err != nil {
		return nil, err
	}
	held, cancel := context.WithCancelCause(ctx)
	var once sync.Once
	return NewLease(held, l.nextFence(), func() {
		once.Do(func() {
			cancel(context.Canceled)
			l.next(session)
		})
	}), nil
}

func (l *Local) wait(ctx context.Context, session string, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	default:
	}
	timer := time.NewTimer(l.maxWait)
	defer timer.Stop()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		l.leave(session, turn)
		return context.Cause(ctx)
	case <-timer.C:
		l.leave(session, turn)
		return ErrBusy
	}
}

// join returns a channel that is closed when the caller's turn has come.
func (l *Local) join(session string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	turn := make(chan struct{})
	if queue, held := l.waiting[session]; held {
		l.waiting[session] = append(queue, turn)
	} else {
		l.waiting[session] = nil
		close(turn)
	}
	return turn
}

// leave takes a waiter out of the queue. If its turn came at the same moment,
// the lock goes on to the next one.
func (l *Local) leave(session string, turn chan struct{}) {
	l.mu.Lock()
	if i := slices.Index(l.waiting[session], turn); i >= 0 {
		l.waiting[session] = slices.Delete(l.waiting[session], i, i+1)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.next(session)
}

func (l *Local) next(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.waiting[session]
	if len(queue) == 0 {
		delete(l.waiting, session)
		return
	}
	close(queue[0])
	l.waiting[session] = queue[1:]
}

func (l *Local) nextFence() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence = max(l.fence+1, uint64(l.now().UnixMicro()))
	return l.fence
}
