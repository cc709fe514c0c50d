package hooks_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

func validHook() hooks.Hook {
	h := hooks.DefaultHook()
	h.Path = "x"
	return h
}

func validForward() hooks.Hook {
	h := validHook()
	h.Action, h.Target = message.ActionForward, "https://target.example/in"
	return h
}

func TestValidate(t *testing.T) {
	t.Parallel()
	duration := func(d time.Duration) *time.Duration { return &d }
	agent := func(change func(*hooks.Hook)) hooks.Hook { h := validHook(); change(&h); return h }
	forward := func(change func(*hooks.Hook)) hooks.Hook { h := validForward(); change(&h); return h }
	for _, test := range []struct {
		name string
		hook hooks.Hook
		want string // lines; empty: valid
	}{
		{"the defaults with a path", validHook(), ""},
		{"a forward with a target", validForward(), ""},
		{"a path of segments", agent(func(h *hooks.Hook) { h.Path = "a/b.c/~d-e_F9" }), ""},
		{"no path", agent(func(h *hooks.Hook) { h.Path = "" }), `hooks[0].path: must not be empty`},
		{"a leading slash", agent(func(h *hooks.Hook) { h.Path = "/a" }), `hooks[0].path: "/a" has an empty segment; write it without a slash at either end`},
		{"a trailing slash", agent(func(h *hooks.Hook) { h.Path = "a/" }), `hooks[0].path: "a/" has an empty segment; write it without a slash at either end`},
		{"a parent segment", agent(func(h *hooks.Hook) { h.Path = "a/../b" }), `hooks[0].path: "a/../b" has the segment ".."`},
		{"a dot segment", agent(func(h *hooks.Hook) { h.Path = "." }), `hooks[0].path: "." has the segment "."`},
		{
			"an escape", agent(func(h *hooks.Hook) { h.Path = "a%2Fb" }),
			`hooks[0].path: "a%2Fb" may hold only letters, digits, ".", "_", "~", "-" and "/" between segments`,
		},
		{"an unknown action", agent(func(h *hooks.Hook) { h.Action = "run" }), `hooks[0].action: "run" is not one of agent, forward, wake`},
		{
			"a wake with all that an agent may have", agent(func(h *hooks.Hook) {
				h.Action, h.Agent, h.Session, h.Message = message.ActionWake, "assistant", "{{ payload.s }}", "Look at {{ payload.n }}"
			}), "",
		},
		{
			"forward keys with wake", agent(func(h *hooks.Hook) {
				h.Action, h.Target, h.ResponseHeaders, h.SoftFailure = message.ActionWake, "https://a.example", []string{"Location"}, false
				h.Headers = map[string]secret.String{"A": secret.New("v")}
			}),
			"hooks[0].target: does nothing with action wake\nhooks[0].headers: does nothing with action wake\n" +
				"hooks[0].response_headers: does nothing with action wake\nhooks[0].soft_failure: does nothing with action wake",
		},
		{
			"forward keys without forward", agent(func(h *hooks.Hook) {
				h.Target, h.ResponseHeaders = "https://a.example", []string{"Location"}
				h.Headers = map[string]secret.String{"A": secret.New("v")}
			}),
			"hooks[0].target: does nothing with action agent\nhooks[0].headers: does nothing with action agent\nhooks[0].response_headers: does nothing with action agent",
		},
		{
			"agent keys with forward", forward(func(h *hooks.Hook) { h.Agent, h.Message = "a", "m" }),
			"hooks[0].agent: does nothing with action forward\nhooks[0].message: does nothing with action forward",
		},
		{"no target", forward(func(h *hooks.Hook) { h.Target = "" }), `hooks[0].target: is required with action forward`},
		{"a target without a scheme", forward(func(h *hooks.Hook) { h.Target = "target.example" }), `hooks[0].target: is not an http or https URL with a host`},
		{"a target of another scheme", forward(func(h *hooks.Hook) { h.Target = "ftp://u:pass@h" }), `hooks[0].target: is not an http or https URL with a host`},
		{"a target with a password", forward(func(h *hooks.Hook) { h.Target = "http://u:pass@h/" }), `hooks[0].target: holds a user or password, which would be printed; send an Authorization header with headers instead`},
		{"a target that is no URL", forward(func(h *hooks.Hook) { h.Target = "http://u:pass@h:x/" }), `hooks[0].target: is not an http or https URL with a host`},
		{
			"headers", forward(func(h *hooks.Hook) {
				h.Headers = map[string]secret.String{"A b": {}, "content-length": {}, "X": secret.New("a\r\nb"), "x": {}}
				h.ResponseHeaders = []string{"Location", "", "connection"}
			}),
			"hooks[0].headers: \"A b\" is not the name of a header\n" +
				"hooks[0].headers: the value of X holds a line break or another control character\n" +
				"hooks[0].headers: content-length is set by the gateway\n" +
				"hooks[0].headers: X and x are the same header\n" +
				"hooks[0].response_headers: \"\" is not the name of a header\n" +
				"hooks[0].response_headers: connection is set by the gateway",
		},
		{"an empty token", agent(func(h *hooks.Hook) { h.Auth = &hooks.Tokens{} }), `hooks[0].auth: is empty; leave the key out to require the gateway's token`},
		{
			"a signature of nothing", agent(func(h *hooks.Hook) { h.Signature = &signature.Config{Scheme: "slack"} }),
			"hooks[0].signature.secrets: must name at least one secret",
		},
		{
			"secrets that can be guessed", agent(func(h *hooks.Hook) { h.Signature = github("12345678", "", "1234567") }),
			"hooks[0].signature.secrets[1]: has 0 bytes; use at least 8\nhooks[0].signature.secrets[2]: has 7 bytes; use at least 8",
		},
		{
			"bad templates", agent(func(h *hooks.Hook) { h.Channel, h.Session = "{{ x }}", "{{ payload.a" }),
			"hooks[0].channel: at character 1: \"{{ x }}\" begins with none of payload, header, query\n" +
				"hooks[0].session: at character 1: \"{{ payload.a\" has no closing }}",
		},
		{
			"a key that is the same for all", agent(func(h *hooks.Hook) { h.IdempotencyKey = "job" }),
			`hooks[0].idempotency_key: "job" has no {{ }} part, so that every message would be a duplicate of the first`,
		},
		{"an unknown answer to duplicates", agent(func(h *hooks.Hook) { h.OnDuplicate = "ack" }), `hooks[0].on_duplicate: "ack" is not one of conflict, wait`},
		{"no time to wait", agent(func(h *hooks.Hook) { h.WaitTimeout = 0 }), `hooks[0].wait_timeout: 0s is no time to wait; leave the key out for the default`},
		{
			"durations below a second", agent(func(h *hooks.Hook) {
				h.Lease, h.TTL, h.AcceptIdempotencyKey = duration(0), duration(500*time.Millisecond), true
			}),
			"hooks[0].lease: 0s is shorter than 1s; leave the key out for the default\nhooks[0].ttl: 500ms is shorter than 1s; leave the key out for the default",
		},
		{
			"a window for no key", agent(func(h *hooks.Hook) { h.TTL = duration(time.Hour) }),
			`hooks[0].ttl: does nothing without idempotency_key or accept_idempotency_key; how long content alone is known is fingerprint.window`,
		},
		{"named tokens", agent(func(h *hooks.Hook) {
			h.Auth = &hooks.Tokens{Named: map[string]secret.String{"a-1_B.c": secret.New("x"), "b": secret.New("y")}}
		}), ""},
		{
			"tokens that tell nobody apart", agent(func(h *hooks.Hook) {
				h.Auth = &hooks.Tokens{Named: map[string]secret.String{"a": secret.New("same"), "b": secret.New("same"), "c": {}, "d:e": secret.New("x")}}
			}),
			"hooks[0].auth.b: is the token of a too, so that nobody could tell who sent a request\n" +
				"hooks[0].auth.c: is empty; a secret that is set must not be\n" +
				`hooks[0].auth: the name "d:e", which becomes a part of keys, may hold only letters, digits, ".", "_" and "-"`,
		},
		{
			"tokens with a line break", agent(func(h *hooks.Hook) { h.Auth = &hooks.Tokens{Only: secret.New("hook-token\n")} }),
			"hooks[0].auth: has space or a line break at an end, as texts read from a file often do; no request could carry it",
		},
		{
			"a named token with a line break", agent(func(h *hooks.Hook) {
				h.Auth = &hooks.Tokens{Named: map[string]secret.String{"a": secret.New("hook-token\n")}}
			}),
			"hooks[0].auth.a: has space or a line break at an end, as texts read from a file often do; no request could carry it",
		},
		{
			"no named token", agent(func(h *hooks.Hook) { h.Auth = &hooks.Tokens{Named: map[string]secret.String{}} }),
			"hooks[0].auth: names no token; leave the key out to require the gateway's",
		},
		{"events", agent(func(h *hooks.Hook) { h.Event, h.Events = "{{ payload.type }}", []string{"a"} }), ""},
		{"events of nothing", agent(func(h *hooks.Hook) { h.Events = []string{"a"} }), "hooks[0].events: does nothing without event, the template that is looked up in it"},
		{"an event for nothing", agent(func(h *hooks.Hook) { h.Event = "{{ payload.type }}" }), "hooks[0].event: does nothing without events, the list of those that run"},
		{
			"an event that is always the same", agent(func(h *hooks.Hook) { h.Event, h.Events = "a", []string{"a"} }),
			`hooks[0].event: "a" has no {{ }} part, so that every message would be the same event`,
		},
		{"a caller's key that is none", agent(func(h *hooks.Hook) { h.CallerKey = true }), "hooks[0].caller_key: does nothing without idempotency_key"},
		{"a soft failure of an agent", agent(func(h *hooks.Hook) { h.SoftFailure = false }), "hooks[0].soft_failure: does nothing with action agent"},
		{
			"a fingerprint beside a key", agent(func(h *hooks.Hook) {
				h.IdempotencyKey, h.Fingerprint = "{{ payload.id }}", &hooks.Fingerprint{Mode: "off"}
			}),
			"hooks[0].fingerprint: does nothing beside idempotency_key; a message without that key runs without deduplication",
		},
		{
			"a fingerprint in another mode", agent(func(h *hooks.Hook) { h.Fingerprint = &hooks.Fingerprint{Mode: "on"} }),
			`hooks[0].fingerprint: "on" is neither off nor a section with fields and window`,
		},
		{
			"a key that nothing can be", agent(func(h *hooks.Hook) { h.RequireKey, h.Fingerprint = true, &hooks.Fingerprint{Mode: "off"} }),
			"hooks[0].fingerprint: off leaves no message a key, and require_key refuses those; set idempotency_key or accept_idempotency_key",
		},
		{
			"a fingerprint of nothing, for no time", agent(func(h *hooks.Hook) {
				h.Fingerprint = &hooks.Fingerprint{Fields: []string{"text", "{{ x }}"}, Window: duration(0)}
			}),
			"hooks[0].fingerprint.fields[1]: at character 1: \"{{ x }}\" begins with none of payload, header, query\n" +
				"hooks[0].fingerprint.window: 0s is shorter than 1s; leave the key out for the default\n" +
				`hooks[0].fingerprint.fields[0]: "text" has no {{ }} part, so that it tells no two messages apart`,
		},
		{"a challenge", agent(func(h *hooks.Hook) { h.Challenge = &hooks.Challenge{Param: "challenge"} }), ""},
		{
			"a challenge of nothing", agent(func(h *hooks.Hook) { h.Challenge = &hooks.Challenge{VerifyParam: "t"} }),
			"hooks[0].challenge.param: must name the query parameter to echo\nhooks[0].challenge.verify_token: must not be empty; it is what verify_param is compared with",
		},
		{
			"a challenge with a token from nowhere", agent(func(h *hooks.Hook) { h.Challenge = &hooks.Challenge{Param: "c", VerifyToken: secret.New("vt")} }),
			"hooks[0].challenge.verify_param: must name the query parameter that holds the token",
		},
		{
			"a challenge that echoes its token", agent(func(h *hooks.Hook) {
				h.Challenge = &hooks.Challenge{Param: "t", VerifyParam: "t", VerifyToken: secret.New("vt")}
			}),
			"hooks[0].challenge.verify_param: is the parameter to echo; the token would be echoed",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := (hooks.Config{Hooks: []hooks.Hook{test.hook}}).Validate(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("Validate() =\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestValidateFindsTheSamePathTwice(t *testing.T) {
	t.Parallel()
	err := hooks.Config{Hooks: []hooks.Hook{validHook(), validForward()}}.Validate()
	if want := `hooks[1].path: "x" is already the path of hooks[0]`; err == nil || err.Error() != want {
		t.Errorf("Validate() = %v, want %s", err, want)
	}
}

func TestNewRefusesAnUnknownAgent(t *testing.T) {
	t.Parallel()
	for _, action := range []string{message.ActionAgent, message.ActionWake} {
		h := validHook()
		h.Action, h.Agent = action, "nobody"
		_, err := hooks.New(hooks.Config{Hooks: []hooks.Hook{h}}, hooks.Deps{
			Agents: func(string) (message.Runner, bool) { return nil, false },
		})
		if err == nil || !strings.Contains(err.Error(), `hooks[0].agent: there is no agent "nobody"`) {
			t.Errorf("New() with action %s = %v, want an error that names the agent", action, err)
		}
	}
}

func TestWhatDepsLeaveOutIsAsInTheGateway(t *testing.T) {
	t.Parallel()
	defaults := gateway.DefaultConfig()
	h := validHook()
	h.Auth = &hooks.Tokens{Only: secret.New("hook-token")}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	deps := hooks.Deps{
		Pipeline: &fakePipeline{},
		Agents:   func(string) (message.Runner, bool) { return echo{}, true },
		Now:      func() time.Time { return now },
	}
	handler, err := hooks.New(hooks.Config{Hooks: []hooks.Hook{h}}, deps)
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	t.Cleanup(handler.Close)
	status := func(token, body string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/x", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("X-Forwarded-For", token) // of no trusted proxy
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	limit := int(defaults.MaxBodyBytes)
	for body, want := range map[string]int{strings.Repeat("1", limit): 200, strings.Repeat("1", limit+1): 413} {
		if got := status("hook-token", body); got != want {
			t.Errorf("status of %d bytes = %d, want %d", len(body), got, want)
		}
	}
	fail := func(i int) int { return status(fmt.Sprintf("192.0.2.%d", i), `{}`) }
	for i := range defaults.AuthFailures.Limit {
		if got := fail(i); got != 401 {
			t.Fatalf("status of failure %d = %d, want 401", i+1, got)
		}
	}
	for _, step := range []struct {
		later time.Duration
		want  int
	}{{0, 429}, {defaults.AuthFailures.Window - 1, 429}, {1, 401}} {
		now = now.Add(step.later)
		if got := fail(99); got != step.want {
			t.Errorf("status of a failure %s later = %d, want %d", step.later, got, step.want)
		}
	}
}

func TestAHandlerNeedsNoMoreThanAPipelineAndAgents(t *testing.T) {
	t.Parallel()
	h := validHook()
	h.Signature = &signature.Config{Scheme: signature.HMACHex, Header: "X-Sig", Secrets: secrets("12345678")}
	for range 2 { // what the first counts is not in the second's way
		f := &fakePipeline{}
		handler, err := hooks.New(hooks.Config{Hooks: []hooks.Hook{h}}, hooks.Deps{
			Pipeline: f, Agents: func(string) (message.Runner, bool) { return echo{}, true },
		})
		if err != nil {
			t.Fatalf("New() = %v", err)
		}
		t.Cleanup(handler.Close)
		for body, want := range map[string]int{`{}`: 200, `{"forged":1}`: 401} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/x", strings.NewReader(body))
			if err := h.Sign(r.Header, signature.Content{Body: []byte(`{}`)}, secret.String{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("status of %s under the signature of {} = %d, want %d", body, w.Code, want)
			}
		}
	}
	h.Signature.SignedURL = "before"
	_, err := hooks.New(hooks.Config{Hooks: []hooks.Hook{h}}, hooks.Deps{
		Pipeline: &fakePipeline{}, Agents: func(string) (message.Runner, bool) { return echo{}, true },
	})
	if err == nil || !strings.Contains(err.Error(), "hooks[0].signature.signed_url: needs a public URL") {
		t.Errorf("New() without a URL that a hook's sender signs = %v, want it refused", err)
	}
}

func TestB99_AFreshnessWindowIsShorterThanTheRecordWindow(t *testing.T) {
	t.Parallel()
	hours := func(n time.Duration) *time.Duration { n *= time.Hour; return &n }
	for _, test := range []struct {
		name   string
		change func(*hooks.Hook)
		want   string
	}{
		{"5 minutes of 24 hours", func(*hooks.Hook) {}, ""},
		{
			"48 hours of 24", func(h *hooks.Hook) { h.Signature.MaxAge = hours(48) },
			"hooks[0].signature.max_age: with max_future, a request passes for 48h1m0s, and its message is known for 24h0m0s (ttl): a copy of it would run again after that; shorten max_age or lengthen ttl",
		},
		{"48 hours of the hook's own 72", func(h *hooks.Hook) { h.Signature.MaxAge, h.TTL = hours(48), hours(72) }, ""},
		{
			"exactly as long", func(h *hooks.Hook) { h.Signature.MaxAge, h.Signature.MaxFuture = hours(12), hours(12) },
			"hooks[0].signature.max_age: with max_future, a request passes for 24h0m0s, and its message is known for 24h0m0s (ttl): a copy of it would run again after that; shorten max_age or lengthen ttl",
		},
		{"content is known as long as it takes", func(h *hooks.Hook) { h.IdempotencyKey, h.Signature.MaxAge = "", hours(48) }, ""},
		{
			"content is known for less", func(h *hooks.Hook) {
				h.IdempotencyKey, h.Signature.MaxAge, h.Fingerprint = "", hours(2), &hooks.Fingerprint{Window: hours(1)}
			},
			"hooks[0].signature.max_age: with max_future, a request passes for 2h1m0s, and its message is known for 1h0m0s (fingerprint.window): a copy of it would run again after that; shorten max_age or lengthen fingerprint.window",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := validHook()
			h.IdempotencyKey = "{{ payload.id }}"
			h.Signature = &signature.Config{Scheme: signature.Stripe, Secrets: secrets("12345678")}
			test.change(&h)
			cfg := hooks.DefaultConfig()
			cfg.Hooks = []hooks.Hook{h}
			got := ""
			if err := cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("Validate() =\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}
