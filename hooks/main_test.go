package hooks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// TestMain fails the package if a goroutine outlives its tests.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(code) // the fuzzing engine leaves goroutines of its own
	}
	deadline := time.Now().Add(5 * time.Second)
	for code == 0 && runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "goroutines left over:\n%s\n", stacks[:runtime.Stack(stacks, true)])
			code = 1
		}
		runtime.Gosched()
	}
	os.Exit(code)
}

// fakePipeline is a pipeline made of a function. It remembers what it was given.
type fakePipeline struct {
	process func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error)

	mu       sync.Mutex
	messages []message.Message
	policies []message.Policy
}

func (f *fakePipeline) Process(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
	f.mu.Lock()
	f.messages = append(f.messages, m)
	f.policies = append(f.policies, p)
	f.mu.Unlock()
	if f.process != nil {
		return f.process(ctx, m, p)
	}
	return run(ctx, m, p)
}

// run does what a pipeline without a store would.
func run(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
	state := message.New
	if m.Key.IsZero() {
		state = message.None
	}
	outcome, err := p.Runner.Run(ctx, message.Turn{Message: m, Key: m.Key.ID, Attempt: 1})
	return message.Receipt{State: state, Outcome: outcome}, err
}

// echo is a Runner that answers with the message's text.
type echo struct{}

func (echo) Run(_ context.Context, turn message.Turn) (message.Outcome, error) {
	return message.Outcome{Action: message.ActionAgent, Agent: "assistant", Session: turn.Message.Session, Reply: turn.Message.Text}, nil
}

// fakeClients takes everybody for one client, who may fail limit times.
type fakeClients struct {
	limit    int // 0: any number
	mu       sync.Mutex
	failures int
}

func (f *fakeClients) Address(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.7") }

func (f *fakeClients) Fail(*http.Request) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures++
	if f.limit > 0 && f.failures > f.limit {
		return 1500 * time.Millisecond
	}
	return 0
}

// fixture is a handler with everything around it.
type fixture struct {
	handler  *hooks.Handler
	pipeline *fakePipeline
	clients  *fakeClients
	registry *prometheus.Registry
	logs     *syncBuffer
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// build makes a handler for one hook on path "x". The hook starts from the
// defaults; change edits it and the dependencies.
func build(t testing.TB, change func(h *hooks.Hook, d *hooks.Deps)) *fixture {
	t.Helper()
	f := &fixture{pipeline: &fakePipeline{}, clients: &fakeClients{}, registry: prometheus.NewRegistry(), logs: &syncBuffer{}}
	hook := hooks.DefaultHook()
	hook.Path = "x"
	deps := hooks.Deps{
		Pipeline:  f.pipeline,
		Agents:    func(name string) (message.Runner, bool) { return echo{}, name == "" || name == "assistant" },
		Clients:   f.clients,
		Private:   true,
		PublicURL: func(*http.Request) string { return "" },
		MaxBody:   1 << 20,
		Now:       time.Now,
		Log:       slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics:   f.registry,
	}
	if change != nil {
		change(&hook, &deps)
	}
	cfg := hooks.DefaultConfig()
	cfg.Hooks = []hooks.Hook{hook}
	if err := cfg.Validate(); err != nil {
		t.Fatalf("Validate() = %v", err)
	}
	handler, err := hooks.New(cfg, deps)
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	t.Cleanup(handler.Close)
	f.handler = handler
	return f
}

// post sends one JSON body to /hooks/x; edit may change the request.
func (f *fixture) post(t testing.TB, body string, edit func(*http.Request)) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/x", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w.Result()
}

// message returns the only message that reached the pipeline.
func (f *fixture) message(t testing.TB) message.Message {
	t.Helper()
	f.pipeline.mu.Lock()
	defer f.pipeline.mu.Unlock()
	if len(f.pipeline.messages) != 1 {
		t.Fatalf("%d messages reached the pipeline, want 1", len(f.pipeline.messages))
	}
	return f.pipeline.messages[0]
}

func (f *fixture) runs() int {
	f.pipeline.mu.Lock()
	defer f.pipeline.mu.Unlock()
	return len(f.pipeline.messages)
}

// counter returns the value of a counter; label is its only label's value.
func (f *fixture) counter(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no counter %s{%s}", name, label)
	return 0
}

func readAll(t testing.TB, r *http.Response) string {
	t.Helper()
	defer func() { _ = r.Body.Close() }() // only read from
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	return string(body)
}

// wantAnswer checks status and body, the latter as text.
func wantAnswer(t testing.TB, r *http.Response, status int, body string) {
	t.Helper()
	if got := readAll(t, r); r.StatusCode != status || got != body {
		t.Errorf("answer = %d %s, want %d %s", r.StatusCode, got, status, body)
	}
}

func secrets(texts ...string) []secret.String {
	var all []secret.String
	for _, text := range texts {
		all = append(all, secret.New(text))
	}
	return all
}

func github(texts ...string) *signature.Config {
	return &signature.Config{Scheme: signature.GitHub, Secrets: secrets(texts...)}
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
