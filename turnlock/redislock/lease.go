package redislock

import (
	"context"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/turnlock"
)

// lease is a lock that this process holds, as far as it knows.
type lease struct {
	session string
	token   string
	value   string // of the lock's key
	fence   uint64
	end     context.CancelCauseFunc // of the lease's context

	// Guarded by the locker's mutex.
	confirmed time.Time // when the last question that confirmed it was sent
	over      bool      // released or lost
	lost      bool
}

func newLease(w *waiter, fence uint64, sent time.Time, end context.CancelCauseFunc) *lease {
	return &lease{
		session: w.session, token: w.token, value: w.token + "|" + strconv.FormatUint(fence, 10), fence: fence,
		end: end, confirmed: sent,
	}
}

// hold makes a lease of a lock that was asked for at sent.
func (l *Locker) hold(ctx context.Context, w *waiter, fence uint64, sent time.Time) *turnlock.Lease {
	held, end := context.WithCancelCause(ctx)
	s := newLease(w, fence, sent, end)
	l.fences.Raise(fence)
	l.mu.Lock()
	l.held[s] = struct{}{}
	l.mu.Unlock()
	return turnlock.NewLease(held, turnlock.LeaseConfig{
		Fence:   fence,
		Confirm: func(ctx context.Context) error { return l.confirm(ctx, s) },
		Release: func() {
			defer w.place.Leave()
			l.release(context.WithoutCancel(ctx), s)
		},
	})
}

// release is one attempt, bounded by the time of a question. One that is not
// answered is repeated behind the caller's back, and the lock ends by itself
// before long.
func (l *Locker) release(ctx context.Context, s *lease) {
	l.mu.Lock()
	s.over = true // no renewal begins from here on
	delete(l.held, s)
	l.mu.Unlock()
	s.end(context.Canceled)
	switch held, err := l.leave(ctx, s.session, s.token, s.fence, ""); {
	case err != nil:
		l.abandon(s.session, s.token)
	case !held:
		l.lose(s, "it was not there any more when it was given back")
	}
}

// lose tells, once, that a lock is gone.
func (l *Locker) lose(s *lease, why string) {
	l.mu.Lock()
	known := s.lost
	s.over, s.lost = true, true
	delete(l.held, s)
	l.mu.Unlock()
	if known {
		return
	}
	s.end(turnlock.ErrLost)
	if l.cfg.Events.Lost != nil {
		l.cfg.Events.Lost()
	}
	l.log.Warn("turn lock lost", "session", s.session, "fence", s.fence, "cause", why)
}

// state returns when s was confirmed last and whether it still is held.
func (l *Locker) state(s *lease) (confirmed time.Time, held, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.confirmed, !s.over, s.lost
}

// confirm asks the server about a lock that was not confirmed for two thirds of
// its life. A lock is held for the whole of it without an answer, as the server
// keeps it for as long: never longer.
func (l *Locker) confirm(ctx context.Context, s *lease) error {
	confirmed, held, lost := l.state(s)
	switch age := elapsed(confirmed, l.cfg.Now()); {
	case lost:
		return turnlock.ErrLost
	case !held:
		return context.Canceled
	case age < l.cfg.TTL*2/3:
		return nil
	case age >= l.cfg.TTL:
		l.lose(s, "its time was over before it was renewed")
		return turnlock.ErrLost
	}
	sent := l.cfg.Now()
	err := l.call(ctx, "confirm a turn lock", l.cfg.Timeout, func(ctx context.Context) error {
		keys, args := l.renewal(s)
		answer, err := renewScript.Run(ctx, l.cfg.Client, keys, args...).Int64()
		l.renewed(s, sent, answer, err)
		return err
	})
	if err != nil {
		if elapsed(confirmed, l.cfg.Now()) < l.cfg.TTL {
			return nil
		}
		l.lose(s, "its time was over before the server answered")
	}
	if _, _, lost := l.state(s); lost {
		return turnlock.ErrLost
	}
	return nil
}

// renewed takes the answer to a renewal that was sent at sent.
func (l *Locker) renewed(s *lease, sent time.Time, answer int64, err error) {
	switch {
	case err != nil:
	case answer == 1:
		l.mu.Lock()
		s.confirmed = sent
		l.mu.Unlock()
	default:
		if _, held, _ := l.state(s); held {
			l.lose(s, "another turn has it")
		}
	}
}

// elapsed returns the time from then to now: the larger of what the monotonic
// and the wall clock say, since the first stands still in suspend.
func elapsed(then, now time.Time) time.Duration {
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}
