package hooks_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/message"
)

func TestB88_JSONIsReadWhateverItIsCalled(t *testing.T) {
	t.Parallel()
	const unsupported = `{"ok":false,"error":"unsupported content type or encoding; send JSON, a form or text, plain or compressed with gzip or deflate"}`
	for _, test := range []struct {
		contentType, encoding, body string
		status                      int
		answer                      string
	}{
		{"application/json", "", `{"message":"m"}`, 200, ""},
		{"Application/JSON; charset=utf-8", "", `{"message":"m"}`, 200, ""},
		{"application/json; charset", "", `{"message":"m"}`, 200, ""},
		{"application/json; charset=\"", "", `{"message":"m"}`, 200, ""},
		{"application/json;", "identity", `{"message":"m"}`, 200, ""},
		{"text/plain; charset=UTF-8", "", `{"message":"m"}`, 200, ""},
		{"", "", `{"message":"m"}`, 200, ""},
		{"application/vnd.api+json", "", `{"message":"m"}`, 200, ""},
		{"application/x-www-form-urlencoded", "", `payload=%7B%22message%22%3A%22m%22%7D`, 200, ""},
		{"application/x-www-form-urlencoded; charset=utf-8", "", `message=m&n=1`, 200, ""},
		{"application/x-www-form-urlencoded", "", `payload=%7B%22message`, 400, `{"ok":false,"error":"request body cannot be read: not valid JSON at byte 9"}`},
		{"application/x-www-form-urlencoded", "", `a=%zz`, 400, `{"ok":false,"error":"request body cannot be read: not a valid form"}`},
		{"application/xml", "", `{"message":"m"}`, 415, unsupported},
		{"multipart/form-data; boundary=x", "", `--x--`, 415, unsupported},
		{"application/json", "br", "\x1f\x8b", 415, unsupported},
		{"application/json", "gzip, gzip", "\x1f\x8b", 415, unsupported},
		{"application/json", "gzip", "\x1f\x8b", 400, `{"ok":false,"error":"request body cannot be read: not what its Content-Encoding says"}`},
		{"text/plain", "", `m`, 200, ""},
		{"application/json", "", "\uFEFF" + `{"message":"m"}`, 200, ""},
		{"", "", `Hello`, 400, `{"ok":false,"error":"request body cannot be read: not valid JSON at byte 1"}`},
		{"application/json", "", `{"message":"m"`, 400, `{"ok":false,"error":"request body cannot be read: not valid JSON at byte 14"}`},
	} {
		t.Run(fmt.Sprintf("%d for %q", test.status, test.contentType+test.encoding), func(t *testing.T) {
			t.Parallel()
			f := build(t, nil)
			resp := f.post(t, test.body, func(r *http.Request) {
				r.Header.Set("Content-Type", test.contentType)
				if test.contentType == "" {
					r.Header.Del("Content-Type")
				}
				r.Header.Set("Content-Encoding", test.encoding)
			})
			if answer := readAll(t, resp); resp.StatusCode != test.status || test.answer != "" && answer != test.answer {
				t.Errorf("answer = %d %s, want %d %s", resp.StatusCode, answer, test.status, test.answer)
			}
			if ran := f.runs() == 1; ran != (test.status == 200) {
				t.Errorf("ran = %t with status %d", ran, resp.StatusCode)
			}
			if test.status == 200 {
				if m := f.message(t); m.Text != "m" || m.ContentType != test.contentType || string(m.Body) != test.body {
					t.Errorf("message = %q of type %q, want the body's text and type", m.Text, m.ContentType)
				}
			}
		})
	}
}

// counting says how much of an endless body was taken.
type counting struct{ read int64 }

func (c *counting) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	c.read += int64(len(p))
	return len(p), nil
}

