package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/platform/webhook"
)

func TestTheStatusDecidesTheFate(t *testing.T) {
	t.Parallel()
	for want, statuses := range map[fate][]int{
		"":      {200, 201, 202, 204, 299},
		unsent:  {408, 425, 429, 500, 501, 503, 505, 511},
		unknown: {409, 502, 504, 520, 524, 599},
		refused: {300, 301, 304, 307, 400, 401, 403, 404, 410, 413, 422, 451, 499},
	} {
		for _, status := range statuses {
			t.Run(fmt.Sprint(status), func(t *testing.T) {
				t.Parallel()
				s := over(t, func(*http.Request) (*http.Response, error) {
					return answer(status, strings.NewReader("private"), "Retry-After", "7", "X-Private", "private"), nil
				})
				err := s.Send(t.Context(), reply)
				if want == "" {
					if err != nil {
						t.Errorf("Send = %v, want nil", err)
					}
					return
				}
				e, pause := wantFate(t, err, want), 7*time.Second
				if want == refused {
					pause = 0
				}
				if e.RetryAfter != pause || !strings.Contains(err.Error(), fmt.Sprint(status)) {
					t.Errorf("error = %+v, want the status and a pause of %s", e, pause)
				}
			})
		}
	}
}

func TestWithoutRetryAfterNoPauseIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 503} {
		s := over(t, func(*http.Request) (*http.Response, error) { return answer(status, http.NoBody), nil })
		if e := wantFate(t, s.Send(t.Context(), reply), unsent); e.RetryAfter != 0 {
			t.Errorf("RetryAfter of a %d without one = %s, want 0s", status, e.RetryAfter)
		}
	}
}

func TestTheBodyOfA2xxMaySayThatItFailed(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]fate{
		`{"ok":false,"error":"private"}`:       unsent,
		` {"success" : false}`:                 unsent,
		`{"ok":true,"success":false}`:          unsent,
		``:                                     "",
		`ok`:                                   "",
		`<html>private</html>`:                 "",
		`{"ok":true}`:                          "",
		`{"ok":"false"}`:                       "",
		`{"ok":null}`:                          "",
		`{"ok":0}`:                             "",
		`{"result":{"ok":false}}`:              "",
		`[{"ok":false}]`:                       "",
		`{"ok":false`:                          "",
		`false`:                                "",
		strings.Repeat("a", 2*webhook.MaxBody): "",
	} {
		s := start(t, "", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, body) // the client may have seen enough
		})
		err := s.Send(t.Context(), reply)
		if want == "" {
			if err != nil {
				t.Errorf("an answer of %.40q: Send = %v, want nil", body, err)
			}
			continue
		}
		if e := wantFate(t, err, want); e.RetryAfter != 0 || !strings.Contains(err.Error(), "202 and says in its body that it failed") {
			t.Errorf("an answer of %.40q: error = %+v, want a soft failure", body, e)
		}
	}
}

// endless is a body that ends only when it is closed.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return copy(p, bytes.Repeat([]byte("a"), len(p))), nil
}

func TestNoMoreIsReadThanTheBound(t *testing.T) {
	t.Parallel()
	for status, bound := range map[int]int{200: webhook.MaxBody, 500: 0} {
		body := &endless{}
		s := over(t, func(*http.Request) (*http.Response, error) { return answer(status, body), nil })
		_ = s.Send(t.Context(), reply) // its verdict is another test's
		if body.read != bound {
			t.Errorf("%d bytes of a %d were read, want %d", body.read, status, bound)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		var requests atomic.Int32
		s := start(t, signed, func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			http.Redirect(w, r, "/private-elsewhere", status)
		})
		err := s.Send(t.Context(), reply)
		if wantFate(t, err, refused); requests.Load() != 1 || !strings.Contains(err.Error(), "redirect") {
			t.Errorf("a %d: %d requests and %v, want 1 and an error that says why", status, requests.Load(), err)
		}
	}
}

