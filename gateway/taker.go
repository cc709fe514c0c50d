package gateway

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// taker takes stored messages for as many turns as this replica has room for,
// and has them run. What has no room stays in the store, where any replica may
// take it.
//
// One goroutine asks the store: at once when a message was accepted here or a
// turn has ended, and each second, jittered, for what others have accepted, for
// due retries and for the messages of dead owners.
type taker struct {
	pipeline *Pipeline
	inbox    idempotency.Inbox
	room     int
	look     time.Duration
	nudge    chan struct{}
	log      *slog.Logger

	mu    sync.Mutex
	taken int  // under way
	short bool // there was no room for all that may be due
}

const (
	takePoll  = time.Second      // ± a quarter
	takeBatch = 64               // messages of one call
	countPoll = 15 * time.Second // between counts of what is stored
)

func newTaker(p *Pipeline, inbox idempotency.Inbox) *taker {
	return &taker{
		pipeline: p, inbox: inbox, room: p.cfg.MaxConcurrentTurns, look: p.cfg.Look,
		nudge: make(chan struct{}, 1), log: p.log,
	}
}

// wake makes the taker look now.
func (t *taker) wake() {
	select {
	case t.nudge <- struct{}{}:
	default:
	}
}

// roomier makes the taker look if it lacked room when it last did.
func (t *taker) roomier() {
	t.mu.Lock()
	short := t.short
	t.mu.Unlock()
	if short {
		t.wake()
	}
}

// run takes until ctx ends or the intake closes, and returns when what it has
// taken last has begun. Those runs belong to the intake.
func (t *taker) run(ctx context.Context) {
	var counted time.Time
	failing := false
	for {
		poll := time.NewTimer(takePoll*3/4 + rand.N(takePoll/2))
		more, err := t.take(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("stored messages cannot be taken now; it is tried again each second", "error", err)
		}
		failing = err != nil
		if now := time.Now(); now.Sub(counted) >= countPoll {
			counted = now
			t.count(ctx)
		}
		if more {
			t.wake()
		}
		select {
		case <-t.nudge:
		case <-poll.C:
		case <-t.pipeline.intake.closing:
			poll.Stop()
			return
		case <-ctx.Done():
			poll.Stop()
			return
		}
		poll.Stop()
	}
}

// take claims as many messages as there is room for, up to takeBatch, and
// starts them. more reports that others may be due.
func (t *taker) take(ctx context.Context) (more bool, err error) {
	free := t.free()
	if free == 0 {
		return false, nil
	}
	n := min(free, takeBatch)
	tokens := make([]string, n)
	for i := range tokens {
		tokens[i] = idempotency.NewToken(t.pipeline.cfg.Replica)
	}
	start := time.Now()
	taking, err := t.inbox.Take(ctx, idempotency.TakeRequest{Tokens: tokens, Look: t.look})
	since(t.pipeline.metrics.takeSeconds, start)
	for _, key := range taking.Buried {
		t.pipeline.noteDead(key, "", idempotency.CauseOvertaken, nil)
	}
	for _, taken := range taking.Taken {
		t.start(taken)
	}
	return err == nil && len(taking.Taken) == n, err
}

// free returns the turns that are neither running nor taken. A message that
// waits for its session's lock needs one as much as one that runs.
func (t *taker) free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := max(0, t.room-max(t.taken, len(t.pipeline.slots)))
	t.short = free == 0
	return free
}

// start runs a message, unless the drain has begun meanwhile: then it is handed
// over untouched.
func (t *taker) start(taken idempotency.Taken) {
	p := t.pipeline
	if !p.intake.enter() {
		p.retry(context.Background(), taken.Claim, taken.Claim.Stored, message.Policy{}, message.ErrDraining)
		return
	}
	t.mu.Lock()
	t.taken++
	t.mu.Unlock()
	go func() {
		defer p.intake.leave()
		defer t.wake() // the next one of its session, or of those that had no room
		defer func() {
			t.mu.Lock()
			t.taken--
			t.mu.Unlock()
		}()
		p.runStored(taken)
	}()
}

func (t *taker) count(ctx context.Context) {
	n, err := t.inbox.Count(ctx)
	if err != nil {
		return // the gauges stay as they are: the store's own trouble is shown elsewhere
	}
	t.pipeline.metrics.stored.Set(float64(n.Stored))
	t.pipeline.metrics.due.Set(float64(n.Due))
}
