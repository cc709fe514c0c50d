package main

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
)

// everyGuard is a gateway with a hook for every way to guard one.
const everyGuard = `
gateway: {auth_token: operator-token, public_url: 'https://bot.example/api'}
hooks:
  hooks:
    - {path: plain, idempotency_key: '{{ payload.id }}'}
    - {path: token, auth: hook-token, fingerprint: off}
    - {path: named, auth: {bob: token-b, alice: token-a}, accept_idempotency_key: true}
    - {path: github, signature: {scheme: github, secrets: [test-secret]}, event: '{{ header.X-GitHub-Event }}', events: [push, issues]}
    - {path: slack, auth: hook-token, signature: {scheme: slack, secrets: [test-secret]}}
    - {path: stripe, signature: {scheme: stripe, secrets: [test-secret]}}
    - {path: standard, signature: {scheme: standard, secrets: [whsec_dGVzdC1zZWNyZXQ=]}}
    - {path: square, signature: {scheme: hmac-base64, header: X-Square, signed_url: before, secrets: [test-secret]}}
    - {path: away, action: forward, target: 'http://127.0.0.1:1/in'}
agents: {assistant: {}}
`

func TestHooksList(t *testing.T) {
	t.Parallel()
	file := writeFile(t, everyGuard)
	got := runIn(t, "", nil, "hooks", "list", "-c", file, "--json")
	var list struct{ Hooks []hookRow }
	if err := json.Unmarshal([]byte(got.out), &list); err != nil || got.code != exitOK || len(list.Hooks) != 9 {
		t.Fatalf("%+v: %v", got, err)
	}
	want := map[string]struct{ guards, key string }{
		"plain":    {"gateway.auth_token", "{{ payload.id }}"},
		"token":    {"its own token", ""},
		"named":    {"token of alice, bob", "Idempotency-Key header, else content, for 5m0s"},
		"github":   {"signature github", "content, for 5m0s"},
		"slack":    {"signature slack+its own token", "content, for 6m1s"},
		"stripe":   {"signature stripe", "content, for 6m1s"},
		"standard": {"signature standard", "content, for 6m1s"},
		"square":   {"signature hmac-base64", "content, for 5m0s"},
		"away":     {"gateway.auth_token", "content, for 5m0s"},
	}
	for _, h := range list.Hooks {
		if w := want[h.Path]; strings.Join(h.Guards, "+") != w.guards || h.Key != w.key || h.URL != "https://bot.example/api/hooks/"+h.Path || h.Open {
			t.Errorf("%+v, want %+v", h, w)
		}
	}
	table := runIn(t, "", nil, "hooks", "list", "-c", file).out
	for _, part := range []string{"URL ", "https://bot.example/api/hooks/github", "agent assistant", "signature slack and its own token", "push issues", "none", "forward"} {
		if !strings.Contains(table, part) {
			t.Errorf("the table lacks %q:\n%s", part, table)
		}
	}
}

func TestHooksListTellsOpenFromClosed(t *testing.T) {
	t.Parallel()
	const hook = "hooks: {hooks: [{path: a}]}\nagents: {one: {}}\n"
	for text, part := range map[string]string{
		hook: "http://127.0.0.1:8765/hooks/a  agent one  nothing: open to this machine",
		"gateway: {public_url: 'https://bot.example'}\n" + hook: "nothing, so it is closed: set gateway.auth_token",
		"gateway: {host: 0.0.0.0, auth_token: t}\n" + hook:      "http://localhost:8765/hooks/a  agent one  gateway.auth_token",
	} {
		if got := runIn(t, "", nil, "hooks", "list", "-c", writeFile(t, text)); !strings.Contains(got.out, part) {
			t.Errorf("%s\nlacks %q", got.out, part)
		}
	}
}

func TestHooksSendPassesEveryGuard(t *testing.T) {
	t.Parallel()
	file := writeFile(t, everyGuard)
	server := httptest.NewServer(assembled(t, everyGuard).handler)
	defer server.Close()
	for _, path := range []string{"plain", "token", "named", "github", "slack", "stripe", "standard", "square"} {
		got := runIn(t, "", nil, "hooks", "send", path, "-c", file, "--url", server.URL, "-H", "X-GitHub-Event: push")
		if got.code != exitOK || !strings.HasPrefix(got.out, "200 OK") {
			t.Errorf("%s: %+v", path, got)
		}
	}
	got := runIn(t, "text=hi+there", nil, "hooks", "send", "token", "-c", file, "--url", server.URL, "--body", "-", "-H", "Content-Type: application/x-www-form-urlencoded")
	if got.code != exitOK || !strings.Contains(got.out, `"reply":"hi there"`) {
		t.Errorf("a form: %+v", got)
	}
	if got := runIn(t, "", nil, "hooks", "send", "away", "-c", file, "--url", server.URL); got.code != exitError || !strings.HasPrefix(got.out, "502 ") {
		t.Errorf("a target that is away: %+v", got)
	}
}
