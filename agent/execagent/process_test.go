package execagent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/execagent"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// limit is how long a test waits for what is bound to come.
const limit = 30 * time.Second

// watch is where the processes of a test report.
type watch struct{ *net.UnixListener }

func newWatch(t *testing.T) watch {
	t.Helper()
	dir, err := os.MkdirTemp("", "exec") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return watch{l}
}

func (w watch) env(c *agent.Config) { c.Env[socketVar] = secret.New(w.Addr().String()) }

// process is one that has reported.
type process struct {
	*net.UnixConn
	pid int
}

// next returns the process that has reported next, or an error if there is none
// in time.
func (w watch) next(t *testing.T, within time.Duration) (process, error) {
	t.Helper()
	if err := w.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	conn, err := w.AcceptUnix()
	if err != nil {
		return process{}, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	p := process{UnixConn: conn}
	_, err = fmt.Fscanln(conn, &p.pid)
	return p, err
}

func (w watch) mustNext(t *testing.T) process {
	t.Helper()
	p, err := w.next(t, limit)
	if err != nil {
		t.Fatalf("no process has reported: %v", err)
	}
	return p
}

// wantGone waits for the end of a process, however long process 1 takes to
// collect it.
func (p process) wantGone(t *testing.T) {
	t.Helper()
	if err := p.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("process %d: %v, want it gone", p.pid, err)
	}
}

// wantCollected checks that nothing is left of a program whose run is over.
func (p process) wantCollected(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("kill(%d, 0) = %v, want no such process", p.pid, err)
	}
}

type result struct {
	reply agent.Reply
	err   error
}

// begin runs a turn whose result is sent when it is there.
func begin(ctx context.Context, a *execagent.Agent) <-chan result {
	done := make(chan result, 1)
	go func() {
		reply, err := a.Run(ctx, turn())
		done <- result{reply, err}
	}()
	return done
}

func TestTheTimeoutOfTheAgentKillsTheProgramAndItsChildren(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	for timeout := 200 * time.Millisecond; timeout < limit; timeout *= 2 {
		a := newAgent(t, configFor("child and hang", "", w.env, func(c *agent.Config) { c.Timeout = &timeout }))
		_, err := a.Run(t.Context(), turn())
		wantKind(t, err, agent.Timeout)
		if !errors.Is(err, message.ErrTimeout) || errors.Is(err, agent.ErrRefused) {
			t.Errorf("error = %v, want a timeout that may pass", err)
		}
		child, childErr := w.next(t, time.Second)
		program, programErr := w.next(t, time.Second)
		if childErr != nil || programErr != nil {
			continue // the machine is too busy for them to get up in time
		}
		program.wantCollected(t)
		program.wantGone(t)
		child.wantGone(t)
		return
	}
	t.Fatal("the processes were never up before the timeout")
}

func TestATurnThatIsCalledOffKillsTheProgramAndItsChildren(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	lost := errors.New("the lock was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := begin(ctx, newAgent(t, configFor("child and hang", "", w.env, func(c *agent.Config) { c.Timeout = new(time.Hour) })))
	child, program := w.mustNext(t), w.mustNext(t)
	cancel(lost)
	got := <-done
	program.wantCollected(t)
	program.wantGone(t)
	child.wantGone(t)
	if !errors.Is(got.err, lost) || errors.Is(got.err, message.ErrTimeout) || got.reply != (agent.Reply{}) {
		t.Errorf("Run = %q, %v; want only %v and no timeout", got.reply.Text, got.err, lost)
	}
}

func TestATurnThatIsOverReturnsTheCause(t *testing.T) {
	t.Parallel()
	over := errors.New("the turn is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if _, err := newAgent(t, configFor("print", "late")).Run(ctx, turn()); !errors.Is(err, over) {
		t.Errorf("error = %v, want %v", err, over)
	}
}

func TestTheDeadlineOfTheTurnIsNotTheAgentsTimeout(t *testing.T) {
	t.Parallel()
	over := errors.New("the turn is over")
	w := newWatch(t)
	a := newAgent(t, configFor("hang", "", w.env, func(c *agent.Config) { c.Timeout = new(time.Hour) }))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, over)
	defer cancel()
	_, err := a.Run(ctx, turn())
	if !errors.Is(err, over) || agent.KindOf(err) == agent.Timeout {
		t.Errorf("error = %v, want %v and not kind timeout", err, over)
	}
}

func TestAProgramThatLeavesItsGroupIsKilledAlike(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := begin(ctx, newAgent(t, configFor("leave the group", "", w.env)))
	program := w.mustNext(t)
	cancel()
	if got := <-done; !errors.Is(got.err, context.Canceled) {
		t.Errorf("error = %v, want that of the context", got.err)
	}
	program.wantCollected(t)
}

func TestTooMuchOutputEndsTheProgram(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	done := begin(t.Context(), newAgent(t, configFor("flood", "", w.env)))
	program := w.mustNext(t)
	got := <-done
	wantKind(t, got.err, agent.TooLarge)
	if !errors.Is(got.err, agent.ErrRefused) {
		t.Errorf("error = %v, want one that is refused for ever", got.err)
	}
	program.wantCollected(t)
}

func TestAByteTooManyIsTooMuch(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text  string
		times int
	}{
		"of the output":                {"a", agent.MaxReply + 1},
		"of a reply once it is UTF-8":  {"a\xff", agent.MaxReply/4 + 1},
		"of white space after the end": {"\n", agent.MaxReply + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newAgent(t, configFor("repeat", fmt.Sprint(test.times, " ", test.text))).Run(t.Context(), turn())
			wantKind(t, err, agent.TooLarge)
		})
	}
}

func TestAProgramNeedNotReadItsInput(t *testing.T) {
	t.Parallel()
	asked := turn()
	asked.Message.Text = strings.Repeat("a", 1<<20) // more than a pipe takes
	got, err := newAgent(t, configFor("print", "whatever")).Run(t.Context(), asked)
	if err != nil || got.Text != "whatever" {
		t.Errorf("Run = %q, %v; want whatever", got.Text, err)
	}
}

func TestWhatAProgramLeavesBehindIsKilled(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	done := begin(t.Context(), newAgent(t, configFor("child and leave", "", w.env)))
	child := w.mustNext(t)
	if got := <-done; got.err != nil || got.reply.Text != "left" {
		t.Errorf("Run = %q, %v; want left", got.reply.Text, got.err)
	}
	child.wantGone(t)
}

func TestADaemonThatHoldsThePipesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	asked := newAgent(t, configFor("daemon and leave", "", w.env))
	done := begin(t.Context(), asked)
	daemon := w.mustNext(t)
	select {
	case got := <-done:
		if got.err != nil || got.reply.Text != "left" {
			t.Errorf("Run = %q, %v; want left", got.reply.Text, got.err)
		}
	case <-time.After(limit):
		t.Error("Run waits for it")
	}
	if err := daemon.Close(); err != nil { // which ends it
		t.Error(err)
	}
}
