package redisclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redisclient"
)

// line is a server behind a breaker.
type line struct {
	call redis.ProcessHook
	pipe redis.ProcessPipelineHook
	err  error // what the server says from now on
	sent int
}

func newLine() *line {
	l, b := new(line), redisclient.NewBreaker()
	l.call = b.ProcessHook(func(context.Context, redis.Cmder) error {
		l.sent++
		return l.err
	})
	l.pipe = b.ProcessPipelineHook(func(_ context.Context, cmds []redis.Cmder) error {
		l.sent++
		cmds[len(cmds)-1].SetErr(l.err)
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil {
				return err
			}
		}
		return nil
	})
	return l
}

// try calls n times and returns the last error.
func (l *line) try(t *testing.T, n int) (err error) {
	for range n {
		err = l.call(t.Context(), redis.NewStatusCmd(t.Context(), "get", "k"))
	}
	return err
}

func TestWhatOpensTheBreaker(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want redisclient.Class // empty: it stays closed
	}{
		{io.EOF, redisclient.Unreachable},
		{context.DeadlineExceeded, redisclient.Unreachable},
		{&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}, redisclient.Unreachable},
		{errors.New("redis: cluster has no nodes"), redisclient.Unreachable},
		{fmt.Errorf("all sentinels are unreachable: %w", errors.Join(redis.Nil)), redisclient.Unreachable},
		{answer("LOADING Redis is loading the dataset in memory"), redisclient.Loading},
		{answer("MASTERDOWN Link with MASTER is down"), redisclient.Unreachable},
		{answer("CLUSTERDOWN The cluster is down"), redisclient.Unreachable},
		{answer("ERR max number of clients reached"), redisclient.Unreachable},
		{answer("READONLY You can't write against a read only replica."), redisclient.ReadOnly},
		{answer("MISCONF Redis is configured to save RDB snapshots"), redisclient.Misconf},
		{answer("ERR -OOM command not allowed when used memory > 'maxmemory'. script: x"), redisclient.OOM},
		{answer("WRONGPASS invalid username-password pair"), redisclient.Auth},
		{answer("NOAUTH Authentication required."), redisclient.Auth},
		{nil, ""},
		{redis.Nil, ""},
		{redis.TxFailedErr, ""},
		{answer("NOSCRIPT No matching script."), ""},
		{answer("NOPERM User gw has no permissions to run the 'evalsha' command"), ""},
		{answer("WRONGTYPE Operation against a key holding the wrong kind of value"), ""},
		{answer("MOVED 1 127.0.0.1:6379"), ""},
		{answer("ERR syntax error"), ""},
		{context.Canceled, ""},
		{&net.OpError{Op: "dial", Net: "tcp", Err: context.Canceled}, ""},
		{redis.ErrClosed, ""},
	} {
		l := newLine()
		l.err = c.err
		l.try(t, 3)
		l.err = nil
		err := l.try(t, 1)
		if open := l.sent == 3; open != (c.want != "") || open != errors.Is(err, redisclient.ErrOpen) || redisclient.Classify(err) != c.want {
			t.Errorf("after %v: %v of class %q, %d calls sent; want class %q", c.err, err, redisclient.Classify(err), l.sent, c.want)
		}
	}
}

func TestTheBreakerCountsFailuresInARow(t *testing.T) {
	t.Parallel()
	l := newLine()
	for range 5 {
		l.err = io.EOF
		l.try(t, 2)
		l.err = redis.Nil
		l.try(t, 1)
	}
	if l.sent != 15 {
		t.Errorf("%d calls were sent, want all 15", l.sent)
	}
}

func TestTheBreakerTriesOneCallAfterAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		l.err = answer("LOADING")
		l.try(t, 3)
		time.Sleep(400 * time.Millisecond)
		if err := l.try(t, 9); !errors.Is(err, redisclient.ErrOpen) || l.sent != 3 {
			t.Errorf("before the pause is over: %v, %d calls sent", err, l.sent)
		}
		time.Sleep(101 * time.Millisecond)
		l.err = answer("NOAUTH Authentication required.")
		if l.try(t, 1); l.sent != 4 {
			t.Errorf("%d calls sent after the pause, want one more", l.sent)
		}
		// It failed in another way, which is the news.
		if err := l.try(t, 9); redisclient.Classify(err) != redisclient.Auth || l.sent != 4 {
			t.Errorf("after a trial that failed: %v, %d calls sent", err, l.sent)
		}
		time.Sleep(501 * time.Millisecond)
		l.err = nil
		if err := l.try(t, 9); err != nil || l.sent != 13 {
			t.Errorf("after a trial that was answered: %v, %d calls sent, want 13", err, l.sent)
		}
	})
}

