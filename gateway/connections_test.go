package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/secret"
)

// pipes is a listener whose connections are in memory, so that their time is
// the bubble's.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// dial returns the client's end of a new connection.
func (l *pipes) dial(t *testing.T) net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// serve runs s in the bubble until stop is called, which returns Run's error.
func (s *served) serve(t *testing.T, l net.Listener) (stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	return func() error {
		cancel()
		return <-ended
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	// Longer than any deadline: reaching it means that there was none.
	const forever = time.Hour

	for _, path := range []string{"/livez", "/readyz", "/health", "/metrics", "/nowhere", "/hooks/while-starting"} {
		t.Run("a body that never ends is given up: "+path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, l := newServed(t, gateway.DefaultConfig(), ok), newPipes()
				stop := s.serve(t, l)
				for _, method := range []string{"GET", "POST"} {
					conn := l.dial(t)
					if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nslow", method, path); err != nil {
						t.Fatal(err)
					}
					_ = conn.SetReadDeadline(time.Now().Add(forever)) // a pipe takes it
					start := time.Now()
					answer, err := io.ReadAll(conn)
					if took := time.Since(start); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 ") || took > 15*time.Second {
						t.Errorf("%s: connection held for %s: %q, %v", method, took, answer, err)
					}
				}
				if err := stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
			})
		})
	}

	t.Run("an answer that nobody reads is given up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s, l := newServed(t, gateway.DefaultConfig(), ok), newPipes()
			stop := s.serve(t, l)
			conn := l.dial(t)
			if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			_ = conn.SetReadDeadline(time.Now().Add(forever)) // a pipe takes it
			if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
				t.Errorf("read %d bytes, %v after a minute; want the connection closed", len(answer), err)
			}
			if err := stop(); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
	})

	t.Run("a later request on a connection has its own deadlines", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			// Reading sends "100 Continue" long before the hook sets a deadline
			// for its answer.
			s, l := newServed(t, gateway.DefaultConfig(), func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
			}), newPipes()
			s.health.Enter(health.Ready)
			stop := s.serve(t, l)
			conn := l.dial(t)
			answers := bufio.NewReader(conn)
			for range 2 {
				go func() {
					_, _ = io.WriteString(conn, "POST /hooks/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
				}()
				_ = conn.SetReadDeadline(time.Now().Add(forever)) // a pipe takes it
				line, err := answers.ReadString('\n')
				if err != nil || line != "HTTP/1.1 100 Continue\r\n" {
					t.Fatalf("got %q, %v", line, err)
				}
				_, _ = answers.ReadString('\n') // the empty line after it
				go func() { _, _ = io.WriteString(conn, "hi") }()
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(res.Body); err != nil || string(body) != "hi" {
					t.Errorf("body %q, %v", body, err)
				}
				time.Sleep(time.Minute)
			}
			if err := stop(); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
	})
}

func TestServerEnds(t *testing.T) {
	t.Parallel()

	t.Run("a connection that never sent a byte does not make the end a failure", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s, l := newServed(t, gateway.DefaultConfig(), ok), newPipes()
			stop := s.serve(t, l)
			conn := l.dial(t)
			synctest.Wait()
			if err := stop(); err != nil {
				t.Errorf("Run = %v, want a clean end", err)
			}
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the connection reads %v, want it closed", err)
			}
		})
	})

	t.Run("a listener that fails is an error of the server", func(t *testing.T) {
		t.Parallel()
		cfg := gateway.DefaultConfig()
		cfg.Port = 0
		l, err := gateway.Listen(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := newServed(t, cfg, ok).Run(t.Context(), l); !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("Run = %v, want the listener's error with its address", err)
		}
	})
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	token := gateway.DefaultConfig()
	token.AuthToken = secret.New("operator-token")
	public := gateway.DefaultConfig()
	public.Host = "0.0.0.0" // which the loader refuses without a token
	for _, c := range []struct {
		name    string
		cfg     gateway.Config
		headers []string
		want    int
	}{
		{"the token", token, []string{"Bearer operator-token"}, 200},
		{"the scheme in other case and more space", token, []string{"bearer  operator-token"}, 200},
		{"no header", token, nil, 401},
		{"another token", token, []string{"Bearer operator-toke"}, 401},
		{"another scheme", token, []string{"Basic operator-token"}, 401},
		{"the token without its scheme", token, []string{"operator-token"}, 401},
		{"two headers", token, []string{"Bearer operator-token", "Bearer operator-token"}, 401},
		{"no token configured on a loopback address", gateway.DefaultConfig(), nil, 200},
		{"no token configured on a public address", public, nil, 401},
		{"no token configured on a public address, an empty one sent", public, []string{"Bearer "}, 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newServed(t, c.cfg, ok).Handler()
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header["Authorization"] = c.headers
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("/metrics = %d, want %d", w.Code, c.want)
			}
			r.URL.Path = "/health"
			w = httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if detailed := strings.Contains(w.Body.String(), `"replica"`); detailed != (c.want == 200) {
				t.Errorf("/health = %s, want detail: %t", w.Body, c.want == 200)
			}
		})
	}
}
