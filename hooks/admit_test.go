package hooks_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/turnlock"
)

func zipped(t testing.TB, text string) string {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := io.WriteString(w, text)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func TestB92_ASignatureCoversWireOrDecodedBytesAsConfigured(t *testing.T) {
	t.Parallel()
	const plain = `{"text":"hi"}`
	wire := zipped(t, plain)
	for _, test := range []struct {
		signedBody, over string
		status           int
	}{
		{"", wire, 200}, {"wire", wire, 200}, {"decoded", plain, 200},
		{"", plain, 401}, {"wire", plain, 401}, {"decoded", wire, 401},
	} {
		t.Run(fmt.Sprintf("signed_body %q, signed over %d bytes", test.signedBody, len(test.over)), func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
				h.Signature = github(testSecret)
				h.Signature.SignedBody = test.signedBody
			})
			resp := f.post(t, wire, func(r *http.Request) {
				r.Header.Set("Content-Encoding", "gzip")
				r.Header.Set("X-Hub-Signature-256", sign(testSecret, test.over))
			})
			if resp.StatusCode != test.status {
				t.Errorf("status = %d %s, want %d", resp.StatusCode, readAll(t, resp), test.status)
			}
			if test.status == 200 && f.message(t).Text != "hi" {
				t.Errorf("text = %q, want hi", f.message(t).Text)
			}
		})
	}
}

func TestADecompressedBodyIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 1 << 16
	var deflated bytes.Buffer
	w := zlib.NewWriter(&deflated)
	if _, err := w.Write(make([]byte, 50<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for coding, bomb := range map[string]string{"gzip": zipped(t, strings.Repeat(" ", 50<<20)), "deflate": deflated.String()} {
		t.Run(coding, func(t *testing.T) {
			t.Parallel()
			f := build(t, func(_ *hooks.Hook, d *hooks.Deps) { d.MaxBody = limit })
			if len(bomb) > limit {
				t.Fatalf("the bomb has %d bytes, too many to get through", len(bomb))
			}
			resp := f.post(t, bomb, func(r *http.Request) { r.Header.Set("Content-Encoding", coding) })
			wantAnswer(t, resp, 413, `{"ok":false,"error":"request body too large"}`)
			if f.runs() != 0 {
				t.Error("a bomb ran")
			}
		})
	}
}

func TestNothingIsDecompressedForAStranger(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Signature = github(testSecret) })
	resp := f.post(t, "no gzip", func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") })
	wantAnswer(t, resp, 401, unauthorized)
	f = build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Signature = github(testSecret)
		h.Signature.SignedBody = signature.BodyDecoded
	})
	for _, coding := range []string{"gzip", "br"} {
		wantAnswer(t, f.post(t, "no gzip", func(r *http.Request) { r.Header.Set("Content-Encoding", coding) }), 401, unauthorized)
	}
	if f.clients.failures != 2 {
		t.Errorf("failures counted = %d, want 2", f.clients.failures)
	}
}

