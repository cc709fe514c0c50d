package gateway_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
)

func TestB94_ThePublicURLIsTheOnlySource(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ public, uri, want string }{
		{"https://bot.example/api", "/hook?x=a%2Fb", "https://bot.example/api/hook?x=a%2Fb"},
		{"https://bot.example/api/", "/hook?x=a%2Fb", "https://bot.example/api/hook?x=a%2Fb"},
		{"https://bot.example/api", "/api/hook?x=a%2Fb", "https://bot.example/api/hook?x=a%2Fb"},
		{"https://bot.example/api", "/apix/hook", "https://bot.example/api/apix/hook"},
		{"https://bot.example", "/a%2fb//c?", "https://bot.example/a%2fb//c?"},
		{"https://bot.example:8443/", "/hook", "https://bot.example:8443/hook"},
		{"", "/hook", ""},
	} {
		cfg := gateway.DefaultConfig()
		cfg.PublicURL = test.public
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:8080"+test.uri, nil)
		r.RequestURI = test.uri
		r.Host = "evil.example"
		r.Header.Set("X-Forwarded-Host", "evil.example")
		r.Header.Set("X-Forwarded-Proto", "http")
		if got := cfg.SenderURL(r); got != test.want {
			t.Errorf("public_url %q, %s: %q, want %q", test.public, test.uri, got, test.want)
		}
	}
}

func TestB94_BothPathsOfAMountedGatewayRoute(t *testing.T) {
	t.Parallel()
	for _, public := range []string{"https://bot.example/api", "https://bot.example/api/"} {
		cfg := gateway.DefaultConfig()
		cfg.PublicURL = public
		s := newServed(t, cfg, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.URL.EscapedPath()+" "+r.RequestURI)
		})
		s.health.Enter(health.Ready)
		for uri, want := range map[string]string{
			"/hooks/a%2Fb?c": "/hooks/a%2Fb /hooks/a%2Fb?c", "/api/hooks/a%2Fb?c": "/hooks/a%2Fb /api/hooks/a%2Fb?c",
		} {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, uri, nil))
			if w.Code != 200 || w.Body.String() != want {
				t.Errorf("%s under %s: %d %s, want %s", uri, public, w.Code, w.Body, want)
			}
		}
		for uri, status := range map[string]int{"/api/livez": 200, "/livez": 200, "/apilivez": 404, "/api": 404, "/api/api/livez": 404} {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, uri, nil))
			if w.Code != status {
				t.Errorf("GET %s = %d, want %d", uri, w.Code, status)
			}
		}
	}
}

func TestPublicURLIsChecked(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"bot.example":                   "is not an http or https URL",
		"ftp://bot.example":             "is not an http or https URL",
		"https://":                      "is not an http or https URL",
		"https://user:MARKER@bot":       "holds a user or password",
		"https://bot.example/?a=MARKER": "has a query or fragment",
		"https://bot.example/#a":        "has a query or fragment",
		"https://b%zz:MARKER@x":         "is not an http or https URL",
	} {
		cfg := gateway.DefaultConfig()
		cfg.PublicURL = url
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), "public_url: "+want) || strings.Contains(err.Error(), "MARKER") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}

func TestAGatewayForOthersIsNotPrivate(t *testing.T) {
	t.Parallel()
	behindAProxy := gateway.DefaultConfig()
	behindAProxy.PublicURL = "https://bot.example"
	s := newServed(t, behindAProxy, ok)
	if w := get(s.Handler(), "/metrics", ""); w.Code != 401 {
		t.Errorf("/metrics without a token = %d, want 401: a proxy on this machine lets strangers in", w.Code)
	}
	if w := get(s.Handler(), "/health", ""); strings.Contains(w.Body.String(), "backends") {
		t.Errorf("/health without a token tells %s", w.Body)
	}
}
