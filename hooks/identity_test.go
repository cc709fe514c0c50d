package hooks_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

func TestIdentity(t *testing.T) {
	t.Parallel()
	type request struct {
		body   string
		header http.Header
	}
	key := func(id string) message.Key { return message.Key{Platform: "hook", Channel: "x", ID: id} }
	for _, test := range []struct {
		name   string
		change func(*hooks.Hook)
		request
		want   message.Key
		caller bool
		silent bool // the body says nothing, so that the hook needs a text of its own
	}{
		{
			name:    "the template names the message",
			change:  func(h *hooks.Hook) { h.IdempotencyKey = "comment:{{ payload.comment.id }}" },
			request: request{body: `{"comment":{"id":700001}}`}, want: key("comment:700001"),
		},
		{
			name: "every part of the key is a template",
			change: func(h *hooks.Hook) {
				h.Platform, h.Account, h.Channel = "git-{{ query.env }}", "{{ payload.installation.id }}", "{{ payload.repo }}#{{ payload.n }}"
				h.IdempotencyKey = "{{ header.x-github-delivery }}"
			},
			request: request{`{"installation":{"id":4400001},"repo":"a/b","n":12}`, http.Header{"X-Github-Delivery": {"d-1"}}},
			want:    message.Key{Platform: "git-live", Account: "4400001", Channel: "a/b#12", ID: "d-1"},
		},
		{
			name:    "a caller's key comes before the template",
			change:  func(h *hooks.Hook) { h.AcceptIdempotencyKey, h.IdempotencyKey = true, "{{ payload.id }}" },
			request: request{`{"id":1}`, http.Header{"Idempotency-Key": {"abc 1"}}}, want: key("key::abc 1"), caller: true,
		},
		{
			name:    "without a caller's key the template counts",
			change:  func(h *hooks.Hook) { h.AcceptIdempotencyKey, h.IdempotencyKey = true, "{{ payload.id }}" },
			request: request{body: `{"id":1}`}, want: key("1"),
		},
		{
			name:    "a caller's key is ignored where it is not accepted",
			change:  func(h *hooks.Hook) { h.IdempotencyKey = "{{ payload.id }}" },
			request: request{`{"id":1}`, http.Header{"Idempotency-Key": {""}}}, want: key("1"),
		},
		{
			name: "an absent part means no key", change: func(h *hooks.Hook) { h.IdempotencyKey = "c:{{ payload.id }}" },
			request: request{body: `{"x":1}`},
		},
		{
			name: "a null part means no key", change: func(h *hooks.Hook) { h.IdempotencyKey = "c:{{ payload.id }}" },
			request: request{body: `{"id":null}`},
		},
		{
			name: "an empty part means no key", change: func(h *hooks.Hook) { h.IdempotencyKey = "c:{{ payload.id }}" },
			request: request{body: `{"id":""}`},
		},
		{
			name: "an empty list means no key", change: func(h *hooks.Hook) { h.IdempotencyKey = "c:{{ payload.id }}" },
			request: request{body: `{"id":[ ]}`},
		},
		{
			name: "a body without payload means no key", change: func(h *hooks.Hook) { h.IdempotencyKey = "c:{{ payload.id }}" },
			request: request{body: ``}, silent: true,
		},
		{
			name:    "an absent channel part means no key",
			change:  func(h *hooks.Hook) { h.Channel, h.IdempotencyKey = "{{ payload.chat }}", "{{ payload.id }}" },
			request: request{body: `{"id":1}`},
		},
		{
			name:    "an absent account part means no key, whoever names the message",
			change:  func(h *hooks.Hook) { h.Account, h.AcceptIdempotencyKey = "{{ payload.bot }}", true },
			request: request{`{"id":1}`, http.Header{"Idempotency-Key": {"k"}}}, caller: false,
		},
		{
			name: "false and zero are values", change: func(h *hooks.Hook) { h.IdempotencyKey = "{{ payload.a }}{{ payload.b }}" },
			request: request{body: `{"a":0,"b":false}`}, want: key("0false"),
		},
		{name: "an empty body has no fingerprint", request: request{body: " \n"}, silent: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
				if test.change != nil {
					test.change(h)
				}
				if test.silent {
					h.Message = "look"
				}
			})
			resp := f.post(t, test.body, func(r *http.Request) {
				r.URL.RawQuery = "env=live"
				for name, values := range test.header {
					r.Header[name] = values
				}
			})
			got := f.message(t)
			if got.Key != test.want || got.CallerKey != (test.caller && !test.want.IsZero()) {
				t.Errorf("key = %+v, caller's %t, want %+v, caller's %t", got.Key, got.CallerKey, test.want, test.caller)
			}
			if resp.StatusCode != http.StatusOK {
				t.Errorf("status = %d, want 200", resp.StatusCode)
			}
			keyless := 0.0
			if test.want.IsZero() {
				keyless = 1
			}
			if n := f.counter(t, "gateway_unkeyed_messages_total", ""); n != keyless {
				t.Errorf("messages without key counted = %g, want %g", n, keyless)
			}
		})
	}
}

