package redislock

import (
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
	alone int  // turns under way without the server's lock
}

// worked notes a probe that was answered. As long as a turn goes on without the
// lock, another one can run beside it.
func (w *watch) worked(l *Locker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up, w.once = true, true
	if w.alone == 0 {
		l.cfg.Health.Clear(health.KindCapability, ownerLock)
	}
}

// without counts the turns that go on without the lock.
func (w *watch) without(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alone += n
}

// failed notes a call that was not answered.
func (w *watch) failed(l *Locker, err error) {
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

// called notes that a wake-up is sent to this process itself, and reports whether
// it is time to subscribe anew, because too many did not arrive.
func (w *watch) called(l *Locker) (anew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if w.calls > maxDeaf {
		l.cfg.Health.Degrade(health.Owner{
			Kind: health.KindCapability, ID: ownerWake, State: health.Cold, Class: string(redisclient.Permission), Reason: reasonDeaf, RetryHint: hintChannel,
		})
	}
	return w.calls%(maxDeaf+1) == 0 // and the next ones can arrive
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