func TestWithoutAConnectionNothingWasSent(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := "http://" + closed.Addr().String()
	_ = closed.Close() // so that nobody listens

	stranger := httptest.NewUnstartedServer(http.NotFoundHandler())
	stranger.Config.ErrorLog = log.New(t.Output(), "", 0)
	stranger.StartTLS()
	t.Cleanup(stranger.Close)

	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)

	for name, test := range map[string]struct{ url, want string }{
		"nobody listens":                 {refusing, "connection refused"},
		"a certificate nobody vouches":   {stranger.URL, "the server's certificate cannot be verified"},
		"a handshake with no TLS server": {"https://" + strings.TrimPrefix(plain.URL, "http://"), "the connection broke before there was an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := webhook.New(configFor(t, test.url, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			err = s.Send(t.Context(), reply)
			if wantFate(t, err, unsent); err.Error() != "send: "+test.want {
				t.Errorf("error = %v, want %s", err, test.want)
			}
		})
	}
	t.Run("a name nobody knows", func(t *testing.T) {
		t.Parallel()
		s := over(t, func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "private.example", Server: "127.0.0.1:53"}}
		})
		err := s.Send(t.Context(), reply)
		if wantFate(t, err, unsent); err.Error() != "send: the server's name cannot be looked up" {
			t.Errorf("error = %v, want it to say that the name is unknown", err)
		}
	})
}

func TestAConnectionThatBreaksLeavesTheFateUnknown(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]string{
		"before the answer":  "",
		"in the status line": "HTTP/1.1 20",
		"in the header":      "HTTP/1.1 200 OK\r\nX-Private: pri",
		"in the body":        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"private",
		"in another tongue":  "private greeting\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, signed, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // else the close below is a reset
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, say) // the client may have seen enough
				_ = conn.Close()
			})
			wantFate(t, s.Send(t.Context(), reply), unknown)
		})
	}
}

func TestAStreamThatBreaksLeavesTheFateUnknown(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request came over %s, want HTTP/2", r.Proto)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	s, err := webhook.NewWith(configFor(t, server.URL, signed), server.Client().Transport)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	wantFate(t, s.Send(t.Context(), reply), unknown)
}

// silent returns the transport to a server that never says a word: not even in
// a TLS handshake, where the URL wants one.
func silent() *http.Transport {
	return &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := net.Pipe()
			context.AfterFunc(ctx, func() { _ = far.Close() })
			go func() { _, _ = io.Copy(io.Discard, far) }()
			return near, nil
		},
	}
}

func TestAServerThatSaysNothing(t *testing.T) {
	t.Parallel()
	cause := errors.New("the turn is over")
	for name, test := range map[string]struct {
		url    string
		cancel bool // by the caller, before the timeout
		want   fate
		text   string
	}{
		"after the request":               {"http://private.example", false, unknown, "there was no complete answer within 15s"},
		"in the handshake":                {"https://private.example", false, unsent, "there was no connection in time"},
		"after the request, and given up": {"http://private.example", true, unknown, "the turn is over"},
		"in the handshake, and given up":  {"https://private.example", true, unsent, "the turn is over"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, err := webhook.NewWith(configFor(t, test.url, signed), silent())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				took := webhook.Timeout
				if test.cancel {
					took = time.Second
					time.AfterFunc(took, func() { cancel(cause) })
				}
				start := time.Now()
				err = s.Send(ctx, reply)
				if wantFate(t, err, test.want); err.Error() != "send: "+test.text || errors.Is(err, cause) != test.cancel {
					t.Errorf("error = %v, want %s", err, test.text)
				}
				if got := time.Since(start); got != took {
					t.Errorf("Send took %s, want %s", got, took)
				}
			})
		})
	}
}

// What counts is the connection that the request went over last: net/http asks
// for another one only when the server has seen nothing on the first.
func TestAStaleConnectionBeforeARefusedOneIsNoDoubt(t *testing.T) {
	t.Parallel()
	s := over(t, func(r *http.Request) (*http.Response, error) {
		trace := httptrace.ContextClientTrace(r.Context())
		trace.GetConn("private.example:80")
		trace.GotConn(httptrace.GotConnInfo{Reused: true, WasIdle: true})
		trace.GetConn("private.example:80")
		return nil, errors.New("private")
	})
	wantFate(t, s.Send(t.Context(), reply), unsent)
}
