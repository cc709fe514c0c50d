package redislock

import (
	"context"
	"sync"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/turnlock"
)

// The degraded owners of a lock that is weaker than configured.
const (
	ownerLock   = "turn_lock:redis"
	ownerWake   = "turn_lock:wake"
	reasonLock  = "distributed turn lock unavailable"
	reasonDeaf  = "turn lock wake-ups do not arrive (waiters poll)"
	hintAround  = "; turns of a session are serialised inside each replica meanwhile, and it is tried again by itself"
	hintChannel = "allow the gateway's user the channels that docs/operations.md lists under Redis; it is tried again by itself"
)

// maxDeaf is how many wake-ups in a row may not arrive, such as while the
// client connects again.
const maxDeaf = 3

// watch knows whether the server serves: until a call fails, and then again
// from the next probe on, which makes every kind of call.
type watch struct {
	mu    sync.Mutex
	up    bool
	once  bool // it ever was
	calls int  // wake-ups sent to ourselves since one was heard
}

// worked notes a probe that was answered.
func (w *watch) worked(l *Locker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.up {
		return
	}
	w.up, w.once = true, true
	l.cfg.Health.Clear(health.KindCapability, ownerLock)
}

// failed notes a call that was not answered, unless its caller gave it up.
func (w *watch) failed(l *Locker, ctx context.Context, err error) {
	if cancelled(ctx) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = false
	class := redisclient.Classify(err)
	o := health.Owner{
		Kind: health.KindCapability, ID: ownerLock, State: health.Cold, Class: string(class), Reason: reasonLock,
		RetryHint: health.RedisHint(string(class)) + hintAround, Detail: err.Error(), Lasting: !class.Heals(),
	}
	if w.once {
		o.State = health.Stale
	}
	l.cfg.Health.Degrade(o)
}

// called notes that a wake-up is sent to this process itself.
func (w *watch) called(l *Locker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls++; w.calls > maxDeaf {
		l.cfg.Health.Degrade(health.Owner{
			Kind: health.KindCapability, ID: ownerWake, State: health.Cold, Class: string(redisclient.Permission), Reason: reasonDeaf, RetryHint: hintChannel,
		})
	}
}

// heard notes that one arrived.
func (w *watch) heard(l *Locker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = 0
	l.cfg.Health.Clear(health.KindCapability, ownerWake)
}

// Backend names what serialises turns now.
func (l *Locker) Backend() string {
	l.watch.mu.Lock()
	defer l.watch.mu.Unlock()
	if l.watch.up {
		return turnlock.BackendRedis
	}
	return turnlock.BackendLocal
}
