package redislock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redisclient"
)

// How often Run looks. Looking costs next to nothing; what is due is rare.
const (
	looksPerLife = 30  // at the held locks, in the life of one
	renewAtOnce  = 256 // locks in one round trip
	probeEvery   = time.Second
)

// Start asks the server once, so that /health knows of trouble before the first
// message.
func (l *Locker) Start(ctx context.Context) { l.probeOnce(ctx) }

// Run renews the held locks, wakes waiters and watches the server until ctx
// ends. It returns nil, after everything that it started.
func (l *Locker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.listen(ctx) })
	wg.Go(func() { l.probe(ctx) })
	look := time.NewTicker(l.cfg.TTL / looksPerLife)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			l.renew(ctx, l.due())
		case <-ctx.Done():
			return nil
		}
	}
}

// due returns the locks that were not confirmed for a third of their life, and
// gives up those whose life would be over before the next look.
func (l *Locker) due() []*lease {
	now := l.cfg.Now()
	var due, over []*lease
	l.mu.Lock()
	for s := range l.held {
		switch age := elapsed(s.confirmed, now); {
		case age >= l.cfg.TTL-l.cfg.TTL/looksPerLife:
			over = append(over, s)
		case age >= l.cfg.TTL/3:
			due = append(due, s)
		}
	}
	l.mu.Unlock()
	for _, s := range over {
		l.lose(s, "its time was over before it could be renewed")
	}
	return due
}

// renew extends the locks, many in a round trip. Those without an answer are
// due again at the next look.
func (l *Locker) renew(ctx context.Context, due []*lease) {
	for len(due) > 0 && ctx.Err() == nil {
		n := min(len(due), renewAtOnce)
		if l.renewSome(ctx, due[:n], renewScript.EvalSha) != nil {
			return // and the watch knows
		}
		due = due[n:]
	}
}

// renewSome returns nil if the server answers. A server that has forgotten the
// script is sent its source.
func (l *Locker) renewSome(ctx context.Context, some []*lease, run func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) error {
	sent := l.cfg.Now()
	answers := make([]*redis.Cmd, len(some))
	var forgotten bool
	err := l.call(ctx, "renew turn locks", min(l.cfg.Timeout, l.shortest(some, sent)), func(ctx context.Context) error {
		pipe := l.cfg.Client.Pipeline()
		for i, s := range some {
			keys, args := l.renewal(s)
			answers[i] = run(ctx, pipe, keys, args...)
		}
		_, err := pipe.Exec(ctx)
		if forgotten = redis.HasErrorPrefix(err, "NOSCRIPT"); forgotten {
			return nil
		}
		return err
	})
	if forgotten {
		return l.renewSome(ctx, some, renewScript.Eval)
	}
	for i, s := range some {
		answer, ownErr := answers[i].Int64()
		if err != nil && ownErr == nil && answer == 0 {
			ownErr = err // a refused connection leaves the commands without an error of their own
		}
		l.renewed(s, sent, answer, ownErr)
	}
	return err
}

// shortest returns how long the first of the locks to end may still be held at
// now. Nobody waits for an answer longer than that: the lock has to be given up
// in time.
func (l *Locker) shortest(some []*lease, now time.Time) time.Duration {
	shortest := l.cfg.TTL
	for _, s := range some {
		confirmed, _, _ := l.state(s)
		shortest = min(shortest, l.cfg.TTL-l.cfg.TTL/looksPerLife-elapsed(confirmed, now))
	}
	return shortest
}

// listen wakes the waiters of this process when another one says so. The
// client connects again by itself; what is missed meanwhile the polls find.
func (l *Locker) listen(ctx context.Context) {
	again := time.NewTicker(probeEvery) // not at once: a closed client gives up at once
	defer again.Stop()
	for ctx.Err() == nil {
		l.subscription(ctx)
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// subscription ends with ctx, or when wake-ups to this process itself do not
// arrive: the client does not subscribe again after it was refused once.
func (l *Locker) subscription(ctx context.Context) {
	sub := l.cfg.Client.Subscribe(ctx, l.keys.wake+l.cfg.Replica)
	defer func() { _ = sub.Close() }() // only ends the connection
	messages := sub.Channel(redis.WithChannelSize(1000), redis.WithChannelHealthCheckInterval(3*time.Second))
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				return
			}
			if m.Payload == l.probeSession() {
				l.watch.heard(l)
			}
			l.wake(m.Payload)
		case <-l.deaf:
			return
		case <-ctx.Done():
			return
		}
	}
}

// probeSession names no session of a message: those have text alone.
func (l *Locker) probeSession() string { return "\x00probe." + l.cfg.Replica }

// probe makes every kind of call on a lock of its own each second, and clears up
// behind calls that were never answered.
func (l *Locker) probe(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if l.probeOnce(ctx) {
			l.retryAbandoned(ctx)
		}
	}
}

func (l *Locker) probeOnce(ctx context.Context) bool {
	if l.watch.called(l) {
		select {
		case l.deaf <- struct{}{}:
		default:
		}
	}
	if l.exercise(ctx) != nil {
		return false
	}
	l.watch.worked(l)
	return true
}

// exercise takes a lock that nobody else wants, waits for it in vain, renews it,
// and gives it back with a wake-up of this process itself.
func (l *Locker) exercise(ctx context.Context) error {
	holder := &waiter{session: l.probeSession(), token: l.newToken()}
	second := &waiter{session: l.probeSession(), token: l.newToken()}
	sent := l.cfg.Now()
	fence, _, err := l.ask(ctx, holder, true)
	if err != nil {
		return err
	}
	if _, _, err := l.ask(ctx, second, false); err != nil {
		return err
	}
	if err := l.renewSome(ctx, []*lease{newLease(holder, fence, sent, func(error) {})}, renewScript.EvalSha); err != nil {
		return err
	}
	if _, err := l.leave(ctx, second.session, second.token, 0, ""); err != nil {
		return err
	}
	_, err = l.leave(ctx, holder.session, holder.token, fence, l.cfg.Replica)
	return err
}

// abandoned is a token that the server may still hold, or come to hold: the
// question that carried it was never answered.
type abandoned struct {
	session, token string
	confirmed      int // how often the server has said that it holds it no more
}

// maxAbandoned bounds the list. What is past it ends with its lock's time.
const maxAbandoned = 10000

func (l *Locker) abandon(session, token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.abandoned) < maxAbandoned {
		l.abandoned = append(l.abandoned, abandoned{session: session, token: token})
	}
}

// retryAbandoned gives the abandoned tokens back. A server that was frozen may
// carry the question out after that, so it is done again with the next probes.
func (l *Locker) retryAbandoned(ctx context.Context) {
	const often = 3
	l.mu.Lock()
	list := l.abandoned
	l.abandoned = nil
	l.mu.Unlock()
	var left []abandoned
	for i, a := range list {
		_, err := l.leave(ctx, a.session, a.token, 0, "")
		if err != nil && redisclient.Classify(err) == redisclient.Unreachable {
			left = append(left, list[i:]...)
			break
		}
		// A refusal of this one counts too: it will be no other next time.
		if a.confirmed++; a.confirmed < often {
			left = append(left, a)
		}
	}
	l.mu.Lock()
	l.abandoned = append(left, l.abandoned...)
	l.mu.Unlock()
}
