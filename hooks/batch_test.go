package hooks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/message"
)

// ids returns the ids of the messages that reached the pipeline, in order.
func (f *fixture) ids() []string {
	f.pipeline.mu.Lock()
	defer f.pipeline.mu.Unlock()
	var ids []string
	for _, m := range f.pipeline.messages {
		ids = append(ids, m.Key.ID)
	}
	return ids
}

func TestEveryElementOfAnArrayIsAMessage(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.IdempotencyKey, h.Message = "{{ payload.id }}", "{{ payload.text }}"
	})
	resp := f.post(t, ` [ {"id":"a","text":"one"} , {"id":"b","text":"two"} ] `, nil)
	wantAnswer(t, resp, 200, `{"ok":true,"messages":[`+
		`{"status":200,"answer":{"ok":true,"action":"agent","agent":"assistant","session":null,"reply":"one","delivered":null}},`+
		`{"status":200,"answer":{"ok":true,"action":"agent","agent":"assistant","session":null,"reply":"two","delivered":null}}]}`)
	if got := f.ids(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("ids = %q, want a and b in that order", got)
	}
	for i, want := range []string{`{"id":"a","text":"one"}`, `{"id":"b","text":"two"}`} {
		if m := f.pipeline.messages[i]; string(m.Body) != want || m.ContentType != "application/json" {
			t.Errorf("message %d has the body %s of type %s, want %s", i, m.Body, m.ContentType, want)
		}
	}
	if got := f.counter(t, "gateway_hook_requests_total", "done"); got != 2 {
		t.Errorf("messages counted as done = %g, want 2", got)
	}
}

func TestAnArrayOfOneIsABatchToo(t *testing.T) {
	t.Parallel()
	f := build(t, nil)
	resp := f.post(t, `[{"text":"t"}]`, nil)
	if body := readAll(t, resp); !strings.HasPrefix(body, `{"ok":true,"messages":[{"status":200,`) {
		t.Errorf("answer = %s, want a list of one", body)
	}
}

func TestAnEmptyArrayRunsNothing(t *testing.T) {
	t.Parallel()
	f := build(t, nil)
	wantAnswer(t, f.post(t, ` [ ] `, nil), 200, `{"ok":true,"skipped":"empty"}`)
	if f.runs() != 0 {
		t.Error("an empty array ran")
	}
}

func TestAHookThatIndexesTheArrayTakesItAsOneMessage(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.IdempotencyKey = "{{ payload[0].id }}-{{ payload[1].id }}" })
	f.post(t, `[{"id":"a"},{"id":"b"}]`, nil)
	if got := f.message(t).Key.ID; got != "a-b" {
		t.Errorf("id = %q, want a-b", got)
	}
}

// A key that the whole request has in common must not make duplicates of its
// messages: those behind the first would be lost.
func TestMessagesOfABatchNeverShareAKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*hooks.Hook)
		want   []string
	}{
		{"of the caller", func(h *hooks.Hook) { h.AcceptIdempotencyKey = true }, []string{"[0]:key::k", "[1]:key::k"}},
		{"of a header", func(h *hooks.Hook) { h.IdempotencyKey = "{{ header.X-Delivery }}" }, []string{"[0]:d", "[1]:d"}},
		{"of fields that the request has in common", func(h *hooks.Hook) {
			h.Fingerprint = &hooks.Fingerprint{Fields: []string{"{{ header.X-Delivery }}"}}
		}, nil},
		{"of the payload", func(h *hooks.Hook) { h.IdempotencyKey = "{{ header.X-Delivery }}-{{ payload.id }}" }, []string{"d-1", "d-2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { test.change(h) })
			f.post(t, `[{"id":1},{"id":2}]`, func(r *http.Request) {
				r.Header.Set("Idempotency-Key", "k")
				r.Header.Set("X-Delivery", "d")
			})
			got := f.ids()
			if test.want != nil && !slices.Equal(got, test.want) || len(got) != 2 || got[0] == got[1] {
				t.Errorf("ids = %q, want %q, or two different ones", got, test.want)
			}
		})
	}
}

