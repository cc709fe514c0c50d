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

// call is one question to the server, bounded in time. Its error says what was
// asked, and that the server does not serve, unless the caller gave the question
// up.
func (l *Locker) call(ctx context.Context, what string, timeout time.Duration, ask func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := ask(bounded)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", what, redact.Error(err))
	if ctx.Err() == nil {
		l.watch.failed(l, err)
	}
	return err
}

// ask takes the lock, or keeps the waiter's place in the server's queue and
// returns when asking again makes sense. First says that the waiter is the one
// of this process that may take it.
func (l *Locker) ask(ctx context.Context, w *waiter, first bool) (fence uint64, pause time.Duration, err error) {
	w.asked, w.lost = true, true
	mayTake := 0
	if first {
		mayTake = 1
	}
	var answer []int64
	err = l.call(ctx, "acquire a turn lock", l.cfg.Timeout, func(ctx context.Context) (err error) {
		answer, err = acquireScript.Run(ctx, l.cfg.Client, l.keys.of(w.session),
			w.token, l.cfg.Replica, l.cfg.TTL.Milliseconds(), l.placeLife().Milliseconds(), fenceLife.Milliseconds(),
			l.fences.Last(), mayTake).Int64Slice()
		if err == nil && len(answer) != 2 {
			err = fmt.Errorf("the script answered %d numbers", len(answer))
		}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	w.lost = false
	return uint64(answer[0]), time.Duration(answer[1]) * time.Millisecond, nil
}

// leave gives back a place or, with its fence, a lock, and reports whether that
// was still the token's. When nobody waits for it, wakes is told, if it is
// anybody.
func (l *Locker) leave(ctx context.Context, session, token string, fence uint64, wakes string) (held bool, err error) {
	err = l.call(ctx, "give back a turn lock", l.cfg.Timeout, func(ctx context.Context) error {
		answer, err := leaveScript.Run(ctx, l.cfg.Client, l.keys.of(session), token, l.keys.wake, session, wakes, fenceLife.Milliseconds(), fence).Int64()
		held = answer == 1
		return err
	})
	return held, err
}

// renewal returns the arguments of the script that renews s.
func (l *Locker) renewal(s *lease) (keys []string, args []any) {
	return []string{l.keys.lock + s.session, l.keys.fence + s.session},
		[]any{s.value, s.fence, l.cfg.TTL.Milliseconds(), fenceLife.Milliseconds()}
}
