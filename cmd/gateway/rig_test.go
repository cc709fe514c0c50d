package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
)

// mustParse loads a configuration whose state is in a directory of the test,
// which STATE stands for in text.
func mustParse(t testing.TB, text string) config.Config {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	cfg, err := config.Parse("test", []byte(strings.ReplaceAll(text, "STATE", state)), func(name string) (string, bool) { return state, name == "STATE_DIRECTORY" })
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// running runs the process made of cfg with serve in the place of its server.
// It returns once the stores have been opened.
func running(t testing.TB, cfg config.Config, serve func(context.Context, *process) error) (p *process, stop func() error) {
	t.Helper()
	return runningOn(t, cfg, slog.New(slog.NewTextHandler(t.Output(), nil)), serve)
}

// runningOn is running with a log of the caller's.
func runningOn(t testing.TB, cfg config.Config, log *slog.Logger, serve func(context.Context, *process) error) (p *process, stop func() error) {
	t.Helper()
	p, err := assemble(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx, func(ctx context.Context) error { return serve(ctx, p) }) }()
	for p.health.Phase() == health.Starting {
		time.Sleep(time.Millisecond) // the opening of real files and sockets has no other sign
	}
	return p, func() error {
		cancel()
		return <-ended
	}
}

// rig is a whole gateway inside the test, without a listener.
type rig struct {
	*process
	t       testing.TB
	handler http.Handler
	state   string // the state directory in effect
}

// assembled puts a gateway together from the text of a configuration and runs
// it until the test ends.
func assembled(t testing.TB, text string) *rig {
	t.Helper()
	cfg := mustParse(t, text)
	p, stop := running(t, cfg, func(ctx context.Context, _ *process) error {
		<-ctx.Done()
		return nil
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("run = %v", err)
		}
	})
	return &rig{process: p, t: t, handler: p.server.Handler(), state: cfg.Gateway.StateDir}
}

// post sends a JSON body to a hook; edit may change the request.
func (r *rig) post(path, body string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	r.t.Helper()
	req := httptest.NewRequest(http.MethodPost, "/hooks/"+path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for _, e := range edit {
		e(req)
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	return w
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// want checks status and a part of the body.
func want(t *testing.T, w *httptest.ResponseRecorder, status int, part string) {
	t.Helper()
	if w.Code != status || !strings.Contains(w.Body.String(), part) {
		t.Errorf("got %d %s, want %d with %s", w.Code, w.Body, status, part)
	}
}

func idempotencyStatus(w *httptest.ResponseRecorder) string {
	return w.Header().Get("X-Idempotency-Status")
}

// target is a forward target that waits until it is released.
func target(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

func blocking(t *testing.T) (url string, arrived chan struct{}, release func()) {
	t.Helper()
	arrived, free := make(chan struct{}, 16), make(chan struct{})
	url = target(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that a caller that leaves is noticed
		arrived <- struct{}{}
		select {
		case <-free:
		case <-r.Context().Done():
		}
	})
	return url, arrived, func() { close(free) }
}

// echoHook is a configuration with one hook on path a; keys are further lines
// of the hook.
func echoHook(keys ...string) string {
	return "agents: {one: {}}\nhooks:\n  hooks:\n    - path: a\n      " + strings.Join(keys, "\n      ") + "\n"
}

// withIdempotency is echoHook with settings of hooks.idempotency.
func withIdempotency(settings string, keys ...string) string {
	return strings.Replace(echoHook(keys...), "hooks:\n", "hooks:\n  idempotency: {"+settings+"}\n", 1)
}