func TestRequiredKey(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.RequireKey, h.IdempotencyKey = true, "{{ payload.a.id }}{{ header.x-b }}"
	})
	resp := f.post(t, `{"a":{"id":null,"text":"private words"}}`, nil)
	wantAnswer(t, resp, 400, `{"ok":false,"error":"request has no idempotency key: missing payload.a.id, header.X-B"}`)
	if f.runs() != 0 {
		t.Errorf("a message without the key that is required ran")
	}
	if n := f.counter(t, "gateway_template_missing_total", "key"); n != 2 {
		t.Errorf("missing parts counted = %g, want 2", n)
	}
	if logs := f.logs.String(); !strings.Contains(logs, "payload.a.id") || strings.Contains(logs, "private words") {
		t.Errorf("the log ought to name the part and not the payload:\n%s", logs)
	}
}

func TestCallerKeyHeader(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		values []string
		status int
	}{
		{"one character", []string{"k"}, 200},
		{"255 characters", []string{strings.Repeat("k", 255)}, 200},
		{"punctuation and inner spaces", []string{`a: "b" ~`}, 200},
		{"empty", []string{""}, 400},
		{"256 characters", []string{strings.Repeat("k", 256)}, 400},
		{"a control character", []string{"a\tb"}, 400},
		{"outside ASCII", []string{"schlüssel"}, 400},
		{"given twice", []string{"a", "a"}, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.AcceptIdempotencyKey = true })
			resp := f.post(t, `{}`, func(r *http.Request) { r.Header["Idempotency-Key"] = test.values })
			if resp.StatusCode != test.status {
				t.Errorf("status = %d %s, want %d", resp.StatusCode, readAll(t, resp), test.status)
			}
		})
	}
}

func TestContentIdentity(t *testing.T) {
	t.Parallel()
	id := func(t *testing.T, body, query string) string {
		t.Helper()
		f := build(t, nil)
		f.post(t, body, func(r *http.Request) { r.URL.RawQuery = query })
		return f.message(t).Key.ID
	}
	t.Run("has its own window from the first delivery", func(t *testing.T) {
		t.Parallel()
		f := build(t, nil)
		f.post(t, `{"a":1}`, nil)
		if p := f.pipeline.policies[0]; p.TTL != 5*time.Minute || !p.FromFirst {
			t.Errorf("window = %s, from the first delivery %t, want 5m0s, true", p.TTL, p.FromFirst)
		}
		if m := f.message(t); !strings.HasPrefix(m.Key.ID, "fp:") || m.Fingerprint != (message.Fingerprint{}) {
			t.Errorf("id = %q with fingerprint %x, want fp:… with none: the id is the content", m.Key.ID, m.Fingerprint)
		}
	})
	t.Run("spacing, order and escapes do not matter", func(t *testing.T) {
		t.Parallel()
		a := id(t, `{"a":[1,"é/"],"b":{"c":null,"d":true}}`, "")
		b := id(t, " {\n\"b\" : { \"d\":true , \"c\":null }, \"a\":[ 1, \"\\u00e9\\/\" ] } ", "")
		if a != b {
			t.Errorf("ids of one content differ: %s, %s", a, b)
		}
	})
	t.Run("everything else does", func(t *testing.T) {
		t.Parallel()
		seen := make(map[string]string)
		for _, body := range []string{
			`{"a":1}`, `{"a":"1"}`, `{"a":1.0}`, `{"a":9007199254740993}`, `{"a":9007199254740992}`, `{"a":[1]}`, `{"a":[[1]]}`, `{"a":[1,1]}`,
			`{"a":[11]}`, `{"a":null}`, `{"a":{}}`, `{"a":[]}`, `{"a":""}`, `{"a":"null"}`, `{"b":1}`, `{"a":1,"b":1}`, `{"a":"\ud800"}`, `{"a":"\ud801"}`,
			`{"a":"\ufffd"}`, "{\"a\":\"\xff\"}", "{\"a\":\"\xfe\"}", `{"a":"x","b":"y"}`, `{"a":"x\",\"b\":\"y"}`, `"a"`, `{"a":["a","b"]}`, `{"a":["a,b"]}`, `1`, `true`,
		} {
			got := id(t, body, "")
			if other, taken := seen[got]; taken {
				t.Errorf("%s and %s have one id", body, other)
			}
			seen[got] = body
		}
	})
	t.Run("the query is part of what was said", func(t *testing.T) {
		t.Parallel()
		if id(t, `{"a":1}`, "text=yes") == id(t, `{"a":1}`, "text=no") {
			t.Errorf("two queries have one id")
		}
	})
	t.Run("values below any sensible depth still count", func(t *testing.T) {
		t.Parallel()
		deep := func(inner string) string { return strings.Repeat("[", 9_000) + inner + strings.Repeat("]", 9_000) }
		long := strings.Repeat("1,", 400_000)
		if id(t, deep(long+"1"), "") == id(t, deep(long+"2"), "") {
			t.Errorf("two values have one id")
		}
	})
	t.Run("of members with one name the last counts", func(t *testing.T) {
		t.Parallel()
		if id(t, `{"a":1,"a":2}`, "") != id(t, `{"a":2}`, "") {
			t.Errorf("a repeated member changes the id")
		}
	})
}

