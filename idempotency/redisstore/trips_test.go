package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/redisstore"
)

// wire stands for the connection: it answers claims as won, when the test
// lets it, and notes what was sent how.
type wire struct {
	gate chan struct{} // what is sent waits here; nil answers at once

	mu        sync.Mutex
	alone     int
	pipelines []int // their sizes
	deadlines []time.Time
}

var _ redis.Hook = (*wire)(nil)

func (w *wire) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nothing dials") }
}

func (w *wire) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		w.mu.Lock()
		w.alone++
		w.mu.Unlock()
		w.answer(cmd)
		return nil
	}
}

func (w *wire) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		deadline, _ := ctx.Deadline()
		w.mu.Lock()
		w.pipelines = append(w.pipelines, len(cmds))
		w.deadlines = append(w.deadlines, deadline)
		w.mu.Unlock()
		w.answer(cmds...)
		return nil
	}
}

func (w *wire) answer(cmds ...redis.Cmder) {
	if w.gate != nil {
		<-w.gate
	}
	for _, cmd := range cmds {
		cmd.(*redis.RawCmd).SetVal([]byte("$-1\r\n"))
	}
}

// claims is a store on a wire and the callers of it.
type claims struct {
	*wire
	store *redisstore.Store
	wg    sync.WaitGroup
	next  int
}

func newClaims(t *testing.T) *claims {
	t.Helper()
	w := &wire{gate: make(chan struct{})}
	c := newClient(t, "127.0.0.1:1")
	c.AddHook(w)
	return &claims{wire: w, store: redisstore.New(c, redisstore.Config{Prefix: "test:"})}
}

// start has n callers claim a key of their own and returns when each waits.
func (c *claims) start(ctx context.Context, n int, done func(error)) {
	for range n {
		id := fmt.Sprint(c.next)
		c.next++
		c.wg.Go(func() {
			_, err := c.store.Reserve(ctx, key(id), idempotency.Request{Token: "r1." + id, Lease: lease, TTL: window})
			done(err)
		})
	}
	synctest.Wait()
}

// open lets everything through from now on, and waits for the callers.
func (c *claims) open(t *testing.T) {
	t.Helper()
	close(c.gate)
	c.wg.Wait()
	if err := c.store.Close(); err != nil {
		t.Error(err)
	}
}

func TestSharedRoundTrips(t *testing.T) {
	t.Parallel()
	mustWork := func(t *testing.T) func(error) {
		return func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
	}
	t.Run("a lone caller sends its command itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClaims(t)
			c.start(t.Context(), 1, mustWork(t))
			if c.alone != 1 || len(c.pipelines) != 0 {
				t.Errorf("%d commands alone, pipelines %v; want one command", c.alone, c.pipelines)
			}
			c.open(t)
		})
	})
	t.Run("what gathers behind a round trip shares the next ones", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClaims(t)
			c.start(t.Context(), 1, mustWork(t))
			c.start(t.Context(), 1, mustWork(t))
			c.start(t.Context(), 12, mustWork(t)) // too few for one more pipeline
			c.open(t)
			if want := []int{1, 12}; c.alone != 1 || !slices.Equal(c.pipelines, want) {
				t.Errorf("%d commands alone, pipelines %v; want 1 and %v", c.alone, c.pipelines, want)
			}
		})
	})
	t.Run("a crowd has at most 4 pipelines of at most 64 commands under way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClaims(t)
			c.start(t.Context(), 1, mustWork(t))
			c.start(t.Context(), 600, mustWork(t))
			if len(c.pipelines) != 4 {
				t.Errorf("pipelines %v under way, want 4", c.pipelines)
			}
			c.open(t)
			sum := 0
			for _, n := range c.pipelines {
				sum += n
			}
			if c.alone != 1 || sum != 600 || slices.Max(c.pipelines) > 64 || len(c.pipelines) > 14 {
				t.Errorf("%d commands alone, pipelines %v; want 1 and 600 in few", c.alone, c.pipelines)
			}
		})
	})
	t.Run("a caller whose time is over leaves at once and its command is not sent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClaims(t)
			c.start(t.Context(), 2, mustWork(t)) // one alone, one in a pipeline
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			begin, left := time.Now(), 0
			c.start(ctx, 1, func(err error) {
				left++
				if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took != 200*time.Millisecond {
					t.Errorf("Reserve = %v after %s, want its deadline after 200ms", err, took)
				}
			})
			c.start(t.Context(), 3, mustWork(t))
			time.Sleep(200 * time.Millisecond) // of the bubble's time
			synctest.Wait()
			if left != 1 {
				t.Error("the caller is still waiting")
			}
			c.open(t)
			if want := []int{1, 3}; !slices.Equal(c.pipelines, want) {
				t.Errorf("pipelines %v, want %v", c.pipelines, want)
			}
		})
	})
	t.Run("a round trip ends with the last of its callers, not with any one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClaims(t)
			c.start(t.Context(), 2, mustWork(t))
			var last time.Time
			for _, d := range []time.Duration{time.Second, time.Minute, time.Hour} {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				last, _ = ctx.Deadline()
				c.start(ctx, 1, mustWork(t))
			}
			c.open(t)
			if want := []time.Time{{}, last}; !slices.Equal(c.deadlines, want) {
				t.Errorf("deadlines %v, want %v", c.deadlines, want)
			}
		})
	})
	for name, alone := range map[string]bool{"a lone command": true, "a pipeline": false} {
		t.Run("closing waits for "+name+" and refuses what comes later", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClaims(t)
				c.start(t.Context(), 1, mustWork(t))
				if !alone {
					c.start(t.Context(), 4, mustWork(t))
					c.gate <- struct{}{} // lets the first one through, which waits longest
					synctest.Wait()
				}
				closed := make(chan error, 1)
				go func() { closed <- c.store.Close() }()
				synctest.Wait()
				select {
				case err := <-closed:
					t.Errorf("Close = %v while a call is under way", err)
				default:
				}
				c.start(t.Context(), 1, func(err error) {
					if err == nil {
						t.Error("Reserve after Close was carried out")
					}
				})
				c.open(t)
				if err := <-closed; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
