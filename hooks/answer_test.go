package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/message"
)

func TestAnswers(t *testing.T) {
	t.Parallel()
	agent := message.Outcome{Action: message.ActionAgent, Agent: "assistant", Session: "s", Reply: "hi <b>"}
	wake := message.Outcome{Action: message.ActionWake, Agent: "assistant", Session: "s"}
	forward := message.Outcome{Action: message.ActionForward, Response: &message.Response{
		Status: 404, Header: map[string][]string{"Content-Type": {"text/plain"}, "Location": {"/there"}}, Body: []byte("no such thing"),
	}}
	const reused = `{"ok":false,"error":"idempotency key reused with a different request"}`
	for _, test := range []struct {
		name    string
		receipt message.Receipt
		err     error
		caller  bool // the request carries an Idempotency-Key
		status  int
		body    string
		header  http.Header // Retry-After and what is not JSON's usual
	}{
		{
			name: "a run", receipt: message.Receipt{State: message.New, Outcome: agent}, status: 200,
			body: `{"ok":true,"action":"agent","agent":"assistant","session":"s","reply":"hi <b>","delivered":null}`,
		},
		{
			name: "a run without key and session", receipt: message.Receipt{Outcome: message.Outcome{Action: "agent", Agent: "a"}}, status: 200,
			body: `{"ok":true,"action":"agent","agent":"a","session":null,"reply":"","delivered":null}`,
		},
		{
			name: "a duplicate", receipt: message.Receipt{State: message.Processed, Outcome: agent}, status: 200,
			body:   `{"ok":true,"action":"agent","agent":"assistant","session":"s","reply":"hi <b>","delivered":null,"deduplicated":true}`,
			header: http.Header{"Idempotency-Replayed": {"true"}},
		},
		{
			name: "a duplicate of other content", receipt: message.Receipt{State: message.Processed, Mismatch: true, Outcome: agent}, status: 200,
			body:   `{"ok":true,"action":"agent","agent":"assistant","session":"s","reply":"hi <b>","delivered":null,"deduplicated":true}`,
			header: http.Header{"Idempotency-Replayed": {"true"}},
		},
		{
			name: "a duplicate whose reply was too large", status: 200,
			receipt: message.Receipt{State: message.Processed, Outcome: agent.Bounded(1)},
			body:    `{"ok":true,"action":"agent","agent":"assistant","session":"s","reply":null,"delivered":null,"reply_omitted":true,"deduplicated":true}`,
			header:  http.Header{"Idempotency-Replayed": {"true"}},
		},
		{
			name: "a wake", receipt: message.Receipt{State: message.New, Outcome: wake}, status: 200,
			body: `{"ok":true,"action":"wake","agent":"assistant","session":"s","reply":null,"delivered":null}`,
		},
		{
			name: "a wake without key and session", receipt: message.Receipt{Outcome: message.Outcome{Action: "wake", Agent: "a"}}, status: 200,
			body: `{"ok":true,"action":"wake","agent":"a","session":null,"reply":null,"delivered":null}`,
		},
		{
			name: "a duplicate of a wake", receipt: message.Receipt{State: message.Processed, Outcome: wake}, status: 200,
			body:   `{"ok":true,"action":"wake","agent":"assistant","session":"s","reply":null,"delivered":null,"deduplicated":true}`,
			header: http.Header{"Idempotency-Replayed": {"true"}},
		},
		{
			name: "a duplicate without a stored answer", receipt: message.Receipt{State: message.Processed}, status: 200,
			body: `{"ok":true,"deduplicated":true}`, header: http.Header{"Idempotency-Replayed": {"true"}},
		},
		{
			name: "a forward", receipt: message.Receipt{State: message.New, Outcome: forward}, status: 404, body: "no such thing",
			header: http.Header{"Content-Type": {"text/plain"}, "Location": {"/there"}, "X-Content-Type-Options": nil},
		},
		{
			name: "a replayed forward", receipt: message.Receipt{State: message.Processed, Outcome: forward}, status: 404, body: "no such thing",
			header: http.Header{"Content-Type": {"text/plain"}, "Location": {"/there"}, "X-Content-Type-Options": nil, "Idempotency-Replayed": {"true"}},
		},
		{
			name: "a forward without a type is not guessed at", status: 200, body: "<html>",
			receipt: message.Receipt{State: message.New, Outcome: message.Outcome{Action: "forward", Response: &message.Response{Status: 200, Body: []byte("<html>")}}},
			header:  http.Header{"Content-Type": nil, "X-Content-Type-Options": nil},
		},
		{
			name: "a forward whose body was too large", receipt: message.Receipt{State: message.New, Outcome: forward.Bounded(1)}, status: 404,
			body: `{"ok":false,"reply_omitted":true}`,
		},
		{
			name: "a replayed forward whose body was too large", status: 404,
			receipt: message.Receipt{State: message.Processed, Outcome: forward.Bounded(1)},
			body:    `{"ok":false,"deduplicated":true,"reply_omitted":true}`, header: http.Header{"Idempotency-Replayed": {"true"}},
		},
		{
			name: "in flight", receipt: message.Receipt{State: message.InFlight, RetryAfter: 6*time.Second + time.Millisecond}, status: 409,
			body: `{"ok":false,"error":"in flight","retry_after":7}`, header: http.Header{"Retry-After": {"7"}},
		},
		{
			name: "in flight and nearly over", receipt: message.Receipt{State: message.InFlight}, status: 409,
			body: `{"ok":false,"error":"in flight","retry_after":1}`, header: http.Header{"Retry-After": {"1"}},
		},
		{
			name: "in flight with other content", receipt: message.Receipt{State: message.InFlight, Mismatch: true, RetryAfter: time.Second}, status: 409,
			body: `{"ok":false,"error":"in flight","retry_after":1}`, header: http.Header{"Retry-After": {"1"}},
		},
		{name: "a caller's key reused", caller: true, receipt: message.Receipt{State: message.Processed, Mismatch: true, Outcome: agent}, status: 422, body: reused},
		{name: "a caller's key reused in flight", caller: true, receipt: message.Receipt{State: message.InFlight, Mismatch: true}, status: 422, body: reused},
		{
			name: "a failed run", receipt: message.Receipt{State: message.New}, err: fmt.Errorf("secret host: %w", message.ErrRun),
			status: 502, body: `{"ok":false,"error":"run failed"}`,
		},
		{
			name: "a run out of time", receipt: message.Receipt{State: message.New}, err: fmt.Errorf("agent: %w", message.ErrTimeout),
			status: 504, body: `{"ok":false,"error":"run timed out"}`,
		},
		{
			name: "any other error", receipt: message.Receipt{State: message.New}, err: errors.New("secret host"),
			status: 500, body: `{"ok":false,"error":"internal error"}`,
		},
		{name: "no capacity", err: message.ErrBusy, status: 503, body: `{"ok":false,"error":"busy"}`, header: http.Header{"Retry-After": {"2"}}},
		{name: "draining", err: message.ErrDraining, status: 503, body: `{"ok":false,"error":"draining"}`, header: http.Header{"Retry-After": {"5"}}},
		{
			name: "no claim store", err: fmt.Errorf("reserve: %w", message.ErrStoreUnavailable), status: 503,
			body: `{"ok":false,"error":"IDEMPOTENCY_UNAVAILABLE"}`, header: http.Header{"Retry-After": {"5"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.AcceptIdempotencyKey = test.caller })
			f.pipeline.process = func(context.Context, message.Message, message.Policy) (message.Receipt, error) {
				return test.receipt, test.err
			}
			resp := f.post(t, `{"message":"m"}`, func(r *http.Request) {
				if test.caller {
					r.Header.Set("Idempotency-Key", "k")
				}
			})
			wantAnswer(t, resp, test.status, test.body)
			want := http.Header{
				"Content-Type":           {"application/json; charset=utf-8"},
				"X-Content-Type-Options": {"nosniff"},
				"X-Idempotency-Status":   {test.receipt.State.String()},
			}
			for name, values := range test.header {
				want[name] = values
			}
			for _, name := range []string{"Content-Type", "X-Content-Type-Options", "X-Idempotency-Status", "Idempotency-Replayed", "Retry-After", "Location"} {
				if got, want := strings.Join(resp.Header[name], "|"), strings.Join(want[name], "|"); got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
			if test.err != nil && !strings.Contains(f.logs.String(), test.err.Error()) {
				t.Errorf("the log does not say %q:\n%s", test.err, f.logs)
			}
		})
	}
}

