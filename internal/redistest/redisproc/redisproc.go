// Package redisproc runs a private redis-server as a child process: on a unix
// socket in a directory of its own, without persistence. It is for tests and
// benchmarks; nothing of it survives its process.
package redisproc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Binary is the program that Start runs, looked up in PATH.
const Binary = "redis-server"

// Server is a running redis-server.
type Server struct {
	socket string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been waited for

	mu  sync.Mutex
	log bytes.Buffer
}

// Socket returns where a server with its home in dir listens.
func Socket(dir string) string { return filepath.Join(dir, "redis.sock") }

// Start runs a server with its home in dir, which must be short enough for a
// unix socket, and returns when it accepts connections or ctx ends. args are
// further redis-server options such as "--requirepass", "secret". The server
// ends with Kill, and with this process.
func Start(ctx context.Context, dir string, args ...string) (*Server, error) {
	return start(ctx, dir, "ready to accept connections", append([]string{"--port", "0", "--save", "", "--appendonly", "no"}, args...))
}

// StartSentinel is Start for a Redis Sentinel with the configuration in file,
// which it rewrites.
func StartSentinel(ctx context.Context, dir, file string) (*Server, error) {
	return start(ctx, dir, "+monitor master", []string{file, "--sentinel"})
}

// start runs a process that says when it is ready.
func start(ctx context.Context, dir, ready string, args []string) (*Server, error) {
	s := &Server{socket: Socket(dir), exited: make(chan struct{})}
	// Left over from a killed predecessor, it would refuse connections while the new server starts.
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("start %s: %w", Binary, err)
	}
	s.cmd = exec.Command(Binary, append(args, "--unixsocket", s.socket, "--dir", dir, "--daemonize", "no", "--logfile", "")...)
	s.cmd.SysProcAttr = dieWithParent()
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", Binary, err)
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", Binary, err)
	}
	said := make(chan struct{})
	go s.follow(out, ready, said)
	select {
	case <-said:
		return s, nil
	case <-s.exited:
		return nil, fmt.Errorf("start %s: it ended at once:\n%s", Binary, s.Log())
	case <-ctx.Done():
		s.Kill()
		return nil, fmt.Errorf("start %s: %w; it said:\n%s", Binary, ctx.Err(), s.Log())
	}
}

// follow reads the server's log until it ends, then collects the process. It
// closes said at the first line with the words ready.
func (s *Server) follow(out io.Reader, ready string, said chan<- struct{}) {
	defer close(s.exited)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		s.mu.Lock()
		fmt.Fprintln(&s.log, lines.Text())
		s.mu.Unlock()
		if said != nil && strings.Contains(strings.ToLower(lines.Text()), ready) {
			close(said)
			said = nil
		}
	}
	// How a killed process ended says nothing.
	_ = s.cmd.Wait()
}

// Socket returns the unix socket on which the server listens.
func (s *Server) Socket() string { return s.socket }

// Log returns what the server has printed.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// Kill ends the server as kill -9 does and waits until it is gone. It may be
// called more than once.
func (s *Server) Kill() {
	// It may have ended already, which is what is wanted.
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// Pause freezes the server: connections stay open and nothing answers.
func (s *Server) Pause() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }
