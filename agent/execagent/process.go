package execagent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/agent"
)

// pipeDelay bounds how long a run waits, after its group is gone, for a pipe
// that a process outside the group holds open.
const pipeDelay = time.Second

// process is one run of the program.
type process struct {
	cmd    *exec.Cmd
	stdout output
	stderr tail

	mu   sync.Mutex
	gone bool // the group was killed for good: its number may soon be another's
}

func (a *Agent) start(input []byte, env []string) (*process, error) {
	path, err := exec.LookPath(a.config.Command[0])
	if err != nil {
		return nil, a.notStarted(err)
	}
	p := &process{}
	p.stdout.full = p.kill
	// Not exec.CommandContext: what has to end is the group, and at a time when
	// its number is still its own.
	p.cmd = &exec.Cmd{
		Path: path, Args: a.config.Command, Env: env, SysProcAttr: attributes(), WaitDelay: pipeDelay,
		Stdin: bytes.NewReader(input), Stdout: &p.stdout, Stderr: &p.stderr,
	}
	if err := p.cmd.Start(); err != nil {
		return nil, a.notStarted(err)
	}
	return p, nil
}

// notStarted keeps the path out of the text, which the errors of package exec
// quote.
func (a *Agent) notStarted(err error) *agent.Error {
	reason := "the operating system refuses"
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		reason = errno.Error()
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		reason = "not found in PATH"
	case errors.Is(err, exec.ErrDot):
		reason = "found only through a relative directory in PATH"
	case errors.Is(err, fs.ErrNotExist):
		reason = "not found, or the interpreter that it names is not"
	case errors.Is(err, fs.ErrPermission):
		reason = "not executable"
	}
	return failed("the program %s cannot be started: %s", a.name, reason)
}

// wait returns when the program has ended, its group is gone and its output is
// read. The end of ctx ends the group.
func (p *process) wait(ctx context.Context) error {
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		p.kill()
		close(killed)
	})
	err := p.collect()
	if !stop() {
		<-killed
	}
	if p.stdout.over {
		return errTooLarge()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return failed("the program ended with %s", exit.ProcessState)
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) { // that one says who holds the pipe: not the program
		return failed("the output of the program cannot be read: %w", err)
	}
	return nil
}

// collect waits for the program. What it leaves behind is killed at a time when
// the group's number cannot be another's yet: after the program has ended, and
// before the kernel is told that we know. That is also what closes the pipes,
// so that nobody has to wait for them.
func (p *process) collect() error {
	if awaitExit(p.cmd.Process.Pid) == nil {
		p.end()
	}
	err := p.cmd.Wait()
	p.end()
	return err
}

// kill kills the group, and the program in case it has left it. It may be
// called at any time.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	// They may have ended by themselves, which is what is wanted.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.cmd.Process.Kill()
}

// end is the last kill.
func (p *process) end() {
	p.kill()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
}