func TestRefusalsNameTheirPlace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, method, path, body string
		status                   int
		answer, allow, result    string
	}{
		{"an unknown path", "POST", "/hooks/y", "{}", 404, `{"ok":false,"error":"not found"}`, "", "unknown_path"},
		{"a path with two slashes too many", "POST", "/hooks/x//", "{}", 404, `{"ok":false,"error":"not found"}`, "", "unknown_path"},
		{"the bare prefix", "POST", "/hooks/", "{}", 404, `{"ok":false,"error":"not found"}`, "", "unknown_path"},
		{"GET", "GET", "/hooks/x", "", 405, `{"ok":false,"error":"method not allowed"}`, "POST", "wrong_method"},
		{"HEAD", "HEAD", "/hooks/x", "", 405, `{"ok":false,"error":"method not allowed"}`, "POST", "wrong_method"},
		{"OPTIONS", "OPTIONS", "/hooks/x", "", 405, `{"ok":false,"error":"method not allowed"}`, "POST", "wrong_method"},
		{"cut off JSON", "POST", "/hooks/x", `{"a":`, 400, `{"ok":false,"error":"request body cannot be read: not valid JSON at byte 5"}`, "", "malformed"},
		{"trailing data", "POST", "/hooks/x", `{} {}`, 400, `{"ok":false,"error":"request body cannot be read: not valid JSON at byte 4"}`, "", "malformed"},
		{
			"bottomless JSON", "POST", "/hooks/x", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), 400,
			`{"ok":false,"error":"request body cannot be read: not valid JSON at byte 10001"}`, "", "malformed",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, nil)
			w := httptest.NewRecorder()
			f.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), test.method, test.path, strings.NewReader(test.body)))
			resp := w.Result()
			wantAnswer(t, resp, test.status, test.answer)
			if got := resp.Header.Get("Allow"); got != test.allow {
				t.Errorf("Allow = %q, want %q", got, test.allow)
			}
			if got := resp.Header.Get("X-Idempotency-Status"); got != "none" {
				t.Errorf("X-Idempotency-Status = %q, want none", got)
			}
			if got := f.counter(t, "gateway_hook_requests_total", test.result); got != 1 {
				t.Errorf("%s requests = %g, want 1", test.result, got)
			}
			if f.runs() != 0 {
				t.Errorf("a refused request reached the pipeline")
			}
		})
	}
}

