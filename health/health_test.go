package health_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/health"
)

// newReady returns the registry of a process that is ready, and its log.
func newReady() (*health.Registry, *bytes.Buffer) {
	var log bytes.Buffer
	r := health.NewRegistry(slog.New(slog.NewTextHandler(&log, nil)))
	r.Enter(health.Ready)
	return r, &log
}

func owner(kind, id, reason string) health.Owner {
	return health.Owner{Kind: kind, ID: id, State: health.Stale, Class: "unreachable", Reason: reason, RetryHint: "hint"}
}

func TestRegistry(t *testing.T) {
	t.Parallel()

	t.Run("entries stand in the order of kind and id, one for each", func(t *testing.T) {
		t.Parallel()
		r, _ := newReady()
		route, b, a := owner(health.KindRoute, "a", "1"), owner(health.KindGateway, "b", "2"), owner(health.KindGateway, "a", "3")
		for _, o := range []health.Owner{route, b, a} {
			r.Degrade(o)
		}
		b.Reason = "another one"
		r.Degrade(b)
		if got, want := r.Owners(), []health.Owner{a, b, route}; !reflect.DeepEqual(got, want) {
			t.Errorf("Owners = %+v, want %+v", got, want)
		}
		r.Clear(health.KindGateway, "b")
		r.Clear(health.KindGateway, "route's id is of another kind")
		if got, want := r.Owners(), []health.Owner{a, route}; !reflect.DeepEqual(got, want) {
			t.Errorf("Owners after Clear = %+v, want %+v", got, want)
		}
	})

	t.Run("owners are a copy", func(t *testing.T) {
		t.Parallel()
		r, _ := newReady()
		r.Degrade(owner(health.KindGateway, "a", "1"))
		r.Owners()[0].ID = "changed"
		if got := r.Owners()[0].ID; got != "a" {
			t.Errorf("a caller changed the registry: %q", got)
		}
	})

	t.Run("a change is one line in the log, a repeat none", func(t *testing.T) {
		t.Parallel()
		r, log := newReady()
		lines := func(what string, want int) {
			t.Helper()
			if got := strings.Count(log.String(), "\n"); got != want {
				t.Errorf("%d lines after %s, want %d:\n%s", got, what, want, log)
			}
		}
		lines("the start", 0)
		for range 3 {
			r.Degrade(owner(health.KindGateway, "a", "1"))
		}
		lines("a degradation and its repeats", 1)
		r.Degrade(owner(health.KindGateway, "a", "another reason"))
		lines("another reason", 2)
		for range 3 {
			r.Clear(health.KindGateway, "a")
		}
		lines("the recovery and its repeats", 3)
	})

	t.Run("phases never go back", func(t *testing.T) {
		t.Parallel()
		r := health.NewRegistry(slog.New(slog.DiscardHandler))
		for _, step := range []struct{ enter, want health.Phase }{
			{health.Starting, health.Starting},
			{health.Ready, health.Ready},
			{health.Starting, health.Ready},
			{health.Draining, health.Draining},
			{health.Ready, health.Draining},
		} {
			r.Enter(step.enter)
			if got := r.Phase(); got != step.want {
				t.Errorf("phase %d after entering %d, want %d", got, step.enter, step.want)
			}
		}
	})

	t.Run("a process that is starting is degraded until it is ready", func(t *testing.T) {
		t.Parallel()
		r := health.NewRegistry(slog.New(slog.DiscardHandler))
		r.Enter(health.Starting)
		if got := r.Owners(); len(got) != 1 || got[0].ID != "startup" {
			t.Errorf("Owners at the start = %+v", got)
		}
		r.Enter(health.Ready)
		if got := r.Owners(); len(got) != 0 {
			t.Errorf("Owners once ready = %+v", got)
		}
	})
}

