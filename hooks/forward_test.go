package hooks_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// forwarding returns a fixture that forwards to a server with that handler.
func forwarding(t *testing.T, target http.HandlerFunc, change func(*hooks.Hook, *hooks.Deps)) *fixture {
	t.Helper()
	server := httptest.NewServer(target)
	t.Cleanup(server.Close)
	return build(t, func(h *hooks.Hook, d *hooks.Deps) {
		h.Action, h.Target = message.ActionForward, server.URL+"/in?a=1"
		h.IdempotencyKey = "{{ payload.id }}"
		if change != nil {
			change(h, d)
		}
	})
}

func TestForwardRequest(t *testing.T) {
	t.Parallel()
	const body = "{ \"id\" : 12345678901234567890 }\n"
	got := make(chan *http.Request, 1)
	f := forwarding(t, func(_ http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil || string(data) != body {
			t.Errorf("body = %q, %v, want it as received", data, err)
		}
		got <- r
	}, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Headers = map[string]secret.String{"authorization": secret.New("Bearer api-token"), "Host": secret.New("inner.example")}
	})
	resp := f.post(t, body, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/vnd.api+json")
		r.Header.Set("Cookie", "private")
		r.Header.Set("Idempotency-Key", "not accepted here")
	})
	wantAnswer(t, resp, 200, "")
	r := <-got
	if r.Method != http.MethodPost || r.RequestURI != "/in?a=1" || r.Host != "inner.example" {
		t.Errorf("request = %s %s to %s, want POST /in?a=1 to inner.example", r.Method, r.RequestURI, r.Host)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/vnd.api+json", "Authorization": "Bearer api-token",
		"Idempotency-Key": "12345678901234567890", "Cookie": "", "Accept-Encoding": "",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if logs := f.logs.String(); strings.Contains(logs, "api-token") {
		t.Errorf("a secret is in the log:\n%s", logs)
	}
}

func TestForwardWithoutAKeySendsNone(t *testing.T) {
	t.Parallel()
	f := forwarding(t, func(w http.ResponseWriter, r *http.Request) {
		if _, given := r.Header["Idempotency-Key"]; given || r.ContentLength != 0 {
			t.Errorf("Idempotency-Key given %t with a body of %d, want neither", given, r.ContentLength)
		}
		w.WriteHeader(http.StatusNoContent)
	}, nil)
	resp := f.post(t, "", nil)
	wantAnswer(t, resp, 204, "")
	if got := resp.Header.Get("X-Idempotency-Status"); got != "none" {
		t.Errorf("X-Idempotency-Status = %q, want none", got)
	}
}

func TestForwardStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{
		200: 200, 202: 202, 303: 303, 307: 307, 400: 400, 404: 404, 409: 409, 422: 422,
		408: 502, 425: 502, 429: 502, 500: 502, 503: 502, 599: 502,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			f := forwarding(t, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.Header().Set("Location", "/elsewhere")
				w.Header().Set("Retry-After", "99")
				w.Header().Set("Content-Type", "text/x-answer")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "the target's words")
			}, func(h *hooks.Hook, _ *hooks.Deps) { h.ResponseHeaders = []string{"location"} })
			resp := f.post(t, `{"id":1}`, nil)
			if requests.Load() != 1 {
				t.Errorf("%d requests, want 1: no redirect and no retry", requests.Load())
			}
			if want == 502 {
				wantAnswer(t, resp, 502, `{"ok":false,"error":"run failed"}`)
				return
			}
			wantAnswer(t, resp, want, "the target's words")
			if h := resp.Header; h.Get("Location") != "/elsewhere" || h.Get("Content-Type") != "text/x-answer" || h.Get("Retry-After") != "" {
				t.Errorf("headers = %v, want the type and what is chosen", h)
			}
			if got := resp.Header.Get("X-Idempotency-Status"); got != "new" {
				t.Errorf("X-Idempotency-Status = %q, want new", got)
			}
		})
	}
}