func TestDeepestAcceptedJSON(t *testing.T) {
	t.Parallel()
	f := build(t, nil)
	deep := strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999)
	if got := f.post(t, deep, nil).StatusCode; got != http.StatusOK {
		t.Errorf("status = %d, want 200", got)
	}
}

func TestPolicyOfARoute(t *testing.T) {
	t.Parallel()
	lease, ttl := 2*time.Second, 3*time.Second
	for _, test := range []struct {
		name   string
		change func(*hooks.Hook)
		want   message.Policy
	}{
		{
			"the section's defaults", func(*hooks.Hook) {},
			message.Policy{Lease: 900 * time.Second, TTL: 24 * time.Hour, OnDuplicate: message.Conflict, WaitTimeout: 10 * time.Second, OnUnavailable: "open"},
		},
		{
			"the hook's own settings",
			func(h *hooks.Hook) {
				h.Lease, h.TTL, h.OnDuplicate, h.WaitTimeout, h.OnUnavailable = &lease, &ttl, message.Wait, 4*time.Second, "closed"
			},
			message.Policy{Lease: lease, TTL: ttl, OnDuplicate: message.Wait, WaitTimeout: 4 * time.Second, OnUnavailable: "closed"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
				h.IdempotencyKey = "{{ payload.id }}"
				test.change(h)
			})
			f.post(t, `{"id":1}`, nil)
			test.want.Route, test.want.Runner = "hook:x", echo{}
			if got := f.pipeline.policies[0]; got != test.want {
				t.Errorf("policy = %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestRequestContextReachesThePipeline(t *testing.T) {
	t.Parallel()
	type mark struct{}
	f := build(t, nil)
	f.pipeline.process = func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
		if ctx.Value(mark{}) != "here" || ctx.Err() == nil {
			t.Errorf("the pipeline got another context than the request's")
		}
		return run(ctx, m, p)
	}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), mark{}, "here"))
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/hooks/x", strings.NewReader(`{}`))
	f.handler.ServeHTTP(httptest.NewRecorder(), r)
	if f.runs() != 1 {
		t.Errorf("runs = %d, want 1", f.runs())
	}
}

