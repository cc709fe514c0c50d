package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Replies of a Stub that are none.
const (
	Hangup  = "hang up"  // ends the connection
	Silence = "be quiet" // answers nothing, and goes on
)

// Stub is a server that says what a test tells it to, for refusals that a real
// one cannot be brought to. Left to itself it is an empty server that takes
// every password and forgets what it is told to set. It is safe for concurrent
// use.
type Stub struct {
	addr string

	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	accepted int
	closed   bool
	answer   func(Request) string
}

// Request is one command that a Stub received.
type Request struct {
	Conn int      // number of its connection, from 1 in the order in which they came
	Args []string // the command, in lower case, and its arguments
}

// NewStub listens on a free port of 127.0.0.1.
func NewStub(t testing.TB) *Stub {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Stub{addr: l.Addr().String(), conns: make(map[net.Conn]struct{})}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		// Nothing is read from or written to a listener that could be lost.
		_ = l.Close()
		s.close()
		work.Wait()
	})
	return s
}

// Addr returns host:port of the stub.
func (s *Stub) Addr() string { return s.addr }

// Conns returns how many connections have been made so far.
func (s *Stub) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Answer sets who answers from now on. f returns a reply as it goes over the
// wire, such as "+OK" or "-LOADING ...", where the last line's end may be left
// out, or Hangup or Silence; or "", for what the stub says when left to itself.
// It may be called concurrently, for different connections.
func (s *Stub) Answer(f func(Request) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// Refuse answers each of the commands with -text from now on, and every other
// as a stub does when left to itself.
func (s *Stub) Refuse(text string, commands ...string) {
	s.Answer(func(r Request) string {
		for _, c := range commands {
			if r.Args[0] == c {
				return "-" + text
			}
		}
		return ""
	})
}

func (s *Stub) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		// A client that still waits sees an end, which is what it is.
		_ = c.Close()
	}
}

// enter returns the number of a new connection; 0 after the end.
func (s *Stub) enter(c net.Conn) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0
	}
	s.conns[c] = struct{}{}
	s.accepted++
	return s.accepted
}

func (s *Stub) leave(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *Stub) serve(c net.Conn) {
	defer c.Close()
	number := s.enter(c)
	if number == 0 {
		return
	}
	defer s.leave(c)
	for in := bufio.NewReader(c); ; {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		switch reply := s.reply(Request{Conn: number, Args: args}); reply {
		case Silence:
		case Hangup:
			return
		default:
			if _, err := io.WriteString(c, strings.TrimSuffix(reply, "\r\n")+"\r\n"); err != nil {
				return
			}
		}
	}
}

func (s *Stub) reply(r Request) string {
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		if reply := answer(r); reply != "" {
			return reply
		}
	}
	switch r.Args[0] {
	case "ping":
		return "+PONG"
	case "auth", "select", "set", "multi", "watch", "unwatch":
		return "+OK"
	case "get":
		return "$-1"
	}
	return "-ERR unknown command '" + r.Args[0] + "'" // HELLO too: the client then goes on as with an old server
}

// readCommand reads an array of bulk strings, the one form in which clients
// send.
func readCommand(in *bufio.Reader) ([]string, error) {
	var words, length int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
		return nil, err
	}
	if words < 1 {
		return nil, fmt.Errorf("a command of %d words", words)
	}
	args := make([]string, words)
	for i := range args {
		if _, err := fmt.Fscanf(in, "$%d\r\n", &length); err != nil {
			return nil, err
		}
		text := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		args[i] = string(text[:length])
	}
	args[0] = strings.ToLower(args[0])
	return args, nil
}