// slack returns a hook whose sender signs the time, and how it signs.
func slack(t *testing.T, now func() time.Time, change func(*hooks.Hook)) (f *fixture, post func(body string, signed time.Time) *http.Response) {
	t.Helper()
	var hook hooks.Hook
	f = build(t, func(h *hooks.Hook, d *hooks.Deps) {
		h.Signature = &signature.Config{Scheme: signature.Slack, Secrets: secrets(testSecret)}
		h.IdempotencyKey = "{{ payload.id }}"
		if change != nil {
			change(h)
		}
		d.Now, hook = now, *h
	})
	return f, func(body string, signed time.Time) *http.Response {
		return f.post(t, body, func(r *http.Request) {
			if err := hook.Sign(r.Header, signature.Content{Body: []byte(body)}, secret.String{}, signed); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestB101_FutureAndPastHaveWindowsOfTheirOwn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f, post := slack(t, func() time.Time { return now }, nil)
	for _, test := range []struct {
		signed time.Duration
		status int
	}{
		{0, 200}, {10 * time.Second, 200}, {10 * time.Minute, 401}, {-5*time.Minute + time.Second, 200}, {-5*time.Minute - time.Second, 401},
	} {
		if got := post(`{"id":1}`, now.Add(test.signed)).StatusCode; got != test.status {
			t.Errorf("status of a request signed at now%+v = %d, want %d", test.signed, got, test.status)
		}
	}
	if got := f.counter(t, "gateway_hook_requests_total", "stale"); got != 2 {
		t.Errorf("stale requests = %g, want 2", got)
	}
	wantAnswer(t, post(`{"id":1}`, now.Add(-time.Hour)), 401, unauthorized)
}

func TestB98_ALateRetryPassesAWindowAsLongAsItsSendersRetries(t *testing.T) {
	t.Parallel()
	clock := idempotencytest.NewClock()
	signed := clock.Now()
	store := &idempotencytest.Faulty{Store: idempotency.NewMemory(clock.Now)}
	maxAge := 10 * time.Minute
	f, post := slack(t, clock.Now, func(h *hooks.Hook) { h.Signature.MaxAge = &maxAge })
	p := gateway.NewPipeline(gateway.PipelineConfig{
		Store: store, Locks: turnlock.NewLocal(time.Now, time.Minute), Replica: "r", MaxConcurrentTurns: 1, TurnTimeout: time.Minute,
		MaxStoredReply: 1 << 10, Metrics: gateway.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
	f.pipeline.process = p.Process
	for _, step := range []struct {
		after  time.Duration // the step before
		away   error         // of the store
		status int
		state  string
	}{
		{0, idempotency.ErrUnavailable, 503, "none"},
		{6 * time.Minute, nil, 200, "new"},
		{time.Minute, nil, 200, "processed"},
		{4 * time.Minute, nil, 401, "none"},
	} {
		clock.Advance(step.after)
		store.Fail(step.away)
		resp := post(`{"id":1}`, signed) // the very bytes of the first time
		if got := resp.Header.Get("X-Idempotency-Status"); resp.StatusCode != step.status || got != step.state {
			t.Errorf("%s later: %d, %s, want %d, %s", step.after, resp.StatusCode, got, step.status, step.state)
		}
	}
	if got := f.counter(t, "gateway_hook_requests_total", "stale"); got != 1 {
		t.Errorf("stale requests = %g, want 1", got)
	}
}

func TestB99_ARecordedRequestIsStaleBeforeItIsForgotten(t *testing.T) {
	t.Parallel()
	signed := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now, hour := signed, time.Hour
	f, post := slack(t, func() time.Time { return now }, func(h *hooks.Hook) { h.Signature.MaxAge = &hour })
	if got := post(`{"id":1}`, signed).StatusCode; got != 200 {
		t.Fatalf("status = %d, want 200", got)
	}
	now = signed.Add(f.pipeline.policies[0].TTL + time.Second)
	if got := post(`{"id":1}`, signed).StatusCode; got != 401 {
		t.Errorf("status of a copy once the record is gone = %d, want 401", got)
	}
}

func TestB99_ARequestIsKnownForLongerThanItPasses(t *testing.T) {
	t.Parallel()
	maxAge := 20 * time.Minute
	f, post := slack(t, time.Now, func(h *hooks.Hook) { h.IdempotencyKey, h.Signature.MaxAge = "", &maxAge })
	post(`{"id":1}`, time.Now())
	if got := f.pipeline.policies[0].TTL; got <= maxAge+time.Minute {
		t.Errorf("content is known for %s, and the request passes for %s", got, maxAge+time.Minute)
	}
}

func TestManyFailuresOfAClientAreRefused(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Auth = &hooks.Tokens{Only: secret.New("hook-token")} })
	f.clients.limit = 2
	bad := func(r *http.Request) { r.Header.Set("Authorization", "Bearer wrong") }
	for range 2 {
		wantAnswer(t, f.post(t, `{}`, bad), 401, unauthorized)
	}
	resp := f.post(t, `{}`, bad)
	wantAnswer(t, resp, 429, `{"ok":false,"error":"too many requests"}`)
	if got := resp.Header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After = %q, want 2: the time that is left, rounded up", got)
	}
	good := func(r *http.Request) { r.Header.Set("Authorization", "Bearer hook-token") }
	if got := f.post(t, `{}`, good).StatusCode; got != 200 {
		t.Errorf("status of a request that verifies = %d, want 200 whatever others do from the same address", got)
	}
	if f.clients.failures != 3 {
		t.Errorf("failures counted = %d, want 3", f.clients.failures)
	}
	if logs := f.logs.String(); !strings.Contains(logs, "client=192.0.2.7") {
		t.Errorf("the log does not name the client that failed:\n%s", logs)
	}
}

func TestNamedTokens(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Auth = &hooks.Tokens{Named: map[string]secret.String{"alice": secret.New("token-a"), "bob": secret.New("token-b")}}
		h.AcceptIdempotencyKey = true
	})
	for _, test := range []struct {
		token  string
		status int
	}{{"token-a", 200}, {"token-b", 200}, {"token-c", 401}, {"alice", 401}} {
		resp := f.post(t, `{}`, func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+test.token)
			r.Header.Set("Idempotency-Key", "k")
		})
		if resp.StatusCode != test.status {
			t.Errorf("status with %s = %d, want %d", test.token, resp.StatusCode, test.status)
		}
	}
	if got, want := fmt.Sprint(f.ids()), "[key:alice:k key:bob:k]"; got != want {
		t.Errorf("ids = %s, want %s: a key belongs to the token that it came with", got, want)
	}
}