func TestOneLogLineForEachMessage(t *testing.T) {
	t.Parallel()
	f := build(t, nil)
	f.pipeline.process = func(context.Context, message.Message, message.Policy) (message.Receipt, error) {
		return message.Receipt{Key: "hook::x:1", State: message.New, Outcome: message.Outcome{Action: message.ActionAgent, Reply: "private words"}}, nil
	}
	f.post(t, `{"text":"private words"}`, nil)
	log := f.logs.String()
	if strings.Count(log, "level=INFO") != 1 || strings.Contains(log, "private") {
		t.Errorf("logged %q, want one line at level info without the text", log)
	}
	for _, part := range []string{"hook=x", "result=done", "duration=", "key=hook::x:1"} {
		if !strings.Contains(log, part) {
			t.Errorf("the line %q lacks %s", log, part)
		}
	}
}

func TestAWakeLeavesNoReply(t *testing.T) {
	t.Parallel()
	const body = `{"ok":true,"action":"wake","agent":"assistant","session":"room","reply":null,"delivered":null`
	var recorded message.Outcome
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Action, h.Agent, h.Session, h.IdempotencyKey = message.ActionWake, "assistant", "{{ payload.room }}", "{{ payload.id }}"
	})
	f.pipeline.process = func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
		if recorded.Action != "" {
			return message.Receipt{State: message.Processed, Outcome: recorded}, nil
		}
		receipt, err := run(ctx, m, p)
		recorded = receipt.Outcome
		return receipt, err
	}
	wantAnswer(t, f.post(t, `{"id":1,"room":"room","text":"private words"}`, nil), 200, body+`}`)
	if want := (message.Outcome{Action: message.ActionWake, Agent: "assistant", Session: "room"}); !reflect.DeepEqual(recorded, want) {
		t.Errorf("the run left %+v, want %+v: nothing of the reply", recorded, want)
	}
	wantAnswer(t, f.post(t, `{"id":1,"room":"room","text":"private words"}`, nil), 200, body+`,"deduplicated":true}`)
	if a, b := f.pipeline.messages[0], f.pipeline.messages[1]; a.Key.ID != "1" || a.Key != b.Key || a.Text != "private words" {
		t.Errorf("messages %+v and %+v, want one key and the text, as for an agent", a, b)
	}
	wantAnswer(t, f.post(t, "", nil), 200, `{"ok":true,"skipped":"empty"}`)
	if f.runs() != 2 {
		t.Errorf("an empty body woke the agent")
	}
}

func TestAWakeThatFailsRunsAgain(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, d *hooks.Deps) {
		h.Action = message.ActionWake
		d.Agents = func(string) (message.Runner, bool) { return failing{}, true }
	})
	var left message.Outcome
	f.pipeline.process = func(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error) {
		receipt, err := run(ctx, m, p)
		left = receipt.Outcome
		return receipt, err
	}
	wantAnswer(t, f.post(t, `{"id":1}`, nil), 504, `{"ok":false,"error":"run timed out"}`)
	if left.Action != "" {
		t.Errorf("a failed run left %+v", left)
	}
}

// failing is a Runner that runs out of time.
type failing struct{}

func (failing) Run(context.Context, message.Turn) (message.Outcome, error) {
	return message.Outcome{}, fmt.Errorf("agent: %w", message.ErrTimeout)
}