// While one call finds out, the others do not wait for it; and when its caller
// loses interest the next one finds out.
func TestTheBreakersTrialIsOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := redisclient.NewBreaker()
		outcome := make(chan error)
		call := b.ProcessHook(func(ctx context.Context, _ redis.Cmder) error {
			select {
			case err := <-outcome:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		cmd := func() redis.Cmder { return redis.NewStatusCmd(t.Context(), "get", "k") }
		var wait sync.WaitGroup
		for range 3 {
			wait.Go(func() { call(t.Context(), cmd()) })
			outcome <- io.EOF
		}
		wait.Wait()
		time.Sleep(501 * time.Millisecond)

		ctx, cancel := context.WithCancel(t.Context())
		wait.Go(func() { call(ctx, cmd()) })
		synctest.Wait()
		if err := call(t.Context(), cmd()); !errors.Is(err, redisclient.ErrOpen) {
			t.Errorf("beside the trial: %v, want ErrOpen", err)
		}
		cancel()
		wait.Wait()
		wait.Go(func() { call(t.Context(), cmd()) })
		outcome <- nil
		wait.Wait()
		wait.Go(func() {
			if err := call(t.Context(), cmd()); err != nil {
				t.Errorf("after an answered trial: %v", err)
			}
		})
		outcome <- nil
		wait.Wait()
	})
}

func TestTheBreakerAndPipelines(t *testing.T) {
	t.Parallel()
	l := newLine()
	batch := func() []redis.Cmder {
		missed := redis.NewStatusCmd(t.Context(), "evalsha", "x")
		missed.SetErr(answer("NOSCRIPT No matching script."))
		return []redis.Cmder{missed, redis.NewStatusCmd(t.Context(), "set", "k", "v")}
	}
	l.err = answer("OOM command not allowed")
	for range 3 {
		_ = l.pipe(t.Context(), batch())
	}
	cmds := batch()
	err := l.pipe(t.Context(), cmds)
	for _, err := range []error{err, cmds[0].Err(), cmds[1].Err()} {
		if !errors.Is(err, redisclient.ErrOpen) || redisclient.Classify(err) != redisclient.OOM || l.sent != 3 {
			t.Errorf("a pipeline: %v of class %s, %d sent; want ErrOpen of class oom", err, redisclient.Classify(err), l.sent)
		}
	}
	if err := l.try(t, 1); !errors.Is(err, redisclient.ErrOpen) {
		t.Errorf("a single call: %v, want the same breaker", err)
	}
}

// What is part of another call goes through: with a connection that cannot be
// opened the trial would fail for ever.
func TestTheBreakerLetsPartsOfACallThrough(t *testing.T) {
	t.Parallel()
	l := newLine()
	l.err = io.EOF
	for _, name := range []string{"hello", "auth", "select", "unwatch"} {
		for range 4 {
			_ = l.call(t.Context(), redis.NewStatusCmd(t.Context(), name))
			_ = l.pipe(t.Context(), []redis.Cmder{redis.NewStatusCmd(t.Context(), name)})
		}
	}
	if l.sent != 32 {
		t.Errorf("%d calls sent, want 32", l.sent)
	}
	if l.try(t, 1); l.sent != 33 {
		t.Error("they opened the breaker")
	}
}

func TestACallThatComesTooLateDoesNotCount(t *testing.T) {
	t.Parallel()
	l := newLine()
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for range 5 {
		if err := l.call(ctx, redis.NewStatusCmd(ctx, "get", "k")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("call = %v, want its context's error", err)
		}
	}
	if err := l.try(t, 1); err != nil || l.sent != 1 {
		t.Errorf("then %v, %d sent; want one", err, l.sent)
	}
}

// Not parallel: others' allocations would count.
func TestTheBreakerAllocatesLittle(t *testing.T) {
	l := newLine()
	cmd, ctx := redis.NewStatusCmd(t.Context(), "get", "k"), t.Context()
	if n := testing.AllocsPerRun(1000, func() { _ = l.call(ctx, cmd) }); n > 1 {
		t.Errorf("%v allocations a call, want at most 1", n)
	}
	l.err = io.EOF
	l.try(t, 3)
	if n := testing.AllocsPerRun(1000, func() { _ = l.call(ctx, cmd) }); n > 0 {
		t.Errorf("%v allocations a call while open, want none", n)
	}
}

func BenchmarkBreaker(b *testing.B) {
	for _, c := range []struct {
		name string
		err  error
	}{{"closed", nil}, {"open", io.EOF}} {
		b.Run(c.name, func(b *testing.B) {
			l := newLine()
			l.err = c.err
			cmd, ctx := redis.NewStatusCmd(b.Context(), "get", "k"), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				_ = l.call(ctx, cmd)
			}
		})
	}
}
