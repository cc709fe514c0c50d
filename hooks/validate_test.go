package hooks_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/hooks"
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
	text := func(s string) *secret.String { v := secret.New(s); return &v }
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
		{"an unknown action", agent(func(h *hooks.Hook) { h.Action = "wake" }), `hooks[0].action: "wake" is not one of agent, forward`},
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
		{"an empty token", agent(func(h *hooks.Hook) { h.Auth = text("") }), `hooks[0].auth: is empty; leave the key out to require the gateway's token`},
		{
			"a signature of nothing", agent(func(h *hooks.Hook) { h.Signature = &hooks.Signature{Scheme: "slack"} }),
			"hooks[0].signature.scheme: \"slack\" is not one of github\nhooks[0].signature.secrets: must name at least one secret",
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
			`hooks[0].ttl: does nothing without idempotency_key or accept_idempotency_key; content alone is known for 5m0s`,
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
	h := validHook()
	h.Agent = "nobody"
	_, err := hooks.New(hooks.Config{Hooks: []hooks.Hook{h}}, hooks.Deps{
		Agents:  func(string) (message.Runner, bool) { return nil, false },
		Log:     slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	})
	if err == nil || !strings.Contains(err.Error(), `hooks[0].agent: there is no agent "nobody"`) {
		t.Errorf("New() = %v, want an error that names the agent", err)
	}
}
