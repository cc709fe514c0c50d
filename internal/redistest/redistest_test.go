package redistest_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/redistest"
)

func TestServer(t *testing.T) {
	t.Parallel()
	t.Run("stops and comes back empty at the same address", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		c, addr := s.Client(), s.Addr()
		if err := c.Set(t.Context(), "k", "v", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		s.Stop()
		if err := c.Ping(t.Context()).Err(); err == nil {
			t.Error("the server answers after Stop")
		}
		s.Restart()
		if n, err := c.DBSize(t.Context()).Result(); n != 0 || err != nil || s.Addr() != addr {
			t.Errorf("after Restart: %d keys, %v, address %s; want none at %s", n, err, s.Addr(), addr)
		}
	})
	t.Run("pauses and resumes", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartTCP(t)
		s.Pause()
		c := dial(t, s.Addr())
		send(t, c, "PING\r\n")
		wantSilence(t, c)
		s.Resume()
		wantLine(t, c, "+PONG")
	})
	t.Run("takes options", func(t *testing.T) {
		t.Parallel()
		c := dial(t, redistest.StartTCP(t, "--requirepass", "p@ss").Addr())
		send(t, c, "PING\r\n")
		wantLine(t, c, "-NOAUTH Authentication required.")
	})
	t.Run("speaks TLS with a certificate of its own authority", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartTLS(t)
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		for _, name := range []string{"127.0.0.1", redistest.ServerName} {
			c, err := tls.Dial("tcp", s.Addr(), &tls.Config{RootCAs: roots, ServerName: name})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			send(t, c, "PING\r\n")
			wantLine(t, c, "+PONG")
			c.Close()
		}
	})
}

// A server that answers each line with itself, and counts them.
func echo(t *testing.T) (addr string, lines *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	lines = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					lines.Add(1)
					fmt.Fprintln(c, in.Text())
				}
			}()
		}
	}()
	return l.Addr().String(), lines
}

func TestProxy(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) (*redistest.Proxy, net.Conn, *atomic.Int32) {
		addr, lines := echo(t)
		p := redistest.NewProxy(t, addr)
		c := dial(t, p.Addr())
		send(t, c, "hello\n")
		wantLine(t, c, "hello")
		return p, c, lines
	}
	t.Run("delays replies", func(t *testing.T) {
		t.Parallel()
		p, c, _ := open(t)
		p.Delay(150 * time.Millisecond)
		start := time.Now()
		send(t, c, "late\n")
		wantLine(t, c, "late")
		if took := time.Since(start); took < 150*time.Millisecond {
			t.Errorf("reply after %s, want 150ms", took)
		}
	})
	t.Run("drops replies and delivers requests", func(t *testing.T) {
		t.Parallel()
		p, c, lines := open(t)
		p.Drop(true)
		send(t, c, "lost\n")
		wantSilence(t, c)
		if lines.Load() != 2 {
			t.Errorf("the server saw %d lines, want 2", lines.Load())
		}
		p.Drop(false)
		send(t, c, "found\n")
		wantLine(t, c, "found")
	})
	t.Run("freezes and thaws", func(t *testing.T) {
		t.Parallel()
		p, c, lines := open(t)
		p.Freeze(true)
		send(t, c, "held\n")
		wantSilence(t, c)
		if lines.Load() != 1 {
			t.Errorf("the server saw %d lines, want 1", lines.Load())
		}
		p.Freeze(false)
		wantLine(t, c, "held")
	})
	t.Run("cuts one reply after the request was carried out", func(t *testing.T) {
		t.Parallel()
		p, c, lines := open(t)
		p.CutReply("cut")
		send(t, c, "keep\n")
		wantLine(t, c, "keep")
		send(t, c, "cut\n")
		wantReset(t, c)
		if lines.Load() != 3 {
			t.Errorf("the server saw %d lines, want 3", lines.Load())
		}
		c = dial(t, p.Addr())
		send(t, c, "cut\n")
		wantLine(t, c, "cut")
	})
	t.Run("cuts the next replies of any request", func(t *testing.T) {
		t.Parallel()
		p, _, lines := open(t)
		p.CutReplies(2)
		for range 2 {
			c := dial(t, p.Addr())
			send(t, c, "any\n")
			wantReset(t, c)
		}
		c := dial(t, p.Addr())
		send(t, c, "any\n")
		wantLine(t, c, "any")
		if lines.Load() != 4 {
			t.Errorf("the server saw %d lines, want 4", lines.Load())
		}
	})
	t.Run("freezes requests while replies pass", func(t *testing.T) {
		t.Parallel()
		p, c, lines := open(t)
		p.Delay(50 * time.Millisecond)
		send(t, c, "sent before\n")
		for lines.Load() != 2 {
			runtime.Gosched()
		}
		p.FreezeRequests(true)
		send(t, c, "held\n")
		wantLine(t, c, "sent before")
		wantSilence(t, c)
		p.FreezeRequests(false)
		wantLine(t, c, "held")
	})
	t.Run("rewrites replies", func(t *testing.T) {
		t.Parallel()
		p, c, _ := open(t)
		p.Rewrite("OK", "-OOM command not allowed")
		send(t, c, "+OK\n")
		wantLine(t, c, "+-OOM command not allowed")
		p.Rewrite("", "")
		send(t, c, "+OK\n")
		wantLine(t, c, "+OK")
	})
	t.Run("refuses connections and accepts them again", func(t *testing.T) {
		t.Parallel()
		p, c, _ := open(t)
		p.Refuse()
		wantReset(t, c)
		if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial = %v, want refused", err)
		}
		p.Accept()
		c = dial(t, p.Addr())
		send(t, c, "again\n")
		wantLine(t, c, "again")
	})
	t.Run("resets open connections", func(t *testing.T) {
		t.Parallel()
		p, c, _ := open(t)
		p.Reset()
		wantReset(t, c)
	})
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func wantLine(t *testing.T, c net.Conn, want string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got, err := bufio.NewReader(c).ReadString('\n')
	if got = strings.TrimRight(got, "\r\n"); got != want || err != nil {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

// wantSilence reads for a moment, which is enough for a reply that should not
// come to have come.
func wantSilence(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want silence", n, err)
	}
}

func wantEnd(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
}

func wantReset(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read = %v, want a reset", err)
	}
}
