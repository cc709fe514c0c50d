package httpagent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/httpagent"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

func turn() agent.Turn {
	return agent.Turn{Turn: message.Turn{
		Key: "hook:::a%201", Fence: 7, Attempt: 1,
		Message: message.Message{Text: "private words", Session: "private session"},
	}}
}

func configFor(t *testing.T, url string, change ...func(*agent.Config)) agent.Config {
	t.Helper()
	c := agent.Config{Kind: agent.KindHTTP, URL: url}
	for _, f := range change {
		f(&c)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// start returns an agent in front of a server with that handler.
func start(t *testing.T, handler http.HandlerFunc, change ...func(*agent.Config)) *httpagent.Agent {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	a := httpagent.New(configFor(t, s.URL+"/private-path?a=private", change...))
	t.Cleanup(a.Close)
	return a
}

// answering returns a handler that says the same to everybody.
func answering(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body) // the client may be gone
	}
}

// roundTrip is the far end of an agent without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func wantKind(t *testing.T, err error, want agent.Kind) *agent.Error {
	t.Helper()
	e, ok := errors.AsType[*agent.Error](err)
	if !ok || e.Kind != want {
		t.Fatalf("error = %v, want one of kind %s", err, want)
	}
	if strings.Contains(err.Error(), "private") || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("error = %v, which tells what nobody may read", err)
	}
	return e
}

func TestTheTurnIsPosted(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../testdata/turn.json")
	if err != nil {
		t.Fatal(err)
	}
	a := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.RequestURI != "/private-path?a=private" {
			t.Errorf("request = %s %s, want POST to the URL as it is", r.Method, r.RequestURI)
		}
		body, err := io.ReadAll(r.Body)
		if got := string(body) + "\n"; err != nil || got != string(want) {
			t.Errorf("body = %s, %v; want %s", got, err, want)
		}
		for name, want := range map[string][]string{
			"Content-Type": {"application/json"}, "Accept": {"application/json"}, "Authorization": {"Bearer private"}, "X-Trace": {"on"},
			"Idempotency-Key": {"hook::%2Fhooks%2Fx:42"}, "X-Turn-Fence": {"9223372036854775809"},
		} {
			if got := r.Header[name]; !slices.Equal(got, want) {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		_, _ = io.WriteString(w, `{"text":"ok"}`)
	}, func(c *agent.Config) {
		c.Headers = map[string]secret.String{"authorization": secret.New("Bearer private"), "x-trace": secret.New("on")}
	})
	golden := agent.Turn{
		Turn: message.Turn{Key: "hook::%2Fhooks%2Fx:42", Fence: 1<<63 + 1, Attempt: 2, Message: message.Message{
			Key: message.Key{ID: "42"}, Session: "hook:x", Sender: "ann", Thread: "t-1", Text: "a \"b\"\n<é>&\u2028😀\x00",
		}},
		History: []agent.Row{{Role: agent.User, Text: "hello"}, {Role: agent.Assistant, Text: "hi"}},
	}
	if got, err := a.Run(t.Context(), golden); err != nil || got.Text != "ok" {
		t.Errorf("Run = %q, %v; want ok", got.Text, err)
	}
}

func TestAMessageWithoutIdentityOrSessionHasNeitherHeader(t *testing.T) {
	t.Parallel()
	a := start(t, func(_ http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Idempotency-Key", "X-Turn-Fence"} {
			if got, given := r.Header[name]; given {
				t.Errorf("%s = %q, want none", name, got)
			}
		}
	})
	if _, err := a.Run(t.Context(), agent.Turn{}); err != nil {
		t.Fatal(err)
	}
}

func TestAcceptMayBeConfigured(t *testing.T) {
	t.Parallel()
	a := start(t, func(_ http.ResponseWriter, r *http.Request) {
		if got, want := r.Header["Accept"], []string{"application/vnd.api+json"}; !slices.Equal(got, want) {
			t.Errorf("Accept = %q, want %q", got, want)
		}
	}, func(c *agent.Config) {
		c.Headers = map[string]secret.String{"accept": secret.New("application/vnd.api+json")}
	})
	if _, err := a.Run(t.Context(), turn()); err != nil {
		t.Fatal(err)
	}
}

