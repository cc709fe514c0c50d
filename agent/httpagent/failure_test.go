package httpagent_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/httpagent"
	"github.com/oncegate/oncegate/internal/secret"
)

func TestTheStatusDecidesTheKind(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]agent.Kind{
		300: agent.Refused, 304: agent.Refused, 308: agent.Refused,
		400: agent.Refused, 401: agent.Refused, 403: agent.Refused, 404: agent.Refused, 409: agent.Refused, 413: agent.Refused, 422: agent.Refused, 499: agent.Refused,
		408: agent.Timeout, 425: agent.RateLimited, 429: agent.RateLimited,
		500: agent.ServerError, 502: agent.ServerError, 503: agent.ServerError, 504: agent.ServerError, 599: agent.ServerError,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			body := `{"text":"private"}`
			if status == http.StatusNotModified {
				body = ""
			}
			a := start(t, answering(status, body, "Retry-After", "7", "X-Private", "private"))
			_, err := a.Run(t.Context(), turn())
			e := wantKind(t, err, want)
			if e.Status != status || e.RetryAfter != 7*time.Second {
				t.Errorf("status %d, RetryAfter %s; want %d, 7s", e.Status, e.RetryAfter, status)
			}
			if got, want := errors.Is(err, agent.ErrRefused), want == agent.Refused; got != want {
				t.Errorf("refused for ever: %t, want %t", got, want)
			}
		})
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			a := start(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				http.Redirect(w, r, "/private-elsewhere", status)
			}, func(c *agent.Config) {
				c.Headers = map[string]secret.String{"Authorization": secret.New("Bearer private")}
			})
			_, err := a.Run(t.Context(), turn())
			if wantKind(t, err, agent.Refused); requests.Load() != 1 {
				t.Errorf("%d requests, want 1", requests.Load())
			}
		})
	}
}

func TestRetryAfterIsSecondsOrADate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "1": time.Second, "120": 2 * time.Minute, "86400": 24 * time.Hour,
		"86401": 24 * time.Hour, "99999999999999999999": 24 * time.Hour,
		"-1": 0, "1.5": 1500 * time.Millisecond, "soon": 0,
		"Sat, 01 Jan 2000 00:01:30 GMT":    90 * time.Second,
		"Saturday, 01-Jan-00 00:01:30 GMT": 90 * time.Second,
		"Fri, 31 Dec 1999 23:59:59 GMT":    0,
		"Mon, 03 Jan 2000 00:00:00 GMT":    24 * time.Hour,
		"Sat, 01 Jan 2000 00:01:30 CEST":   0,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // where it is the year 2000
				a := httpagent.NewWith(configFor(t, "http://agent.example"), roundTrip(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {text}}, Body: http.NoBody}, nil
				}))
				_, err := a.Run(t.Context(), turn())
				if e := wantKind(t, err, agent.ServerError); e.RetryAfter != want {
					t.Errorf("RetryAfter = %s, want %s", e.RetryAfter, want)
				}
			})
		})
	}
}

func TestWhyThereIsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"an unknown name": {
			&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "private.example", Server: "127.0.0.1:53"}},
			"the server's name cannot be looked up",
		},
		"no answer to the dial": {
			&net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, Err: context.DeadlineExceeded},
			"there was no connection in time",
		},
		"a handshake that takes too long": {timeout{}, "there was no connection in time"},
		"another's certificate": {
			&tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: "private.example"}},
			"the server's certificate cannot be verified",
		},
		"words of the far end":  {errors.New(`malformed HTTP response "private"`), "the connection broke before there was an answer"},
		"an end without answer": {io.ErrUnexpectedEOF, "the connection broke before there was an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := httpagent.NewWith(configFor(t, "http://private.example/private"), roundTrip(func(*http.Request) (*http.Response, error) { return nil, test.err }))
			_, err := a.Run(t.Context(), turn())
			wantKind(t, err, agent.Unreachable)
			if want := "agent: unreachable: " + test.want; err.Error() != want {
				t.Errorf("error = %v, want %s", err, want)
			}
		})
	}
}

// timeout is an error like the one of a slow TLS handshake.
type timeout struct{}

func (timeout) Error() string   { return "private" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

func TestAServerThatIsNotThereIsUnreachable(t *testing.T) {
	t.Parallel()
	a := httpagent.New(configFor(t, "http://127.0.0.1:1"))
	defer a.Close()
	_, err := a.Run(t.Context(), turn())
	wantKind(t, err, agent.Unreachable)
	if want := "agent: unreachable: connection refused"; err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestAnAnswerThatBreaksOffIsUnreachable(t *testing.T) {
	t.Parallel()
	a := start(t, answering(http.StatusOK, `{"text":"private"}`, "Content-Length", "1000"))
	_, err := a.Run(t.Context(), turn())
	wantKind(t, err, agent.Unreachable)
}

func TestAServerNobodyVouchesForIsUnreachable(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(answering(http.StatusOK, `{"text":"private"}`))
	s.Config.ErrorLog = log.New(t.Output(), "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	a := httpagent.New(configFor(t, s.URL))
	defer a.Close()
	_, err := a.Run(t.Context(), turn())
	wantKind(t, err, agent.Unreachable)
	if want := "agent: unreachable: the server's certificate cannot be verified"; err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestAnswersThatAreNoHTTPAreNotQuoted(t *testing.T) {
	t.Parallel()
	for name, said := range map[string]string{
		"another protocol":    "private greeting\r\n",
		"a header that is no": "HTTP/1.1 200 OK\r\nprivate\r\n\r\n",
		"a status that is no": "HTTP/1.1 private\r\n\r\n",
		"a length that is no": "HTTP/1.1 200 OK\r\nContent-Length: private\r\n\r\n",
		"headers too large":   "HTTP/1.1 200 OK\r\nX-Private: " + strings.Repeat("private", 20<<10) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // else the close below is a reset
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, said) // the client may have seen enough
				_ = conn.Close()
			})
			_, err := a.Run(t.Context(), turn())
			wantKind(t, err, agent.Unreachable)
		})
	}
}
