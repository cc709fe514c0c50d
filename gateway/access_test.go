package gateway_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/message"
)

func TestB96_TheLimitHoldsWhateverAClientWrites(t *testing.T) {
	t.Parallel()
	h := newServed(t, withToken(), ok).Handler()
	limited := 0
	for range 100 {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("X-Forwarded-For", fmt.Sprintf("%d.0.0.1, %d.0.0.2", 1+rand.IntN(200), 1+rand.IntN(200)))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code == http.StatusTooManyRequests {
			limited++
		}
	}
	if limited != 97 {
		t.Errorf("%d of 100 requests got 429, want all but the first 3", limited)
	}
}

func TestHealthCountsWrongTokensAndAnswersThemAsNone(t *testing.T) {
	t.Parallel()
	h := newServed(t, withToken(), ok).Handler()
	none := get(h, "/health", "")
	for range 10 {
		get(h, "/health", "")
	}
	if w := get(h, "/metrics", ""); w.Code != 401 {
		t.Errorf("after requests of /health without a token: %d, want 401: they are no failures", w.Code)
	}
	for range 3 {
		if w := get(h, "/health", "wrong"); w.Code != 200 || w.Body.String() != none.Body.String() {
			t.Errorf("/health with a wrong token = %d %s, want %s", w.Code, w.Body, none.Body)
		}
	}
	if w := get(h, "/metrics", ""); w.Code != 429 {
		t.Errorf("after wrong tokens at /health: %d, want 429", w.Code)
	}
}

func TestNoAnswerOfTheServerIsKeptOrGuessed(t *testing.T) {
	t.Parallel()
	s := newServed(t, withToken(), ok)
	answers := map[string]*httptest.ResponseRecorder{"starting": get(s.Handler(), "/hooks/x", "")}
	s.health.Enter(health.Ready)
	h := s.Handler()
	authorized := func(r *http.Request) { r.Header.Set("Authorization", "Bearer operator-token") }
	answers["a proof"] = askToProve(h, `{"key":"k"}`, authorized)
	answers["malformed"] = askToProve(h, `{}`, authorized)
	answers["unknown"] = get(h, "/nowhere", "")
	answers["unauthorized"] = get(h, "/metrics", "wrong")
	for range 3 {
		answers["limited"] = get(h, "/metrics", "wrong")
	}
	for name, w := range answers {
		header := w.Header()
		if header.Get("Cache-Control") != "no-store" || header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
			t.Errorf("%s: %d with %v, want JSON, nosniff and no-store", name, w.Code, header)
		}
	}
	if got := answers["limited"].Body.String(); got != `{"ok":false,"error":"too many requests"}`+"\n" {
		t.Errorf("limited: %s", got)
	}
}

func TestB94_ThePathOfThePublicURLHidesNoneOfOurOwn(t *testing.T) {
	t.Parallel()
	cfg := withToken()
	cfg.PublicURL = "https://bot.example/api"
	h := newServed(t, cfg, ok).Handler()
	for path, status := range map[string]int{
		"/metrics": 200, "/api/metrics": 200, "/api/prove": 405, "/api/api/prove": 405, "/prove": 404, "/api/api/metrics": 404,
	} {
		if w := get(h, path, "operator-token"); w.Code != status {
			t.Errorf("GET %s = %d %s, want %d", path, w.Code, w.Body, status)
		}
	}
}

func TestPublicURLHasAPlainPath(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://bot.example/#":            "has a query or fragment",
		"https://bot.example/?":            "has a query or fragment",
		"https://bot.example/a%2Fb":        "has a path that is not written plainly",
		"https://bot.example/a b":          "has a path that is not written plainly",
		"https://bot.example/a//b":         "has a path that is not written plainly",
		"https://bot.example/a/../b":       "has a path that is not written plainly",
		"https://bot.example/hooks":        "has the path of hooks",
		"https://bot.example/hooks/github": "has the path of hooks",
		"https://bot.example/hooks-2":      "",
		"http://[::1]:8080/a.b/c_d":        "",
	} {
		cfg := gateway.DefaultConfig()
		cfg.PublicURL = url
		got := ""
		if err := cfg.Validate(); err != nil {
			got = err.Error()
		}
		if want != "" {
			want = "public_url: " + want
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}

func TestProveIsAPost(t *testing.T) {
	t.Parallel()
	s := newServed(t, withToken(), ok)
	s.health.Enter(health.Ready)
	if w := get(s.Handler(), "/api/prove", "operator-token"); w.Code != 405 || w.Header().Get("Allow") != "POST" {
		t.Errorf("GET = %d, Allow %q; want 405 and POST", w.Code, w.Header().Get("Allow"))
	}
}

// proveState is what another delivery of a proof's key meets.
func proveState(t *testing.T, s idempotency.Store, id string) idempotency.State {
	t.Helper()
	key := idempotency.EncodeKey(message.Key{Platform: "doctor", Channel: "prove", ID: id})
	res, err := s.Reserve(t.Context(), key, idempotency.Request{Token: "observer", Lease: time.Second, TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return res.State
}

func TestAProofIsFinishedAtOnceAndForgottenSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemory(time.Now)
		s := newServedOn(t, private(), store, ok)
		s.health.Enter(health.Ready)
		if w := askToProve(s.Handler(), `{"key":"k"}`, nil); !strings.Contains(w.Body.String(), `"won":true`) {
			t.Fatalf("answer %d %s, want it won", w.Code, w.Body)
		}
		time.Sleep(gateway.ProveLease - time.Nanosecond)
		if got := proveState(t, store, "k"); got != idempotency.Recorded {
			t.Errorf("the key is in state %d, want recorded: a claim in flight would be followed for ever", got)
		}
		time.Sleep(time.Nanosecond)
		if got := proveState(t, store, "k"); got != idempotency.Won {
			t.Errorf("later the key is in state %d, want free", got)
		}
	})
}

func TestTheDrainWaitsForAProofAndRefusesTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &idempotencytest.Faulty{Store: idempotency.NewMemory(time.Now)}
		store.Slow(time.Second)
		s := newServedOn(t, private(), store, ok)
		s.health.Enter(health.Ready)
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- askToProve(s.Handler(), `{"key":"first"}`, nil) }()
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- s.replica.Drain(t.Context()) }()
		synctest.Wait()
		calls := store.Calls()
		if w := askToProve(s.Handler(), `{"key":"late"}`, nil); w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), `"draining"`) || store.Calls() != calls {
			t.Errorf("a proof while draining: %d %s after %d calls of the store, want 503 and none", w.Code, w.Body, store.Calls()-calls)
		}
		select {
		case err := <-drained:
			t.Errorf("the drain ended with %v while a proof used the store", err)
		default:
		}
		if w := <-first; w.Code != 200 {
			t.Errorf("the proof under way: %d %s, want its answer", w.Code, w.Body)
		}
		if err := <-drained; err != nil {
			t.Errorf("Drain = %v", err)
		}
	})
}