// With an id, the text never matters.
func TestB25_SameTextUnderTwoIDsIsTwoMessages(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.IdempotencyKey = "{{ payload.id }}" })
	f.post(t, `{"id":"a","text":"how is it going?"}`, nil)
	f.post(t, `{"id":"b","text":"how is it going?"}`, nil)
	if a, b := f.pipeline.messages[0], f.pipeline.messages[1]; a.Key == b.Key || a.Text != b.Text {
		t.Errorf("keys %+v and %+v, texts %q and %q; want two keys, one text", a.Key, b.Key, a.Text, b.Text)
	}
}

// The fingerprint reveals other content under a key; who chose the key decides
// what is answered. The pipeline here compares as a store does.
func TestB33_OtherContentUnderAKeyIsNotRun(t *testing.T) {
	t.Parallel()
	comparing := func(f *fixture) *int {
		runs := 0
		first := make(map[idempotency.Key]message.Message)
		f.pipeline.process = func(_ context.Context, m message.Message, _ message.Policy) (message.Receipt, error) {
			outcome := message.Outcome{Action: message.ActionAgent, Agent: "assistant", Reply: "done"}
			held, seen := first[idempotency.EncodeKey(m.Key)]
			if !seen {
				runs++
				first[idempotency.EncodeKey(m.Key)] = m
				return message.Receipt{State: message.New, Outcome: outcome}, nil
			}
			return message.Receipt{State: message.Processed, Outcome: outcome, Mismatch: held.Fingerprint != m.Fingerprint}, nil
		}
		return &runs
	}
	t.Run("a sender's id is answered as a duplicate", func(t *testing.T) {
		t.Parallel()
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.IdempotencyKey = "{{ payload.id }}" })
		runs := comparing(f)
		f.post(t, `{"id":"job-1","text":"a"}`, nil)
		resp := f.post(t, `{"id":"job-1","text":"b"}`, nil)
		if resp.StatusCode != 200 || !strings.Contains(readAll(t, resp), `"deduplicated":true`) || *runs != 1 {
			t.Errorf("status %d after %d runs, want a duplicate after 1", resp.StatusCode, *runs)
		}
	})
	t.Run("a caller's own key is refused", func(t *testing.T) {
		t.Parallel()
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.AcceptIdempotencyKey = true })
		runs := comparing(f)
		withKey := func(r *http.Request) { r.Header.Set("Idempotency-Key", "job-1") }
		f.post(t, `{"text":"a"}`, withKey)
		same, other := f.post(t, `{"text":"a"}`, withKey), f.post(t, `{"text":"b"}`, withKey)
		if same.StatusCode != 200 || other.StatusCode != 422 || *runs != 1 {
			t.Errorf("same content %d, other content %d after %d runs, want 200, 422 after 1", same.StatusCode, other.StatusCode, *runs)
		}
	})
	t.Run("path, query and body are all content", func(t *testing.T) {
		t.Parallel()
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.IdempotencyKey = "{{ payload.id }}" })
		f.post(t, `{"id":1}`, nil)
		f.post(t, `{"id":1}`, nil)
		f.post(t, `{"id":1}`, func(r *http.Request) { r.URL.RawQuery = "a=1" })
		f.post(t, `{"id":1 }`, nil)
		m := f.pipeline.messages
		if m[0].Fingerprint != m[1].Fingerprint || m[0].Fingerprint == m[2].Fingerprint || m[0].Fingerprint == m[3].Fingerprint {
			t.Errorf("fingerprints %x %x %x %x, want the first two alike and the others not", m[0].Fingerprint, m[1].Fingerprint, m[2].Fingerprint, m[3].Fingerprint)
		}
	})
}