func TestTokensOfSendersThatCannotSetAuthorization(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Auth = &hooks.Tokens{Only: secret.New("hook-token")} })
	for _, test := range []struct {
		name   string
		header http.Header
		status int
	}{
		{"X-Gateway-Token", http.Header{"X-Gateway-Token": {"hook-token"}}, 200},
		{"X-Gitlab-Token", http.Header{"X-Gitlab-Token": {"hook-token"}}, 200},
		{"a wrong one", http.Header{"X-Gitlab-Token": {"hook-tokem"}}, 401},
		{"beside credentials of a proxy", http.Header{"Authorization": {"Basic x"}, "X-Gateway-Token": {"hook-token"}}, 200},
		{"twice", http.Header{"X-Gateway-Token": {"hook-token", "hook-token"}}, 401},
		{"as a bearer", http.Header{"X-Gateway-Token": {"Bearer hook-token"}}, 401},
		{"empty", http.Header{"X-Gateway-Token": {""}}, 401},
	} {
		resp := f.post(t, `{}`, func(r *http.Request) {
			for name, values := range test.header {
				r.Header[name] = values
			}
		})
		if resp.StatusCode != test.status {
			t.Errorf("%s: status = %d, want %d", test.name, resp.StatusCode, test.status)
		}
	}
}

func TestB94_ASignatureOverTheURLUsesThePublicOne(t *testing.T) {
	t.Parallel()
	const public = "https://bot.example/api/hooks/x?x=a%2Fb"
	cfg := signature.Config{Scheme: signature.HMACBase64, Header: "X-Square-Hmacsha256-Signature", SignedURL: "before", Secrets: secrets(testSecret)}
	f := build(t, func(h *hooks.Hook, d *hooks.Deps) {
		h.Signature = &cfg
		d.PublicURL = func(r *http.Request) string { return "https://bot.example/api" + r.RequestURI }
	})
	for url, want := range map[string]int{public: 200, "http://127.0.0.1:8080/hooks/x?x=a%2Fb": 401} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/x?x=a%2Fb", strings.NewReader(`{}`))
		signer := hooks.Hook{Signature: &cfg}
		if err := signer.Sign(r.Header, signature.Content{Body: []byte(`{}`), URL: url}, secret.String{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("status of a signature over %s = %d, want %d", url, w.Code, want)
		}
	}
}