func TestB90_TheStreamIsBoundedNotItsDeclaration(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	const tooLarge = `{"ok":false,"error":"request body too large"}`
	t.Run("ten chunked megabytes are cut off at one", func(t *testing.T) {
		t.Parallel()
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Signature = github(testSecret) })
		server := httptest.NewServer(f.handler)
		defer server.Close()
		source := &counting{}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/hooks/x", io.LimitReader(source, 10*limit))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, resp, 413, tooLarge)
		if !resp.Close || resp.Header.Get("X-Idempotency-Status") != "none" || f.runs() != 0 {
			t.Errorf("closed %t, status %q, runs %d, want a closed connection, none, 0", resp.Close, resp.Header.Get("X-Idempotency-Status"), f.runs())
		}
	})
	t.Run("no more than the limit is read into memory", func(t *testing.T) {
		t.Parallel()
		f := build(t, nil)
		source := &counting{}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/x", source)
		r.ContentLength = -1
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, r)
		if w.Code != 413 || source.read > 2*limit {
			t.Errorf("status %d after %d bytes, want 413 after about %d", w.Code, source.read, limit)
		}
	})
	t.Run("a body of exactly the limit is read", func(t *testing.T) {
		t.Parallel()
		f := build(t, nil)
		body := `"` + strings.Repeat("a", limit-2) + `"`
		if got := f.post(t, body, nil).StatusCode; got != 200 {
			t.Errorf("status = %d, want 200", got)
		}
		wantAnswer(t, f.post(t, body+" ", nil), 413, tooLarge)
	})
	t.Run("a declared length over the limit is refused unread", func(t *testing.T) {
		t.Parallel()
		f := build(t, nil)
		resp := exchange(t, f, fmt.Sprintf("POST /hooks/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", limit+1), false)
		wantAnswer(t, resp, 413, tooLarge)
		if !resp.Close {
			t.Errorf("the connection stays open")
		}
	})
	t.Run("a declared length that is too small cuts the body", func(t *testing.T) {
		t.Parallel()
		f := build(t, nil)
		resp := exchange(t, f, "POST /hooks/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n{\"a\":1}", false)
		wantAnswer(t, resp, 400, `{"ok":false,"error":"request body cannot be read: not valid JSON at byte 4"}`)
	})
	t.Run("a declared length that is never reached", func(t *testing.T) {
		t.Parallel()
		f := build(t, nil)
		resp := exchange(t, f, "POST /hooks/x HTTP/1.1\r\nHost: h\r\nContent-Length: 400\r\n\r\n{\"a\":1}", true)
		wantAnswer(t, resp, 400, `{"ok":false,"error":"request body incomplete or malformed"}`)
		if f.runs() != 0 {
			t.Errorf("half a body ran")
		}
	})
	t.Run("chunks that are none", func(t *testing.T) {
		t.Parallel()
		f := build(t, nil)
		resp := exchange(t, f, "POST /hooks/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false)
		wantAnswer(t, resp, 400, `{"ok":false,"error":"request body incomplete or malformed"}`)
	})
	for _, path := range []string{"x", "unknown"} {
		t.Run("a body that drips holds nobody up, on /hooks/"+path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := build(t, nil)
				conn := serve(t, f)
				start := time.Now()
				writer := make(chan struct{})
				go func() {
					defer close(writer)
					_, err := io.WriteString(conn, "POST /hooks/"+path+" HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
					for err == nil { // until the server hangs up
						time.Sleep(time.Second) // of the bubble's own clock
						_, err = io.WriteString(conn, " ")
					}
				}()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]int{"x": 408, "unknown": 404}[path]
				limit := map[string]time.Duration{"x": 30 * time.Second, "unknown": 0}[path]
				if took := time.Since(start); resp.StatusCode != want || took != limit || !resp.Close {
					t.Errorf("status %d after %s, closed %t, want %d after %s, closed", resp.StatusCode, took, resp.Close, want, limit)
				}
				readAll(t, resp)
				_ = conn.Close() // ends the writer
				<-writer
			})
		})
	}
}

// The time for a body must not end a run that outlasts it.
func TestLongRunKeepsItsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := build(t, nil)
		f.pipeline.process = func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
			select {
			case <-ctx.Done():
				return message.Receipt{State: message.New}, context.Cause(ctx)
			case <-time.After(10 * time.Minute):
				return run(ctx, m, p)
			}
		}
		conn := serve(t, f)
		if _, err := io.WriteString(conn, "POST /hooks/x HTTP/1.1\r\nHost: h\r\nContent-Length: 15\r\n\r\n{\"message\":\"m\"}"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer := readAll(t, resp); resp.StatusCode != 200 {
			t.Errorf("answer = %d %s, want 200", resp.StatusCode, answer)
		}
	})
}

// exchange sends raw bytes to a server with the handler and reads one answer.
func exchange(t *testing.T, f *fixture, request string, hangUp bool) *http.Response {
	t.Helper()
	server := httptest.NewServer(f.handler)
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if hangUp {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// oneConn is a listener for a single connection in memory, whose deadlines
// follow a bubble's clock.
type oneConn struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error   { close(l.closed); return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// serve serves the handler inside a bubble and returns the client's end.
func serve(t *testing.T, f *fixture) net.Conn {
	t.Helper()
	client, remote := net.Pipe()
	listener := &oneConn{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.conns <- remote
	server := &http.Server{Handler: f.handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
		<-served
	})
	return client
}