func TestABatchIsAnsweredByItsMostUrgentMessage(t *testing.T) {
	t.Parallel()
	outcomes := map[string]struct {
		receipt message.Receipt
		err     error
	}{
		"done":      {message.Receipt{State: message.New, Outcome: message.Outcome{Action: message.ActionAgent}}, nil},
		"duplicate": {message.Receipt{State: message.Processed, Outcome: message.Outcome{Action: message.ActionAgent}}, nil},
		"running":   {message.Receipt{State: message.InFlight, RetryAfter: 3 * time.Second}, nil},
		"reused":    {message.Receipt{State: message.Processed, Mismatch: true}, nil},
		"failed":    {message.Receipt{State: message.New}, message.ErrRun},
		"draining":  {message.Receipt{}, message.ErrDraining},
	}
	for _, test := range []struct {
		messages   []string
		status     int
		retryAfter string
		state      string
	}{
		{[]string{"done", "duplicate"}, 200, "", "new"},
		{[]string{"duplicate", "duplicate"}, 200, "", "processed"},
		{[]string{"done", "reused"}, 422, "", "new"},
		{[]string{"reused", "running", "done"}, 409, "3", "in_flight"},
		{[]string{"failed", "running"}, 502, "3", "in_flight"},
		{[]string{"done", "draining"}, 503, "5", "new"},
	} {
		t.Run(strings.Join(test.messages, ","), func(t *testing.T) {
			t.Parallel()
			f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.IdempotencyKey, h.CallerKey = "{{ payload }}", true })
			f.pipeline.process = func(_ context.Context, m message.Message, _ message.Policy) (message.Receipt, error) {
				o := outcomes[m.Key.ID]
				return o.receipt, o.err
			}
			resp := f.post(t, mustJSON(t, test.messages), nil)
			var body struct {
				OK       bool
				Messages []struct{ Status int }
			}
			if err := json.Unmarshal([]byte(readAll(t, resp)), &body); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != test.status || body.OK != (test.status == 200) || len(body.Messages) != len(test.messages) {
				t.Errorf("answer = %d, %+v, want %d for %d messages", resp.StatusCode, body, test.status, len(test.messages))
			}
			if got := resp.Header.Get("Retry-After"); got != test.retryAfter {
				t.Errorf("Retry-After = %q, want %q", got, test.retryAfter)
			}
			if got := resp.Header.Get("X-Idempotency-Status"); got != test.state {
				t.Errorf("X-Idempotency-Status = %q, want %q", got, test.state)
			}
		})
	}
}

func TestABatchIsBounded(t *testing.T) {
	t.Parallel()
	f := build(t, nil)
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("1,", n), ",") + "]" }
	if got := f.post(t, list(1000), nil).StatusCode; got != 200 {
		t.Errorf("status of 1000 messages = %d, want 200", got)
	}
	wantAnswer(t, f.post(t, list(1001), nil), 413, `{"ok":false,"error":"more than 1000 messages in one request"}`)
	if got := f.runs(); got != 1000 {
		t.Errorf("%d messages ran, want those of the first request alone", got)
	}
}

func TestABatchEndsWhereTheSenderHangsUp(t *testing.T) {
	t.Parallel()
	f := build(t, nil)
	ctx, hangUp := context.WithCancel(t.Context())
	f.pipeline.process = func(context.Context, message.Message, message.Policy) (message.Receipt, error) {
		hangUp()
		return message.Receipt{State: message.New}, nil
	}
	f.post(t, `[1,2,3]`, func(r *http.Request) { *r = *r.WithContext(ctx) })
	if got := f.runs(); got != 1 {
		t.Errorf("%d messages ran, want the one before the sender left", got)
	}
}

func TestTheAnswersOfABatchAreBoundedTogether(t *testing.T) {
	t.Parallel()
	f := forwarding(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 400)) },
		func(_ *hooks.Hook, d *hooks.Deps) { d.MaxBody = 1000 })
	var body struct {
		Messages []struct{ Answer json.RawMessage }
	}
	if err := json.Unmarshal([]byte(readAll(t, f.post(t, `[1,2,3,4]`, nil))), &body); err != nil {
		t.Fatal(err)
	}
	omitted := 0
	for _, m := range body.Messages {
		if string(m.Answer) == `{"ok":true,"reply_omitted":true}` {
			omitted++
		}
	}
	if len(body.Messages) != 4 || omitted != 2 {
		t.Errorf("%d of %d answers are omitted, want those that do not fit into 1000 bytes", omitted, len(body.Messages))
	}
}

func TestForwardedBatchKeepsTheTargetsAnswers(t *testing.T) {
	t.Parallel()
	f := forwarding(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "got %s", readAll(t, &http.Response{Body: r.Body}))
	}, nil)
	resp := f.post(t, `["a",{"b":1}]`, nil)
	wantAnswer(t, resp, 200, `{"ok":true,"messages":[{"status":201,"answer":"got \"a\""},{"status":201,"answer":"got {\"b\":1}"}]}`)
}