func TestB102_TheChallengeIsAnsweredBeforeAnySignature(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Signature = github(testSecret)
		h.Challenge = &hooks.Challenge{Param: "hub.challenge", VerifyParam: "hub.verify_token", VerifyToken: secret.New("VERIFY-token")}
	})
	ask := func(method, query string) *http.Response {
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, "/hooks/x?"+query, nil))
		return w.Result()
	}
	for range 5 {
		resp := ask("GET", "hub.mode=subscribe&hub.verify_token=VERIFY-token&hub.challenge=CHALLENGE-text")
		wantAnswer(t, resp, 200, "CHALLENGE-text")
		if got := resp.Header.Get("Content-Type"); got != "text/plain; charset=utf-8" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("the challenge comes as %q, want plain text that nothing is read into", got)
		}
	}
	for _, test := range []struct {
		method, query string
		status        int
	}{
		{"GET", "hub.mode=subscribe&hub.verify_token=wrong&hub.challenge=CHALLENGE-text", 403},
		{"GET", "hub.challenge=CHALLENGE-text", 403},
		{"GET", "hub.verify_token=VERIFY-token", 400},
		{"GET", "", 403},
		{"HEAD", "hub.verify_token=VERIFY-token&hub.challenge=CHALLENGE-text", 405},
		{"OPTIONS", "hub.verify_token=VERIFY-token&hub.challenge=CHALLENGE-text", 405},
		{"POST", "hub.verify_token=VERIFY-token&hub.challenge=CHALLENGE-text", 401},
	} {
		resp := ask(test.method, test.query)
		if resp.StatusCode != test.status || test.status == 405 && resp.Header.Get("Allow") != "GET, POST" {
			t.Errorf("%s ?%s = %d, Allow %q, want %d", test.method, test.query, resp.StatusCode, resp.Header.Get("Allow"), test.status)
		}
	}
	if f.runs() != 0 {
		t.Errorf("%d handshakes ran", f.runs())
	}
	if logs := f.logs.String(); strings.Contains(logs, "CHALLENGE") || strings.Contains(logs, "VERIFY") {
		t.Errorf("a challenge or its token is in the log:\n%s", logs)
	}
}

func TestB102_AnEmptyPostRunsNothing(t *testing.T) {
	t.Parallel()
	f := build(t, nil)
	for _, body := range []string{"", " \r\n"} {
		wantAnswer(t, f.post(t, body, nil), 200, `{"ok":true,"skipped":"empty"}`)
	}
	if f.runs() != 0 {
		t.Errorf("an empty body ran")
	}
	if got := f.counter(t, "gateway_unkeyed_messages_total", ""); got != 0 {
		t.Errorf("messages without key = %g, want 0: there was none", got)
	}
}

func TestAChallengeWithoutATokenEchoesOnly(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Challenge = &hooks.Challenge{Param: "challenge"} })
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/hooks/x?challenge=%3Cb%3E", nil))
	wantAnswer(t, w.Result(), 200, "<b>")
}

func TestASlashBehindThePathIsNoOtherPath(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.IdempotencyKey = "{{ payload.id }}" })
	for _, path := range []string{"/hooks/x", "/hooks/x/"} {
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", path, strings.NewReader(`{"id":1}`)))
		if w.Code != 200 {
			t.Errorf("POST %s = %d, want 200", path, w.Code)
		}
	}
	if a, b := f.pipeline.messages[0], f.pipeline.messages[1]; a.Key != b.Key || a.Fingerprint != b.Fingerprint {
		t.Errorf("the two are different messages: %+v, %+v", a, b)
	}
}
