package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/client"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// served is a server over a replica, with a plain handler in place of hooks.
type served struct {
	*gateway.Server
	replica *replica
	health  *health.Registry
	store   idempotency.Store
}

func newServed(t *testing.T, cfg gateway.Config, hooks http.HandlerFunc) *served {
	t.Helper()
	return newServedOn(t, cfg, idempotency.NewMemory(time.Now), hooks)
}

// newServedOn is newServed on a store that it may share.
func newServedOn(t *testing.T, cfg gateway.Config, store idempotency.Store, hooks http.HandlerFunc) *served {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s := &served{replica: newReplica(t, store), health: health.NewRegistry(log), store: store}
	s.Server = gateway.NewServer(gateway.ServerConfig{
		Gateway: cfg, Clients: client.New(client.Config{Limit: 3, Window: time.Minute}, time.Now), Store: store, Hooks: hooks, Pipeline: s.replica.Pipeline, Health: s.health, Metrics: s.replica.metrics,
		Backends: func() map[string]string { return map[string]string{"idempotency": "memory", "turn_lock": "local"} },
		Replica:  "r1", Version: "test", Log: log,
	})
	return s
}

func get(h http.Handler, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func TestServer(t *testing.T) {
	t.Parallel()

	t.Run("B128 liveness readiness and detail are three questions", func(t *testing.T) {
		t.Parallel()
		s := newServed(t, gateway.DefaultConfig(), ok)
		redisDown := health.Owner{Kind: "gateway", ID: "durability:idempotency", State: "stale", Class: "unreachable", Reason: "redis away"}
		for _, stage := range []struct {
			name        string
			enter       func()
			live, ready int
			status      string
			hook        int
		}{
			{"starting", func() {}, 200, 503, "degraded", 503},
			{"ready", func() { s.health.Enter(health.Ready) }, 200, 200, "healthy", 200},
			{"Redis down, failing open", func() { s.health.Degrade(redisDown) }, 200, 200, "degraded", 200},
			{"draining", func() { s.health.Enter(health.Draining) }, 200, 503, "draining", 200},
		} {
			stage.enter()
			h := s.Handler()
			if got := get(h, "/livez", "").Code; got != stage.live {
				t.Errorf("%s: /livez = %d, want %d", stage.name, got, stage.live)
			}
			if got := get(h, "/readyz", "").Code; got != stage.ready {
				t.Errorf("%s: /readyz = %d, want %d", stage.name, got, stage.ready)
			}
			var report health.Report
			w := get(h, "/health", "")
			if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil || w.Code != 200 || report.Status != stage.status {
				t.Errorf("%s: /health = %d %s, want 200 and status %s", stage.name, w.Code, w.Body, stage.status)
			}
			hook := get(h, "/hooks/x", "")
			if hook.Code != stage.hook {
				t.Errorf("%s: hook = %d, want %d", stage.name, hook.Code, stage.hook)
			}
			if got := hook.Header().Get("X-Idempotency-Status"); hook.Code == 503 && got != "none" {
				t.Errorf("%s: X-Idempotency-Status of a refused hook = %q, want none", stage.name, got)
			}
		}
	})

	t.Run("health without the token holds status and names only", func(t *testing.T) {
		t.Parallel()
		cfg := gateway.DefaultConfig()
		cfg.AuthToken = secret.New("operator-token")
		s := newServed(t, cfg, ok)
		s.health.Enter(health.Ready)
		s.health.Degrade(health.Owner{Kind: "gateway", ID: "durability:idempotency", State: "stale", Class: "auth", Reason: "reason text", RetryHint: "hint text"})
		public := get(s.Handler(), "/health", "").Body.String()
		if want := `{"status":"degraded","degraded_owners":[{"owner_kind":"gateway","owner_id":"durability:idempotency"}]}` + "\n"; public != want {
			t.Errorf("public /health = %s, want %s", public, want)
		}
		if got := get(s.Handler(), "/health", "wrong").Body.String(); got != public {
			t.Errorf("/health with a wrong token = %s, want the public one", got)
		}
		private := get(s.Handler(), "/health", "operator-token").Body.String()
		for _, want := range []string{`"reason":"reason text"`, `"retry_hint":"hint text"`, `"backends":{"idempotency":"memory","turn_lock":"local"}`, `"replica":"r1"`} {
			if !strings.Contains(private, want) {
				t.Errorf("/health with the token lacks %s: %s", want, private)
			}
		}
	})

	t.Run("metrics want the token when there is one", func(t *testing.T) {
		t.Parallel()
		cfg := gateway.DefaultConfig()
		cfg.AuthToken = secret.New("operator-token")
		h := newServed(t, cfg, ok).Handler()
		if got := get(h, "/metrics", "").Code; got != http.StatusUnauthorized {
			t.Errorf("without a token: %d, want 401", got)
		}
		w := get(h, "/metrics", "operator-token")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `gateway_claims_total{outcome="new"} 0`) {
			t.Errorf("with the token: %d, want 200 and every series from zero", w.Code)
		}
	})

	t.Run("an unknown path is 404 in JSON", func(t *testing.T) {
		t.Parallel()
		w := get(newServed(t, gateway.DefaultConfig(), ok).Handler(), "/nowhere", "")
		if w.Code != 404 || w.Body.String() != `{"ok":false,"error":"not found"}`+"\n" {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	})

	t.Run("a port in use is an error that names it", func(t *testing.T) {
		t.Parallel()
		cfg := gateway.DefaultConfig()
		cfg.Port = 0
		l, err := gateway.Listen(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		cfg.Port = l.Addr().(*net.TCPAddr).Port
		if _, err := gateway.Listen(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("127.0.0.1:%d", cfg.Port)) {
			t.Errorf("Listen = %v, want an error naming the address", err)
		}
	})
}

func TestServerDrain(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	cfg.Port = 0
	running, finish := make(chan struct{}), make(chan struct{})
	agent := &runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) {
		close(running)
		<-finish
		return message.Outcome{Reply: "done"}, nil
	}}
	var s *served
	s = newServed(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		receipt, err := s.replica.Process(r.Context(), msg(r.URL.Path), policy(agent))
		if errors.Is(err, message.ErrDraining) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, receipt.Outcome.Reply)
	})
	s.health.Enter(health.Ready)
	l, err := gateway.Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	url := "http://" + l.Addr().String()

	first := make(chan string, 1)
	go func() { first <- mustGet(t, url+"/hooks/first", 200) }()
	<-running
	stop()
	for s.health.Phase() != health.Draining {
		mustGet(t, url+"/livez", 200)
	}
	mustGet(t, url+"/readyz", 503)
	mustGet(t, url+"/hooks/late", 503)
	select {
	case err := <-ended:
		t.Fatalf("server ended with %v while a turn was running", err)
	default:
	}
	close(finish)
	if got := <-first; got != "done" {
		t.Errorf("running delivery got %q, want its answer", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	if n := agent.runs.Load(); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("still listening after the drain")
	}
}

func TestServerBoundsHeaders(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	cfg.Port = 0
	s := newServed(t, cfg, ok)
	l, err := gateway.Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, _ = fmt.Fprintf(conn, "POST /hooks/x HTTP/1.1\r\nHost: x\r\nX-Big: %s\r\n\r\n", strings.Repeat("a", 1<<20)) // the server stops reading
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("1 MiB header: %d, want 431", res.StatusCode)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func mustGet(t *testing.T, url string, status int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return ""
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		t.Errorf("GET %s = %d %s, %v; want %d", url, res.StatusCode, body, err, status)
	}
	return string(body)
}
