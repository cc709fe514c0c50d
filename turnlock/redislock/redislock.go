// Package redislock serialises the turns of a session over all replicas, by a
// lock in the Redis that they share.
//
// A lock is taken in the order in which its waiters came, whichever replica
// they came to. It lives a short time and is renewed by its holder, so that a
// crash costs that time and no more. Who takes it gets a fence, which rises
// with every acquisition.
//
// The lock is a courtesy, not a proof: a server that loses a write, such as in
// a failover, can let two in, and a holder that was frozen finds out only when
// it wakes. What must not be written twice is protected by the fence.
//
// While the server is away every replica serialises its own turns, as turnlock.Local
// does, and the owner capability/turn_lock:redis is degraded.
package redislock

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/turnlock"
)

// Config is what a Locker needs. All replicas that share a server and a prefix
// are meant to have the same TTL.
type Config struct {
	Client  redis.UniversalClient // stays the caller's, and open until the last lease is released
	Prefix  string                // begins every key and channel
	Replica string                // id of this process, without a dot
	TTL     time.Duration         // how long a lock outlives a holder that does not renew it
	MaxWait time.Duration         // for a lock
	Timeout time.Duration         // of one question to the server
	Health  *health.Registry
	Events  Events
	Now     func() time.Time
	Log     *slog.Logger
}

// Events are told what should be counted. They return at once; nil tells nobody.
type Events struct {
	Lost     func() // a lock went, or may have gone, to somebody else while it was held
	FailOpen func() // a turn goes on without the lock of the server
}

// Locker is a turnlock.Locker in Redis. Run has to be running for locks to be
// renewed.
type Locker struct {
	cfg    Config
	keys   keys
	log    *slog.Logger
	queue  turnlock.Queue  // of this process, each of whose waiters has a token in the server's too
	fences turnlock.Fences // of the turns that go on without the server
	watch  watch
	deaf   chan struct{} // wake-ups do not arrive

	mu        sync.Mutex
	waiters   map[string]map[*waiter]struct{} // by session
	held      map[*lease]struct{}
	abandoned []abandoned
}

var _ turnlock.Locker = (*Locker)(nil)

// New returns a Locker. Nothing is sent before the first Acquire, or Run.
func New(c Config) *Locker {
	return &Locker{
		cfg:     c,
		keys:    newKeys(c.Prefix),
		log:     c.Log.With("component", "turn lock"),
		fences:  turnlock.Fences{Now: c.Now},
		waiters: make(map[string]map[*waiter]struct{}),
		held:    make(map[*lease]struct{}),
		deaf:    make(chan struct{}, 1),
	}
}

// pollEvery is how often a waiter asks that nobody wakes. It also keeps its
// place in the queue.
func (l *Locker) pollEvery() time.Duration { return min(l.cfg.TTL/3, 5*time.Second) }

// placeLife is how long the places of a replica that asks no more count.
func (l *Locker) placeLife() time.Duration { return 3 * l.pollEvery() }

// Acquire implements turnlock.Locker. The waiting is done in two queues at once:
// that of this process, which alone serves while the server is away, and the
// server's. Of the waiters of a process only the first may take the lock.
func (l *Locker) Acquire(ctx context.Context, session string) (*turnlock.Lease, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := l.join(session)
	lease, err := l.wait(ctx, w)
	l.stopWaiting(w)
	if err != nil {
		l.giveUp(ctx, w)
		return nil, err
	}
	return lease, nil
}

// waiter is somebody who waits for a lock.
type waiter struct {
	session string
	token   string
	place   *turnlock.Place
	wake    chan struct{} // the holder has given the lock back

	asked  bool      // the server may know the token
	lost   bool      // the last question was not answered, and may be carried out later
	behind time.Time // until then somebody else has the lock, as the server has said
}

func (l *Locker) join(session string) *waiter {
	w := &waiter{session: session, token: l.newToken(), place: l.queue.Join(session), wake: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiters[session] == nil {
		l.waiters[session] = make(map[*waiter]struct{})
	}
	l.waiters[session][w] = struct{}{}
	return w
}

func (l *Locker) stopWaiting(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiters[w.session], w)
	if len(l.waiters[w.session]) == 0 {
		delete(l.waiters, w.session)
	}
}

// wake tells the waiter of a session that may take its lock to try.
func (l *Locker) wake(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.waiters[session] {
		if w.place.IsTurn() {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

// wait asks until the lock is the waiter's. A server that does not answer is
// not waited for once the turns of this process allow to go on, and whoever had
// the lock, when it answered last, has it no more.
func (l *Locker) wait(ctx context.Context, w *waiter) (*turnlock.Lease, error) {
	giveUp := time.NewTimer(l.cfg.MaxWait)
	defer giveUp.Stop()
	for {
		first := w.place.IsTurn()
		sent := l.cfg.Now()
		fence, pause, err := l.ask(ctx, w, first)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case fence != 0:
			return l.hold(ctx, w, fence, sent), nil
		case err == nil:
			w.behind = sent.Add(pause)
			pause = min(pause, l.pollEvery())
		case first && !l.cfg.Now().Before(w.behind):
			return l.goOn(ctx, w), nil
		default:
			pause = askAgain
		}
		turn := w.place.Turn()
		if first {
			turn = nil
		}
		again := time.NewTimer(jittered(pause))
		select {
		case <-turn:
		case <-w.wake:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, context.Cause(ctx)
		case <-giveUp.C:
			again.Stop()
			return nil, turnlock.ErrBusy
		}
		again.Stop()
	}
}

// askAgain is the pause after a question without an answer. While the server is
// away most are not even sent.
const askAgain = 250 * time.Millisecond

// jittered returns up to a tenth more than d, so that those who wait for the
// same moment do not all ask in it, and none asks before.
func jittered(d time.Duration) time.Duration { return d + time.Millisecond + rand.N(d/10+1) }

// goOn lets the turn go on without the lock of the server. It owns nothing
// there and so has nothing to give back; a question that was never answered
// may still be carried out, and is taken back.
func (l *Locker) goOn(ctx context.Context, w *waiter) *turnlock.Lease {
	l.abandon(w.session, w.token)
	l.watch.without(+1)
	if l.cfg.Events.FailOpen != nil {
		l.cfg.Events.FailOpen()
	}
	held, cancel := context.WithCancelCause(ctx)
	return turnlock.NewLease(held, turnlock.LeaseConfig{
		Fence: l.fences.Next(),
		Release: func() {
			cancel(context.Canceled)
			l.watch.without(-1)
			w.place.Leave()
		},
	})
}

// giveUp leaves both queues, that of the server first: the next waiter of this
// process finds the place of this one taken back.
func (l *Locker) giveUp(ctx context.Context, w *waiter) {
	defer w.place.Leave()
	if !w.asked {
		return
	}
	if _, err := l.leave(context.WithoutCancel(ctx), w.session, w.token, 0, ""); err != nil || w.lost {
		l.abandon(w.session, w.token)
	}
}
