package redislock

import (
	"context"
	"crypto/rand"
	_ "embed" // for the scripts
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redact"
)

//go:embed acquire.lua
var acquireSource string

//go:embed leave.lua
var leaveSource string

//go:embed renew.lua
var renewSource string

var (
	acquireScript = redis.NewScript(acquireSource)
	leaveScript   = redis.NewScript(leaveSource)
	renewScript   = redis.NewScript(renewSource)
)

// fenceLife is how long the last fence of a session is remembered. It matters
// only while the server's clock shows less than it did then.
const fenceLife = 24 * time.Hour

// keys are how those of a session begin, and the channels on which replicas are
// woken.
type keys struct{ lock, queue, replicas, fence, wake string }

func newKeys(prefix string) keys {
	return keys{
		lock: prefix + "turnlock:", queue: prefix + "turnqueue:", replicas: prefix + "turnreplicas:", fence: prefix + "turnfence:",
		wake: prefix + "turnwake:",
	}
}

func (k keys) of(session string) []string {
	return []string{k.lock + session, k.queue + session, k.replicas + session, k.fence + session}
}

// newToken returns an owner token. The scripts read the replica out of it.
func (l *Locker) newToken() string { return l.cfg.Replica + "." + rand.Text() }

// ask takes the lock, or keeps the waiter's place in the server's queue and
// returns when asking again makes sense. First says that the waiter is the one
// of this process that may take it.
func (l *Locker) ask(ctx context.Context, w *waiter, first bool) (fence uint64, pause time.Duration, err error) {
	w.asked = true
	mayTake := 0
	if first {
		mayTake = 1
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	answer, err := acquireScript.Run(ctx, l.cfg.Client, l.keys.of(w.session),
		w.token, l.cfg.Replica, l.cfg.TTL.Milliseconds(), l.placeLife().Milliseconds(), fenceLife.Milliseconds(),
		l.fences.Last(), mayTake).Int64Slice()
	if err == nil && len(answer) != 2 {
		err = fmt.Errorf("the script answered %d numbers", len(answer))
	}
	if err != nil {
		err = fmt.Errorf("acquire a turn lock: %w", redact.Error(err))
		l.watch.failed(l, ctx, err)
		return 0, 0, err
	}
	return uint64(answer[0]), time.Duration(answer[1]) * time.Millisecond, nil
}

// leave gives back a lock or a place, and reports whether it was a lock. When
// nobody waits for it, wakes is told, if it is anybody.
func (l *Locker) leave(ctx context.Context, session, token, wakes string) (held bool, err error) {
	answer, err := leaveScript.Run(ctx, l.cfg.Client, l.keys.of(session), token, l.keys.wake, session, wakes, fenceLife.Milliseconds()).Int64()
	if err != nil {
		err = fmt.Errorf("give back a turn lock: %w", redact.Error(err))
		l.watch.failed(l, ctx, err)
	}
	return answer == 1, err
}

// renewal returns the arguments of the script that renews s.
func (l *Locker) renewal(s *lease) (keys []string, args []any) {
	return []string{l.keys.lock + s.session, l.keys.fence + s.session},
		[]any{s.value, s.fence, l.cfg.TTL.Milliseconds(), fenceLife.Milliseconds()}
}