// A POST that net/http knows to be idempotent is sent again by itself when a
// connection that was used before breaks after the request was written.
func TestATurnIsSentOnceWhateverBecomesOfTheConnection(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	a := start(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		if requests.Add(1) == 1 {
			_, _ = io.WriteString(w, `{"text":"the connection stays open"}`)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	})
	if _, err := a.Run(t.Context(), turn()); err != nil {
		t.Fatal(err)
	}
	_, err := a.Run(t.Context(), turn())
	wantKind(t, err, agent.Unreachable)
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests for two runs, want 2", n)
	}
}

func TestOneAgentRunsManyTurnsAtOnce(t *testing.T) {
	t.Parallel()
	const runs = 30
	var all sync.WaitGroup
	all.Add(runs)
	a := start(t, func(w http.ResponseWriter, r *http.Request) {
		all.Done()
		all.Wait()
		_, _ = io.WriteString(w, `{"text":"`+r.Header.Get("Idempotency-Key")+`"}`)
	})
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() {
			asked := turn()
			asked.Key = fmt.Sprint("k", i)
			if got, err := a.Run(t.Context(), asked); err != nil || got.Text != asked.Key {
				t.Errorf("Run = %q, %v; want %q", got.Text, err, asked.Key)
			}
		})
	}
	wg.Wait()
}

type idle struct {
	roundTrip
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

func TestCloseEndsIdleConnections(t *testing.T) {
	t.Parallel()
	transport := &idle{}
	httpagent.NewWith(configFor(t, "http://agent.example"), transport).Close()
	if !transport.closed {
		t.Error("idle connections stay open")
	}
}

// hanging returns a handler that answers nothing until the client is gone, and
// calls begun before.
func hanging(begun func(), sent string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice who hangs up
		if sent != "" {
			_, _ = io.WriteString(w, sent)
			_ = http.NewResponseController(w).Flush() // an error is the end that is waited for
		}
		begun()
		<-r.Context().Done()
	}
}

func TestTheTimeoutOfTheAgentBoundsTheRun(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"before the answer": "", "inside the answer": `{"text":"private`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, hanging(func() {}, sent), func(c *agent.Config) { c.Timeout = new(20 * time.Millisecond) })
			_, err := a.Run(t.Context(), turn())
			wantKind(t, err, agent.Timeout)
			if !errors.Is(err, message.ErrTimeout) || errors.Is(err, agent.ErrRefused) {
				t.Errorf("error = %v, want a timeout that may pass", err)
			}
		})
	}
}

func TestATurnThatIsCalledOffReturnsTheCause(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"before the answer": "", "inside the answer": `{"text":"private`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := errors.New("the lock was lost")
			ctx, cancel := context.WithCancelCause(t.Context())
			a := start(t, hanging(func() { cancel(lost) }, sent), func(c *agent.Config) { c.Timeout = new(time.Hour) })
			_, err := a.Run(ctx, turn())
			if !errors.Is(err, lost) || errors.Is(err, message.ErrTimeout) {
				t.Errorf("error = %v, want %v and no timeout", err, lost)
			}
		})
	}
}

func TestTheDeadlineOfTheTurnIsNotTheAgentsTimeout(t *testing.T) {
	t.Parallel()
	a := start(t, hanging(func() {}, ""), func(c *agent.Config) { c.Timeout = new(time.Hour) })
	over := errors.New("the turn is over")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, over)
	defer cancel()
	_, err := a.Run(ctx, turn())
	if !errors.Is(err, over) || agent.KindOf(err) == agent.Timeout {
		t.Errorf("error = %v, want %v and not kind timeout", err, over)
	}
}
