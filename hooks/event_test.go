package hooks_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
)

func TestOnlyListedEventsRun(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Event, h.Events = "{{ header.X-GitHub-Event }}.{{ payload.action }}", []string{"issues.opened", "push."}
		h.RequireKey, h.IdempotencyKey = true, "{{ payload.id }}"
	})
	for _, test := range []struct {
		event, body string
		runs        bool
	}{
		{"issues", `{"id":1,"action":"opened"}`, true},
		{"push", `{"id":2}`, true},
		{"issues", `{"action":"edited"}`, false},
		{"issues", `{"action":"opened "}`, false},
		{"ping", `{"zen":"z"}`, false},
		{"", `{"action":"issues.opened"}`, false},
	} {
		before := f.runs()
		resp := f.post(t, test.body, func(r *http.Request) { r.Header.Set("X-GitHub-Event", test.event) })
		if test.runs != (f.runs() > before) {
			t.Errorf("%s %s: ran = %t, want %t", test.event, test.body, !test.runs, test.runs)
		}
		if !test.runs {
			wantAnswer(t, resp, 200, `{"ok":true,"skipped":"event"}`)
			if got := resp.Header.Get("X-Idempotency-Status"); got != "none" {
				t.Errorf("X-Idempotency-Status = %q, want none", got)
			}
		}
	}
	if got := f.counter(t, "gateway_hook_requests_total", "skipped"); got != 4 {
		t.Errorf("skipped = %g, want 4", got)
	}
	if got := f.counter(t, "gateway_template_missing_total", "event"); got != 3 {
		t.Errorf("missing parts of events = %g, want 3", got)
	}
}

func TestEventsOfABatchAreLookedAtOneByOne(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Event, h.Events = "{{ payload.type }}", []string{"created"} })
	resp := f.post(t, `[{"type":"created"},{"type":"deleted"}]`, nil)
	if body := readAll(t, resp); resp.StatusCode != 200 || f.runs() != 1 {
		t.Errorf("answer = %d %s after %d runs, want one", resp.StatusCode, body, f.runs())
	}
}

func TestCallerKeyTemplate(t *testing.T) {
	t.Parallel()
	for _, callerKey := range []bool{true, false} {
		f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
			h.IdempotencyKey, h.CallerKey = "{{ header.X-Request-Id }}", callerKey
		})
		f.post(t, `{}`, func(r *http.Request) { r.Header.Set("X-Request-Id", "r") })
		if got := f.message(t).CallerKey; got != callerKey {
			t.Errorf("caller_key %t: the key is the caller's = %t", callerKey, got)
		}
	}
}

func TestFingerprintOfFields(t *testing.T) {
	t.Parallel()
	window := 90 * time.Second
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Fingerprint = &hooks.Fingerprint{Fields: []string{"{{ payload.from }}", "{{ payload.text }}"}, Window: &window}
	})
	for _, body := range []string{
		`{"from":"ab","text":"c"}`, `{"from":"ab","text":"c","sent":"later"}`, `{"from":"a","text":"bc"}`, `{"from":"ab","text":"d"}`,
	} {
		f.post(t, body, func(r *http.Request) { r.URL.RawQuery = "n=" + time.Now().String() })
	}
	ids := f.ids()
	if ids[0] != ids[1] {
		t.Error("a field that was not chosen changes the id")
	}
	if ids[0] == ids[2] || ids[0] == ids[3] {
		t.Error("other chosen fields have the same id")
	}
	if p := f.pipeline.policies[0]; p.TTL != window || !p.FromFirst {
		t.Errorf("window = %s, from the first delivery %t, want %s, true", p.TTL, p.FromFirst, window)
	}
}

func TestFingerprintWithoutAFieldIsNoKey(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.Fingerprint = &hooks.Fingerprint{Fields: []string{"{{ payload.from }}", "{{ payload.text }}"}}
	})
	f.post(t, `{"from":"ab"}`, nil)
	if got := f.message(t).Key; !got.IsZero() {
		t.Errorf("key = %+v, want none", got)
	}
	if got := f.counter(t, "gateway_unkeyed_messages_total", ""); got != 1 {
		t.Errorf("messages without key = %g, want 1", got)
	}
}

func TestFingerprintOff(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Fingerprint = &hooks.Fingerprint{Mode: hooks.FingerprintOff} })
	f.post(t, `{"a":1}`, nil)
	if got := f.message(t).Key; !got.IsZero() {
		t.Errorf("key = %+v, want none", got)
	}
	if got := f.counter(t, "gateway_unkeyed_messages_total", ""); got != 1 {
		t.Errorf("messages without key = %g, want 1", got)
	}
}

func TestSoftFailure(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status  int
		body    string
		off     bool
		release bool
	}{
		{200, `{"success":false}`, false, true},
		{202, ` {"a":1, "ok" : false } `, false, true},
		{200, `{"success":false}`, true, false},
		{200, `{"success":true}`, false, false},
		{200, `{"success":"false"}`, false, false},
		{200, `{"data":{"ok":false}}`, false, false},
		{200, `{"ok":fals`, false, false},
		{200, `[{"ok":false}]`, false, false},
		{404, `{"ok":false}`, false, false},
		{200, ``, false, false},
	} {
		f := forwarding(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.body)
		}, func(h *hooks.Hook, _ *hooks.Deps) { h.SoftFailure = !test.off })
		resp := f.post(t, `{"id":1}`, nil)
		if test.release {
			wantAnswer(t, resp, 502, `{"ok":false,"error":"run failed"}`)
		} else {
			wantAnswer(t, resp, test.status, test.body)
		}
	}
}

func TestFormFieldsAreReadByTemplates(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) {
		h.IdempotencyKey, h.Message = "{{ payload.id }}", "{{ payload.data__text }} {{ payload[\"tags[]\"][1] }}"
	})
	f.post(t, "id=rec_0004&data__text=form+from+zapier&tags[]=a&tags[]=b%26c", func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	})
	if m := f.message(t); m.Key.ID != "rec_0004" || m.Text != "form from zapier b&c" {
		t.Errorf("id %q, text %q", m.Key.ID, m.Text)
	}
}

func TestTextIsSaidAsItStands(t *testing.T) {
	t.Parallel()
	f := build(t, func(h *hooks.Hook, _ *hooks.Deps) { h.Session = "{{ payload }}" })
	f.post(t, "say \"hi\"\n\\ \x00 \xff", func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") })
	m := f.message(t)
	if want := "say \"hi\"\n\\ \x00 \uFFFD"; m.Text != want || m.Session != "say \"hi\"\n\\ \x00 \xff" {
		t.Errorf("text %q, session %q, want both as they were sent", m.Text, m.Session)
	}
}
