package openaitest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent/openai/openaitest"
)

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

func (r *recorder) failures() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

const good = `{"model":"m","stream":true,"messages":[{"role":"system","content":"s"},{"role":"user","content":"hello there"}]}`

func request(t *testing.T, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}

// post returns the status and the body, whose end is marked if it was cut.
func post(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "no answer"
	}
	data, err := io.ReadAll(res.Body)
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
	if err != nil {
		data = append(data, "(cut)"...)
	}
	return res.StatusCode, string(data)
}

func TestARequestThatAStrictEndpointRefusesFailsTheTest(t *testing.T) {
	t.Parallel()
	messages := func(list string) string { return `{"model":"m","stream":true,"messages":[` + list + `]}` }
	const user, assistant, system = `{"role":"user","content":"u"}`, `{"role":"assistant","content":"a"}`, `{"role":"system","content":"s"}`
	for name, test := range map[string]struct {
		body   string
		change func(*http.Request)
		want   string // part of the failure; empty: none
	}{
		"nothing is wrong":              {good, nil, ""},
		"a conversation":                {messages(user + "," + assistant + "," + user), nil, ""},
		"another method":                {good, func(r *http.Request) { r.Method = http.MethodPut }, "PUT"},
		"another path":                  {good, func(r *http.Request) { r.URL.Path = "/v1/completions" }, "/v1/completions"},
		"another content type":          {good, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, "content type"},
		"another key":                   {good, func(r *http.Request) { r.Header.Set("Authorization", "Bearer other") }, "Authorization"},
		"no key":                        {good, func(r *http.Request) { r.Header.Del("Authorization") }, "Authorization"},
		"no JSON":                       {"{", nil, "body"},
		"no model":                      {strings.Replace(good, `"m"`, `""`, 1), nil, "model"},
		"no stream":                     {strings.Replace(good, "true", "false", 1), nil, "stream"},
		"no message":                    {messages(""), nil, "last message"},
		"only instructions":             {messages(system), nil, "last message"},
		"two of one role":               {messages(user + "," + user + "," + user), nil, `"user", want "assistant"`},
		"the assistant begins":          {messages(assistant), nil, `"assistant", want "user"`},
		"the assistant ends":            {messages(user + "," + assistant), nil, "last message"},
		"instructions in the middle":    {messages(user + "," + system + "," + user), nil, `"system", want "assistant"`},
		"a message that says nothing":   {messages(`{"role":"user","content":""}`), nil, "empty"},
		"instructions that say nothing": {messages(`{"role":"system","content":""},` + user), nil, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := &recorder{TB: t}
			s := openaitest.Start(rec)
			s.RequireKey("sk")
			r := request(t, s.URL(), test.body)
			r.Header.Set("Authorization", "Bearer sk")
			if test.change != nil {
				test.change(r)
			}
			status, _ := post(t, r)
			failed := fmt.Sprint(rec.failures())
			if test.want == "" && (failed != "[]" || status != 200) {
				t.Errorf("status %d, failures %s, want 200 and none", status, failed)
			}
			if test.want != "" && (!strings.Contains(failed, test.want) || status != 400) {
				t.Errorf("status %d, failures %s, want 400 and one about %s", status, failed, test.want)
			}
		})
	}
}

func TestTheAnswers(t *testing.T) {
	t.Parallel()
	s := openaitest.Start(t)
	release := make(chan struct{})
	close(release)
	s.Queue(
		openaitest.Text("a", "b"),
		openaitest.Stream(openaitest.Delta("a"), openaitest.Pause(release), openaitest.Error("type", "code", "message")),
		openaitest.Stream(openaitest.Delta("a"), openaitest.Cut(), openaitest.Delta("b")),
		openaitest.Drop(),
		openaitest.Limited("3"),
		openaitest.Status(500, "<html>", "Content-Type", "text/html"),
		openaitest.Completion("whole"),
	)
	for i, want := range []struct {
		status int
		holds  []string
	}{
		{200, []string{`"content":"a"`, `"content":"b"`, `"finish_reason":"stop"`, "data: [DONE]\n\n"}},
		{200, []string{`"content":"a"`, `"code":"code"`}},
		{200, []string{`"content":"a"`, "(cut)"}},
		{0, []string{"no answer"}},
		{429, []string{"rate_limit_exceeded"}},
		{500, []string{"<html>"}},
		{200, []string{`"content":"whole"`, "chat.completion"}},
		{200, []string{`"content":"hel"`, `"content":"lo "`, `"content":"the"`, `"content":"re"`, "data: [DONE]\n\n"}}, // the echo
	} {
		status, body := post(t, request(t, s.URL(), good))
		if status != want.status {
			t.Errorf("answer %d: status %d, want %d", i, status, want.status)
		}
		for _, part := range want.holds {
			before, after, found := strings.Cut(body, part)
			if !found {
				t.Errorf("answer %d: no %s, in its order, in %s%s", i, part, before, after)
			}
			body = after
		}
	}
	requests := s.Requests()
	if got := len(requests); got != 8 {
		t.Fatalf("%d requests, want 8", got)
	}
	if got := requests[7]; got.Messages[1].Content != "hello there" || got.Fields["model"] != "m" || got.Header.Get("Content-Type") == "" {
		t.Errorf("request = %+v, want what was sent", got)
	}
}

func TestAnEchoHasThreePiecesAtLeast(t *testing.T) {
	t.Parallel()
	s := openaitest.Start(t)
	for _, text := range []string{"x", "xy", "xyz", "ünï", "a longer text"} {
		_, body := post(t, request(t, s.URL(), strings.Replace(good, "hello there", text, 1)))
		if got := strings.Count(body, `"content":`); got < 3 {
			t.Errorf("%q came in %d pieces, want 3 at least", text, got)
		}
	}
}

func TestTheServerEndsWithTheTestWhateverItWaitsFor(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]openaitest.Answer{
		"a hanging answer": openaitest.Hang(),
		"a pause":          openaitest.Stream(openaitest.Pause(nil)),
		"a delay":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openaitest.Start(t)
			if answer == nil {
				s.Delay(time.Hour)
			} else {
				s.Queue(answer)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			_, _ = post(t, request(t, s.URL(), good).WithContext(ctx))
		})
	}
}
