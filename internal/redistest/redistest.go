// Package redistest gives a test a real redis-server of its own, alone, behind a
// Sentinel or as a cluster; a proxy that makes the faults of a network; and a
// stub that makes those of a server. Everything it starts ends with the test.
package redistest

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redistest/redisproc"
)

// Server is a private redis-server without persistence.
type Server struct {
	// CAFile is the PEM file of the authority that signed the certificate of a
	// server made by StartTLS.
	CAFile string

	t    testing.TB
	dir  string
	args []string
	addr string
	proc *redisproc.Server
}

// ServerName is a name, beside 127.0.0.1, in the certificate of StartTLS.
const ServerName = "redis.test"

// Start runs a server on a unix socket. args are redis-server options, such as
//
//	redistest.Start(t, "--requirepass", "secret")
//	redistest.Start(t, "--user", "gw", "on", ">pw", "~gw:*", "+@all", "-@scripting")
//
// Where redis-server is missing the test is skipped, and fails with CI=true.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t)
	s.args, s.addr = args, redisproc.Socket(s.dir)
	s.start()
	return s
}

// StartTCP is Start with a free port of 127.0.0.1, which Addr then returns.
func StartTCP(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t)
	s.listen("--port", args)
	return s
}

// StartTLS is StartTCP with encrypted connections only, by a certificate for
// 127.0.0.1 and ServerName whose authority is in CAFile.
func StartTLS(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t)
	files := writeCertificates(t, s.dir)
	s.CAFile = files.ca
	s.listen("--tls-port", append([]string{
		"--tls-cert-file", files.cert, "--tls-key-file", files.key,
		"--tls-ca-cert-file", files.ca, "--tls-auth-clients", "no",
	}, args...))
	return s
}

func newServer(t testing.TB) *Server {
	t.Helper()
	if _, err := exec.LookPath(redisproc.Binary); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v; install the Debian package redis-server", err)
		}
		t.Skipf("%v; the Debian package is redis-server", err)
	}
	// Not t.TempDir, whose long names do not fit into a socket's address.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, dir: dir}
	t.Cleanup(func() {
		if s.proc != nil {
			s.proc.Kill()
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// listen starts the server on a port that is free. Between the choice and the
// server's start somebody else can take the port, so it tries a few.
func (s *Server) listen(option string, args []string) {
	s.t.Helper()
	var err error
	for range 5 {
		port := freePort(s.t)
		s.args = append([]string{option, strconv.Itoa(port), "--bind", "127.0.0.1"}, args...)
		s.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if err = s.tryStart(); err == nil {
			return
		}
	}
	s.t.Fatal(err)
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *Server) start() {
	s.t.Helper()
	if err := s.tryStart(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) tryStart() (err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	s.proc, err = redisproc.Start(ctx, s.dir, s.args...)
	return err
}

// Addr returns the path of the unix socket, or host:port after StartTCP and
// StartTLS.
func (s *Server) Addr() string { return s.addr }

// Client returns a plain client of the server's default user on its unix
// socket, for looking at what a test did. It is closed with the test.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: redisproc.Socket(s.dir), Protocol: 2, DisableIdentity: true})
	s.t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			s.t.Error(err)
		}
	})
	return c
}

// Stop ends the server as kill -9 does.
func (s *Server) Stop() { s.proc.Kill() }

// Restart stops the server and starts it again at the same address. It comes
// back empty.
func (s *Server) Restart() {
	s.t.Helper()
	s.proc.Kill()
	s.start()
}

// Pause freezes the server until Resume: connections stay, nothing answers.
func (s *Server) Pause() {
	s.t.Helper()
	if err := s.proc.Pause(); err != nil {
		s.t.Fatal(err)
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.proc.Resume(); err != nil {
		s.t.Fatal(err)
	}
}

// await asks again and again until condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	end, tick := time.NewTimer(20*time.Second), time.NewTicker(10*time.Millisecond)
	defer end.Stop()
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("%s has not come about within 20s", what)
		}
	}
}

// holds reports whether a section of INFO has the line.
func (s *Server) holds(c *redis.Client, section, line string) bool {
	s.t.Helper()
	text, err := c.Info(s.t.Context(), section).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Contains(text, line+"\r\n")
}
