package idempotency

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/oncegate/oncegate/health"
)

// liveness keeps the heartbeat of this process and, in a store where a replica
// is dead when its heartbeat has run out, knows how far it can be trusted.
//
// Others may take this process's claims over as soon as its heartbeat is
// absent, so it stops relying on them in time: when the last heartbeat that
// was acknowledged is older than two thirds of its life, or once was since the
// claim was confirmed. And since after an outage all heartbeats may be absent
// although nobody died, it takes over nothing from others until they have had
// the time to write theirs.
type liveness struct {
	cfg     livenessConfig
	beating chan struct{} // held by the Beat under way

	mu      sync.Mutex
	roll    Roll      // nil until the store is open
	expires bool      // who has no heartbeat is dead; else the store finds out by itself
	acked   time.Time // when the last acknowledged heartbeat was sent
	broken  time.Time // a claim confirmed before may have been taken over
	calm    time.Time // the first acknowledged heartbeat since the last interruption; zero: none yet
}

// livenessConfig is what a liveness needs.
type livenessConfig struct {
	Self          func() health.Replica // what this process tells the others
	Seen          func(own health.Replica, all []health.Replica)
	TakeoverAfter time.Duration // the life of a heartbeat
	Now           func() time.Time
	Log           *slog.Logger
}

// beatsPerLife is how often a heartbeat is written during its life.
const beatsPerLife = 6

func newLiveness(cfg livenessConfig) *liveness {
	return &liveness{cfg: cfg, beating: make(chan struct{}, 1)}
}

// trusted is how old the last acknowledged heartbeat, or a claim's last
// confirmation, may be for the claim to be relied upon.
func (l *liveness) trusted() time.Duration { return l.cfg.TakeoverAfter * 2 / 3 }

func (l *liveness) attach(roll Roll, expires bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roll, l.expires = roll, expires
}

// run writes heartbeats until ctx ends. One that is not acknowledged is not
// reported here: who relies on it finds out by fresh.
func (l *liveness) run(ctx context.Context) {
	ticker := time.NewTicker(l.cfg.TakeoverAfter / beatsPerLife)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		bounded, cancel := context.WithTimeout(ctx, probeTimeout)
		if err := l.beat(bounded, true); err != nil && ctx.Err() == nil {
			l.cfg.Log.Debug("heartbeat not acknowledged", "error", err)
		}
		cancel()
	}
}

// beat writes the heartbeat; unless always, only if the last one is not young
// any more when the turn comes: after a pause all claims ask for one. Before
// the store has been opened there is nothing to write it to.
func (l *liveness) beat(ctx context.Context, always bool) error {
	select {
	case l.beating <- struct{}{}:
		defer func() { <-l.beating }()
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	roll := l.roll
	l.mu.Unlock()
	if roll == nil || !always && l.fresh() {
		return nil
	}
	own := l.cfg.Self()
	own.Seen = l.cfg.Now()
	all, err := roll.Beat(ctx, own, l.cfg.TakeoverAfter)
	if err != nil {
		return err
	}
	l.acknowledged(own.Seen)
	l.cfg.Seen(own, all)
	return nil
}

// ensure returns nil if the heartbeat is young enough to make a claim under,
// and else writes one.
func (l *liveness) ensure(ctx context.Context) error {
	if l.fresh() {
		return nil
	}
	return l.beat(ctx, false)
}

func (l *liveness) acknowledged(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked.IsZero() || elapsed(l.acked, sent) > l.trusted() {
		l.broken, l.calm = sent, time.Time{}
	}
	if l.calm.IsZero() {
		l.calm = sent
	}
	l.acked = sent
}

// interrupted notes that the store was away or has lost what it held: the
// heartbeats of living replicas may be absent.
func (l *liveness) interrupted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calm = time.Time{}
}

func (l *liveness) fresh() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.expires || !l.acked.IsZero() && elapsed(l.acked, l.cfg.Now()) <= l.trusted()
}

// mayTakeOver reports whether an absent heartbeat means that its replica is
// dead. The time is that of the monotonic clock alone: a wall clock that jumps
// forward gives nobody time to write a heartbeat.
func (l *liveness) mayTakeOver() bool {
	if !l.fresh() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.calm.IsZero() && l.cfg.Now().Sub(l.calm) >= l.cfg.TakeoverAfter
}

// inDoubt reports whether c may have been taken over without our knowing. A
// later heartbeat does not undo that, only a confirmation of the claim does.
func (l *liveness) inDoubt(c Claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.expires {
		return false
	}
	confirmed := l.acked
	if c.Confirmed.After(confirmed) {
		confirmed = c.Confirmed
	}
	return c.Confirmed.Before(l.broken) || elapsed(confirmed, l.cfg.Now()) > l.trusted()
}

// leave takes the heartbeat back, so that the others need not wait for its end.
func (l *liveness) leave(ctx context.Context, replica string) error {
	l.mu.Lock()
	roll := l.roll
	l.roll = nil
	l.mu.Unlock()
	if roll == nil {
		return nil
	}
	return roll.Leave(ctx, replica)
}