func TestB51_PartsOfAKeyStayApart(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Channel, h.IdempotencyKey = "{{ payload.chat }}", "{{ payload.id }}"
	})
	seen := make(map[idempotency.Key]string)
	for _, body := range []string{
		`{"chat":"a:b","id":"c"}`, `{"chat":"a","id":"b:c"}`, `{"chat":"a%3Ab","id":"c"}`, `{"chat":"a|b","id":"c"}`, `{"chat":"a\u0000b","id":"c"}`,
		`{"chat":"{a}","id":"b"}`, `{"chat":"a","id":"b"}`, `{"chat":"b","id":"a"}`, `{"chat":"a","id":"\ud800"}`, `{"chat":"a","id":"\udfff"}`,
		`{"chat":"a","id":"\ufffd"}`, `{"chat":"a","id":"é"}`, `{"chat":"a","id":"e\u0301"}`,
	} {
		f.post(t, body, nil)
		key := idempotency.EncodeKey(f.pipeline.messages[f.runs()-1].Key)
		if other, taken := seen[key]; taken {
			t.Errorf("%s and %s share the key %s", body, other, key)
		}
		seen[key] = body
	}
}

func TestB118_LongNumbersKeepEveryDigit(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.IdempotencyKey, h.Channel, h.Session = "{{ payload.id }}", "{{ payload.chat }}", "s:{{ payload.chat }}"
		h.Message = "{{ payload.n }} {{ payload.all }}"
	})
	f.post(t, `{"id":1234567890123456789,"chat":-1001234567890123456,"n":1.10e+400,"all":{"z":9007199254740993,"a":[0.10, 1E5]}}`, nil)
	m := f.message(t)
	if want := (message.Key{Platform: "hook", Channel: "-1001234567890123456", ID: "1234567890123456789"}); m.Key != want {
		t.Errorf("key = %+v, want %+v", m.Key, want)
	}
	if want := "s:-1001234567890123456"; m.Session != want {
		t.Errorf("session = %q, want %q", m.Session, want)
	}
	if want := `1.10e+400 {"z":9007199254740993,"a":[0.10,1E5]}`; m.Text != want {
		t.Errorf("text = %q, want %q", m.Text, want)
	}
}

func TestContentOfTwoSendersOrHooksIsTwoMessages(t *testing.T) {
	t.Parallel()
	id := func(t *testing.T, path, token string) string {
		t.Helper()
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
			h.Channel = "shared"
			h.Auth = &hooks.Tokens{Named: map[string]secret.String{"alice": secret.New("token-a"), "bob": secret.New("token-b")}}
			h.Path = path
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks/"+path, strings.NewReader(`{"text":"yes"}`))
		r.Header.Set("Authorization", "Bearer "+token)
		f.handler.ServeHTTP(httptest.NewRecorder(), r)
		return f.message(t).Key.ID
	}
	first := id(t, "x", "token-a")
	if again := id(t, "x", "token-a"); again != first {
		t.Errorf("the same again is %s, and was %s", again, first)
	}
	if other := id(t, "x", "token-b"); other == first {
		t.Error("another sender's message is a duplicate")
	}
	if other := id(t, "y", "token-a"); other == first {
		t.Error("another hook's message is a duplicate")
	}
}

func TestATemplateCannotTakeTheKeyOfACaller(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.AcceptIdempotencyKey, h.IdempotencyKey = true, "{{ payload.id }}"
	})
	f.post(t, `{}`, func(r *http.Request) { r.Header.Set("Idempotency-Key", "1") })
	f.post(t, `{"id":"key::1"}`, nil)
	f.post(t, `[{"id":1}]`, func(r *http.Request) { r.Header.Set("Idempotency-Key", "1") })
	f.post(t, `{"id":"[0]:key::1"}`, nil)
	f.post(t, `{"id":"id:key::1"}`, nil)
	ids := f.ids()
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != 5 {
		t.Errorf("%d different ids of 5 messages: %q", n, f.ids())
	}
}

// The query of a signed request is not covered by its signature: a copy with
// another one is the same message.
func TestAnUnsignedQueryMakesNoNewMessageOfACopy(t *testing.T) {
	t.Parallel()
	id := func(t *testing.T, query string) string {
		t.Helper()
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Signature = github(testSecret) })
		f.post(t, `{"a":1}`, func(r *http.Request) {
			r.URL.RawQuery = query
			r.Header.Set("X-Hub-Signature-256", sign(testSecret, `{"a":1}`))
		})
		return f.message(t).Key.ID
	}
	if a, b := id(t, ""), id(t, "n=2"); a != b {
		t.Errorf("ids %s and %s, want one", a, b)
	}
}