func TestForwardIsReplayedUnchanged(t *testing.T) {
	t.Parallel()
	f := forwarding(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Order", "7")
		w.Header()["X-Many"] = []string{"a", "b"}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte{0, 0xff, '{'})
	}, func(h *hooks.Hook, _ *hooks.Deps) { h.ResponseHeaders = []string{"X-Order", "X-Many"} })
	var stored []byte
	f.pipeline.process = func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
		if stored != nil {
			outcome, err := message.DecodeOutcome(stored)
			return message.Receipt{State: message.Processed, Outcome: outcome}, err
		}
		receipt, err := run(ctx, m, p)
		if err != nil {
			return receipt, err
		}
		stored, err = receipt.Outcome.Encode()
		return receipt, err
	}
	first, again := f.post(t, `{"id":1}`, nil), f.post(t, `{"id":1}`, nil)
	wantAnswer(t, first, 201, "\x00\xff{")
	wantAnswer(t, again, 201, "\x00\xff{")
	if got := again.Header.Get("Idempotency-Replayed"); got != "true" || first.Header.Get("Idempotency-Replayed") != "" {
		t.Errorf("Idempotency-Replayed = %q, want true on the second answer only", got)
	}
	for _, name := range []string{"Content-Type", "X-Order", "X-Many"} {
		if a, b := strings.Join(first.Header[name], "|"), strings.Join(again.Header[name], "|"); a != b || a == "" {
			t.Errorf("%s = %q, then %q, want it twice alike", name, a, b)
		}
	}
}

func TestForwardAnswerIsBounded(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]string{64: strings.Repeat("a", 64), 65: `{"ok":true,"reply_omitted":true}`} {
		f := forwarding(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("a", size))
		}, func(_ *hooks.Hook, d *hooks.Deps) { d.MaxBody = 64 })
		wantAnswer(t, f.post(t, `{"id":1}`, nil), 200, want)
	}
}

func TestForwardErrors(t *testing.T) {
	t.Parallel()
	t.Run("a target that is not there", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.NotFoundHandler())
		address := server.Listener.Addr().String()
		server.Close()
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
			h.Action, h.Target = message.ActionForward, "http://"+address+"/in?token=query-token"
		})
		wantAnswer(t, f.post(t, `{}`, nil), 502, `{"ok":false,"error":"run failed"}`)
		logs := f.logs.String()
		if strings.Contains(logs, "password") || strings.Contains(logs, "query-token") || strings.Contains(logs, "user") {
			t.Errorf("credentials of the target are in the log:\n%s", logs)
		}
		if !strings.Contains(logs, "connection refused") {
			t.Errorf("the log does not say what went wrong:\n%s", logs)
		}
	})
	t.Run("a run out of time", func(t *testing.T) {
		t.Parallel()
		f := forwarding(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // so that the server notices the client leave
			<-r.Context().Done()
		}, nil)
		f.pipeline.process = func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return run(ctx, m, p)
		}
		wantAnswer(t, f.post(t, `{"id":1}`, nil), 504, `{"ok":false,"error":"run timed out"}`)
	})
	t.Run("a turn that is called off passes its cause on", func(t *testing.T) {
		t.Parallel()
		arrived := make(chan struct{})
		f := forwarding(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			close(arrived)
			<-r.Context().Done()
		}, nil)
		f.pipeline.process = func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			go func() {
				<-arrived
				cancel(message.ErrDraining)
			}()
			receipt, err := run(ctx, m, p)
			if !errors.Is(err, message.ErrDraining) || errors.Is(err, message.ErrRun) {
				t.Errorf("Run() = %v, want the cause of the end", err)
			}
			return receipt, err
		}
		f.post(t, `{"id":1}`, nil)
	})
	t.Run("an answer that breaks off", func(t *testing.T) {
		t.Parallel()
		f := forwarding(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		}, nil)
		wantAnswer(t, f.post(t, `{"id":1}`, nil), 502, `{"ok":false,"error":"run failed"}`)
	})
}

// A broken connection must not make net/http post a second time: whether the
// message runs again is the claim's decision.
func TestForwardIsNeverRepeatedByTheClient(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"id":1}`, ``} {
		var requests atomic.Int32
		f := forwarding(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if requests.Add(1) > 1 {
				panic(http.ErrAbortHandler) // hangs up on a connection that has worked before
			}
		}, func(h *hooks.Hook, _ *hooks.Deps) { h.IdempotencyKey = "{{ header.x-id }}" })
		withID := func(r *http.Request) { r.Header.Set("X-Id", "1") }
		wantAnswer(t, f.post(t, body, withID), 200, "")
		wantAnswer(t, f.post(t, body, withID), 502, `{"ok":false,"error":"run failed"}`)
		if got := requests.Load(); got != 2 {
			t.Errorf("the target saw %d requests with the body %q, want 2", got, body)
		}
	}
}
