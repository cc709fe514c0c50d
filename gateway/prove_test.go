package gateway_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/internal/secret"
)

func private() gateway.Config { return gateway.DefaultConfig() }

func withToken() gateway.Config {
	cfg := gateway.DefaultConfig()
	cfg.AuthToken = secret.New("operator-token")
	return cfg
}

func askToProve(h http.Handler, body string, edit func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/api/prove", strings.NewReader(body))
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestProveHasOneWinnerOverAllReplicas(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemory(time.Now)
	var handlers []http.Handler
	for range 2 {
		s := newServedOn(t, private(), store, ok)
		s.health.Enter(health.Ready)
		handlers = append(handlers, s.Handler())
	}
	for _, key := range []string{"round-1", "round_2"} {
		var wg sync.WaitGroup
		var winners atomic.Int32
		for i := range 64 {
			wg.Go(func() {
				w := askToProve(handlers[i%2], `{"key":"`+key+`"}`, nil)
				var answer gateway.ProveAnswer
				if err := json.Unmarshal(w.Body.Bytes(), &answer); w.Code != 200 || err != nil || answer.Replica != "r1" || answer.Backend != "memory" {
					t.Errorf("answer %d %s: %v", w.Code, w.Body, err)
				}
				if answer.Won {
					winners.Add(1)
				}
			})
		}
		wg.Wait()
		if winners.Load() != 1 {
			t.Errorf("%s has %d winners, want 1", key, winners.Load())
		}
	}
}

func TestProveWantsTheToken(t *testing.T) {
	t.Parallel()
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	public := private()
	public.PublicURL = "https://bot.example"
	for _, test := range []struct {
		name   string
		cfg    gateway.Config
		edit   func(*http.Request)
		status int
	}{
		{"the token", withToken(), bearer("operator-token"), 200},
		{"another one", withToken(), bearer("operator-tokem"), 401},
		{"none", withToken(), nil, 401},
		{"none on a private gateway", private(), nil, 200},
		{"a web page on a private gateway", private(), func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, 401},
		{"none on a gateway for others", public, nil, 401},
	} {
		s := newServed(t, test.cfg, ok)
		s.health.Enter(health.Ready)
		if w := askToProve(s.Handler(), `{"key":"k"}`, test.edit); w.Code != test.status {
			t.Errorf("%s: answer %d %s, want %d", test.name, w.Code, w.Body, test.status)
		}
	}
}

func TestProveRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	s := newServed(t, private(), ok)
	s.health.Enter(health.Ready)
	for _, body := range []string{
		``, `{`, `{}`, `[]`, `{"key":""}`, `{"key":"a b"}`, `{"key":"é"}`, `{"key":1}`, `{"key":"a","n":1}`, `{"key":"a"} {}`,
		`{"key":"` + strings.Repeat("k", 65) + `"}`, strings.Repeat(" ", 2000) + `{"key":"a"}`,
	} {
		if w := askToProve(s.Handler(), body, nil); w.Code != 400 {
			t.Errorf("%.40q: answer %d %s, want 400", body, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/api/prove", nil)
	w := httptest.NewRecorder()
	if s.Handler().ServeHTTP(w, r); w.Code != 404 && w.Code != 405 {
		t.Errorf("GET = %d, want it refused", w.Code)
	}
}

func TestB132_AProofWithoutAStoreTellsNothingOfIt(t *testing.T) {
	t.Parallel()
	faulty := &idempotencytest.Faulty{Store: idempotency.NewMemory(time.Now)}
	faulty.Fail(errors.New("dial tcp 10.0.0.5:6379: user:pw"))
	s := newServedOn(t, private(), faulty, ok)
	if w := askToProve(s.Handler(), `{"key":"k"}`, nil); w.Code != 503 || !strings.Contains(w.Body.String(), "starting") {
		t.Errorf("while starting: %d %s, want 503", w.Code, w.Body)
	}
	s.health.Enter(health.Ready)
	w := askToProve(s.Handler(), `{"key":"k"}`, nil)
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "IDEMPOTENCY_UNAVAILABLE") || strings.Contains(w.Body.String(), "10.0.0.5") {
		t.Errorf("without a store: %d %s, want 503 and nothing of the cause", w.Code, w.Body)
	}
}

func TestFailuresOfAClientAreLimited(t *testing.T) {
	t.Parallel()
	s := newServed(t, withToken(), ok)
	for i, status := range []int{401, 401, 401, 429} {
		w := get(s.Handler(), "/metrics", "wrong")
		if w.Code != status || (status == 429) != (w.Header().Get("Retry-After") != "") {
			t.Errorf("failure %d: answer %d, Retry-After %q, want %d", i+1, w.Code, w.Header().Get("Retry-After"), status)
		}
	}
	if w := get(s.Handler(), "/metrics", "operator-token"); w.Code != 200 {
		t.Errorf("the right token after failures of the same address: %d, want 200", w.Code)
	}
}
