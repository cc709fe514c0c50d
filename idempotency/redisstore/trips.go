package redisstore

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// At most flushers pipelines of maxBatch commands are under way at a time.
// While the server works on one, the client writes the next and wakes the
// callers of the one before; with a single pipeline each would wait for the
// other. Small enough, too, that nobody waits for hundreds of foreign replies.
const (
	flushers = 4
	maxBatch = 64
	joinAt   = 16 // commands in a batch for which one more pipeline is worth it
)

// errClosed answers calls that come after Close.
var errClosed = errors.New("store is closed")

// trips lets concurrent callers share round trips. A caller that finds nothing
// under way sends its command itself and pays for nothing else. Every other
// one joins the batch that is filling, and a flusher sends it as a pipeline as
// soon as it has its own last answer: what gathers meanwhile is the size of the
// batch, and no timer is needed. Another flusher joins in when joinAt calls
// have gathered, be it that there is much to do or that a connection hangs.
type trips struct {
	client redis.UniversalClient
	wake   chan struct{}  // one value for each flusher that is to start
	work   sync.WaitGroup // the flushers, and the caller that is alone

	mu       sync.Mutex
	queue    []*batch // the last one is filling, the others are full
	spare    []call   // of a batch that is done, for the next one
	flushing int      // how many flushers have been woken and have not run dry yet
	alone    bool     // a caller is sending its command itself
	closed   bool
}

// batch is the commands of one round trip.
type batch struct {
	calls []call
	done  chan struct{} // closed when every call has its reply or its error
}

type call struct {
	ctx context.Context
	cmd redis.Cmder
}

func newTrips(client redis.UniversalClient) *trips {
	t := &trips{client: client, wake: make(chan struct{}, flushers)}
	for range flushers {
		t.work.Go(t.flush)
	}
	return t
}

// do carries out cmd and returns its error. When ctx ends first it returns
// ctx's error at once; a command that has not been sent by then never is. Only
// a caller that is alone is held, on the wire, until ctx's deadline: the client
// does not notice a mere cancellation there before its own timeouts.
func (t *trips) do(ctx context.Context, cmd redis.Cmder) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return errClosed
	}
	if !t.alone && t.flushing == 0 {
		t.alone = true
		t.work.Add(1)
		t.mu.Unlock()
		return t.doAlone(ctx, cmd)
	}
	b := t.join(call{ctx, cmd})
	t.mu.Unlock()

	if ctx.Done() == nil {
		<-b.done
		return cmd.Err()
	}
	select {
	case <-b.done:
		return cmd.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *trips) doAlone(ctx context.Context, cmd redis.Cmder) error {
	defer t.work.Done()
	err := t.client.Process(ctx, cmd)
	t.mu.Lock()
	t.alone = false
	t.mu.Unlock()
	return err
}

// join adds c to the filling batch and makes sure that it is flushed. The
// caller holds t.mu.
func (t *trips) join(c call) *batch {
	if n := len(t.queue); n == 0 || len(t.queue[n-1].calls) == maxBatch {
		t.queue = append(t.queue, &batch{calls: t.spare, done: make(chan struct{})})
		t.spare = nil
	}
	b := t.queue[len(t.queue)-1]
	b.calls = append(b.calls, c)
	if t.flushing == 0 || t.flushing < flushers && len(b.calls) == joinAt {
		t.flushing++
		t.wake <- struct{}{} // has room: whoever is counted has taken its value, or has it waiting here
	}
	return b
}

// flush sends batches until close.
func (t *trips) flush() {
	for range t.wake {
		// The callers that the last reply has set free run first and fill the
		// next batch. Without that half of them would go round alone.
		runtime.Gosched()
		for b := t.next(); b != nil; b = t.next() {
			t.send(b)
			runtime.Gosched()
		}
	}
}

// next takes the oldest batch out of the queue; nil when there is none.
func (t *trips) next() *batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		t.flushing--
		return nil
	}
	b := t.queue[0]
	t.queue = t.queue[1:]
	return b
}

// send carries out one batch. A command whose caller has left is not sent.
func (t *trips) send(b *batch) {
	defer t.finish(b)
	cmds := make([]redis.Cmder, 0, len(b.calls))
	var last time.Time // the latest deadline, if every caller has one
	bounded := true
	for _, c := range b.calls {
		if c.ctx.Err() != nil {
			continue
		}
		cmds = append(cmds, c.cmd)
		deadline, ok := c.ctx.Deadline()
		bounded = bounded && ok
		if deadline.After(last) {
			last = deadline
		}
	}
	if len(cmds) == 0 {
		return
	}
	ctx := context.Background()
	if bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, last)
		defer cancel()
	}
	pipe := t.client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...) // queueing cannot fail
	_, err := pipe.Exec(ctx)
	stamp(cmds, err)
}

// stamp makes the error of a pipeline that of every command, unless one of them
// is where it comes from. The client leaves the commands without any when it
// was a new connection that the server refused: each would look answered, by
// nothing.
func stamp(cmds []redis.Cmder, err error) {
	if err == nil || slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return
	}
	for _, c := range cmds {
		c.SetErr(err)
	}
}

// finish lets the callers of b go.
func (t *trips) finish(b *batch) {
	close(b.done)
	clear(b.calls)
	t.mu.Lock()
	t.spare = b.calls[:0]
	t.mu.Unlock()
}

// close waits for what is under way and ends the flushers.
func (t *trips) close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.wake)
	}
	t.mu.Unlock()
	t.work.Wait()
}