// ask returns the answer of r to a path.
func ask(r *health.Registry, private bool, path string) *httptest.ResponseRecorder {
	h := r.Handler(func(*http.Request) bool { return private }, func() health.Report {
		return health.Report{Replica: "r1", Version: "v1", Backends: map[string]string{"idempotency": "redis"}}
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// yielding lets others run while an entry is being made, so that a reader
// often comes between two of them.
type yielding struct{ slog.Handler }

func (yielding) Enabled(context.Context, slog.Level) bool { return true }

func (yielding) Handle(context.Context, slog.Record) error {
	runtime.Gosched()
	return nil
}

func (y yielding) WithAttrs([]slog.Attr) slog.Handler { return y }

func TestHandler(t *testing.T) {
	t.Parallel()

	t.Run("health shows strangers names, and everything to those who may see it", func(t *testing.T) {
		t.Parallel()
		r, _ := newReady()
		for _, c := range []struct {
			private bool
			want    string
		}{
			{false, `{"status":"healthy","degraded_owners":[]}`},
			{true, `{"status":"healthy","degraded_owners":[],"backends":{"idempotency":"redis"},"replica":"r1","version":"v1"}`},
		} {
			if w := ask(r, c.private, "/health"); w.Code != 200 || strings.TrimSpace(w.Body.String()) != c.want {
				t.Errorf("/health, private %t = %d %s, want %s", c.private, w.Code, w.Body, c.want)
			}
		}
		r.Degrade(owner(health.KindGateway, "a", "secret reason"))
		for _, c := range []struct {
			private bool
			want    string
		}{
			{false, `{"status":"degraded","degraded_owners":[{"owner_kind":"gateway","owner_id":"a"}]}`},
			{true, `{"status":"degraded","degraded_owners":[{"owner_kind":"gateway","owner_id":"a","state":"stale","class":"unreachable","reason":"secret reason","retry_hint":"hint"}],"backends":{"idempotency":"redis"},"replica":"r1","version":"v1"}`},
		} {
			w := ask(r, c.private, "/health")
			if w.Code != 200 || strings.TrimSpace(w.Body.String()) != c.want {
				t.Errorf("/health, private %t = %d %s, want %s", c.private, w.Code, w.Body, c.want)
			}
			if got := w.Header().Get("Cache-Control"); got != "no-store" {
				t.Errorf("Cache-Control = %q, want no-store", got)
			}
		}
		if got := r.Owners()[0].Reason; got != "secret reason" {
			t.Errorf("answering a stranger changed the registry: reason %q", got)
		}
	})

	t.Run("probes follow the phase and no degradation", func(t *testing.T) {
		t.Parallel()
		r := health.NewRegistry(slog.New(slog.DiscardHandler))
		for _, step := range []struct {
			enter health.Phase
			ready int
			text  string
		}{
			{health.Starting, 503, "starting\n"},
			{health.Ready, 200, "ok\n"},
			{health.Draining, 503, "draining\n"},
		} {
			r.Enter(step.enter)
			r.Degrade(owner(health.KindGateway, "a", "1"))
			if w := ask(r, false, "/readyz"); w.Code != step.ready || w.Body.String() != step.text {
				t.Errorf("phase %d: /readyz = %d %q, want %d %q", step.enter, w.Code, w.Body, step.ready, step.text)
			}
			if w := ask(r, false, "/livez"); w.Code != 200 || w.Body.String() != "ok\n" {
				t.Errorf("phase %d: /livez = %d %q, want 200", step.enter, w.Code, w.Body)
			}
		}
	})

	t.Run("a report never contradicts itself while owners come and go", func(t *testing.T) {
		t.Parallel()
		r := health.NewRegistry(slog.New(yielding{slog.DiscardHandler}))
		r.Enter(health.Ready)
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					r.Degrade(owner(health.KindGateway, "a", "1"))
					r.Clear(health.KindGateway, "a")
				}
			}
		})
		for range 3000 {
			var report health.Report
			if err := json.Unmarshal(ask(r, true, "/health").Body.Bytes(), &report); err != nil {
				t.Fatal(err)
			}
			if degraded := len(report.Owners) > 0; degraded != (report.Status == health.StatusDegraded) {
				t.Errorf("status %s with owners %+v", report.Status, report.Owners)
				break
			}
		}
		close(done)
		wg.Wait()
	})
}
