package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/openai"
	"github.com/oncegate/oncegate/agent/openai/openaitest"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// TestMain gives every test an environment that would lead the SDK astray.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{
		"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "env-key", "OPENAI_ADMIN_KEY": "env-admin",
		"OPENAI_ORG_ID": "env-org", "OPENAI_PROJECT_ID": "env-project", "OPENAI_WEBHOOK_SECRET": "env-webhook",
		"OPENAI_CUSTOM_HEADERS": "X-Env: env-header\nAuthorization: Bearer env-auth",
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

const prompt = "what is the time"

func turn(text string) agent.Turn {
	return agent.Turn{Turn: message.Turn{Key: "hook:::a1", Message: message.Message{Text: text}}}
}

func configFor(t *testing.T, url string, change ...func(*agent.Config)) agent.Config {
	t.Helper()
	c := agent.Config{Kind: agent.KindOpenAI, BaseURL: url, Model: "small"}
	for _, f := range change {
		f(&c)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func start(t *testing.T, change ...func(*agent.Config)) (*openai.Agent, *openaitest.Server) {
	t.Helper()
	s := openaitest.Start(t)
	a := openai.New(configFor(t, s.URL(), change...))
	t.Cleanup(a.Close)
	return a, s
}

// roundTrip is the far end of an agent without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, contentType, body string, headers ...string) *http.Response {
	res := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(body))}
	for i := 0; i < len(headers); i += 2 {
		res.Header.Set(headers[i], headers[i+1])
	}
	return res
}

const stopped = `data: {"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"

func wantKind(t *testing.T, err error, want agent.Kind) *agent.Error {
	t.Helper()
	e, ok := errors.AsType[*agent.Error](err)
	if !ok || e.Kind != want {
		t.Fatalf("error = %v, want one of kind %s", err, want)
	}
	return e
}

func TestWhatIsAsked(t *testing.T) {
	t.Parallel()
	user, assistant := agent.User, agent.Assistant
	rows := func(all ...agent.Row) []agent.Row { return all }
	for name, test := range map[string]struct {
		instructions string
		history      []agent.Row
		prompt       string
		want         []string
	}{
		"a first message is asked alone": {want: []string{"user: now"}},
		"the instructions come first":    {instructions: "be brief", want: []string{"system: be brief", "user: now"}},
		"blank instructions are none":    {instructions: " \n", want: []string{"user: now"}},
		"the prompt goes before the text": {
			history: rows(agent.Row{Role: user, Text: "raw", Prompt: "fenced"}, agent.Row{Role: assistant, Text: "ok"}),
			prompt:  "fenced now",
			want:    []string{"user: fenced", "assistant: ok", "user: fenced now"},
		},
		"rows without text are left out, and their neighbours joined": {
			history: rows(agent.Row{Role: user, Text: "one"}, agent.Row{Role: assistant}, agent.Row{Role: user, Text: "two"}, agent.Row{Role: assistant, Text: "a"},
				agent.Row{Role: user, Text: "\n"}, agent.Row{Role: assistant, Text: "b"}),
			want: []string{"user: one\n\ntwo", "assistant: a\n\nb", "user: now"},
		},
		"an unanswered message is joined with the one after it": {
			history: rows(agent.Row{Role: user, Text: "one"}, agent.Row{Role: assistant}),
			want:    []string{"user: one\n\nnow"},
		},
		"the user begins": {
			history: rows(agent.Row{Role: user}, agent.Row{Role: assistant, Text: "a"}),
			want:    []string{"user: now"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, s := start(t, func(c *agent.Config) { c.Instructions = test.instructions })
			asked := turn("now")
			asked.History, asked.Message.Prompt = test.history, test.prompt
			if _, err := a.Run(t.Context(), asked); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range s.Requests()[0].Messages {
				got = append(got, m.Role+": "+m.Content)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("messages = %q, want %q", got, test.want)
			}
		})
	}
}

func TestAMessageWithoutTextIsRefusedWithoutARequest(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	_, err := a.Run(t.Context(), turn(" \n"))
	if wantKind(t, err, agent.Refused); len(s.Requests()) != 0 {
		t.Errorf("%d requests, want none", len(s.Requests()))
	}
}

func TestTheSettingsAreSent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, baseURL, wantURL string
		change                 func(*agent.Config)
		want                   map[string]any
	}{
		{"those that are not set are left out", "https://llm.example/v1", "https://llm.example/v1/chat/completions", func(*agent.Config) {}, nil},
		{"a temperature of 0 is one", "https://llm.example/v1/", "https://llm.example/v1/chat/completions", func(c *agent.Config) { c.Temperature = new(0.0) },
			map[string]any{"temperature": 0.0}},
		{"compatible servers get max_tokens", "https://llm.example", "https://llm.example/chat/completions", func(c *agent.Config) { c.MaxOutputTokens = new(7) },
			map[string]any{"max_tokens": 7.0}},
		{"OpenAI gets max_completion_tokens", "https://api.OpenAI.com/v1", "https://api.OpenAI.com/v1/chat/completions", func(c *agent.Config) { c.MaxOutputTokens = new(7) },
			map[string]any{"max_completion_tokens": 7.0}},
		{"so does OpenAI at Azure, with the query of base_url", "https://x.openai.azure.com/openai/v1//?api-version=1", "https://x.openai.azure.com/openai/v1/chat/completions?api-version=1",
			func(c *agent.Config) { c.MaxOutputTokens = new(7) }, map[string]any{"max_completion_tokens": 7.0}},
		{"a name that only ends alike is another's", "https://notopenai.com/a%2Fb", "https://notopenai.com/a%2Fb/chat/completions", func(c *agent.Config) { c.MaxOutputTokens = new(7) },
			map[string]any{"max_tokens": 7.0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var url string
			got := map[string]any{}
			a := openai.NewWith(configFor(t, test.baseURL, test.change), roundTrip(func(r *http.Request) (*http.Response, error) {
				url = r.URL.String()
				if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
					t.Error(err)
				}
				return answer(200, "text/event-stream", stopped), nil
			}))
			if _, err := a.Run(t.Context(), turn(prompt)); err != nil {
				t.Fatal(err)
			}
			if url != test.wantURL {
				t.Errorf("URL = %s, want %s", url, test.wantURL)
			}
			if got["model"] != "small" || got["stream"] != true {
				t.Errorf("model = %v, stream = %v, want small, true", got["model"], got["stream"])
			}
			for _, always := range []string{"model", "stream", "messages"} {
				delete(got, always)
			}
			if want := test.want; len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("settings = %v, want %v", got, want)
			}
		})
	}
}

func TestTheConfigurationAloneDecidesAsWhomToAsk(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key  string
		want []string
	}{
		"without a key there is no Authorization": {"", nil},
		"with a key it is the key":                {"sk-configured", []string{"Bearer sk-configured"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, s := start(t, func(c *agent.Config) { c.APIKey = secret.New(test.key) })
			s.RequireKey(test.key)
			if _, err := a.Run(t.Context(), turn(prompt)); err != nil {
				t.Fatal(err)
			}
			h := s.Requests()[0].Header
			if got := h["Authorization"]; !slices.Equal(got, test.want) {
				t.Errorf("Authorization = %q, want %q", got, test.want)
			}
			if got, want := h.Get("Accept"), "text/event-stream, application/json"; got != want {
				t.Errorf("Accept = %q, want %q", got, want)
			}
			if got := h.Get("Accept-Encoding"); got != "" {
				t.Errorf("Accept-Encoding = %q, want none: it holds pieces back", got)
			}
			if text := fmt.Sprint(h); strings.Contains(text, "env-") || h.Get("OpenAI-Organization") != "" || h.Get("OpenAI-Project") != "" {
				t.Errorf("headers = %s, which come from the environment", text)
			}
		})
	}
}

func TestTheKeyOfTheTurnIsTheIdempotencyKey(t *testing.T) {
	t.Parallel()
	again := openaitest.Status(503, "", "Retry-After-Ms", "1")
	for name, key := range map[string]string{"with every attempt": "hook:::a%201", "none without a key": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, s := start(t)
			s.Queue(again, again)
			asked := turn(prompt)
			asked.Key = key
			if _, err := a.Run(t.Context(), asked); err != nil {
				t.Fatal(err)
			}
			var want []string
			if key != "" {
				want = []string{key}
			}
			requests := s.Requests()
			if len(requests) != 3 {
				t.Fatalf("%d requests, want 3", len(requests))
			}
			for i, r := range requests {
				if got := r.Header["Idempotency-Key"]; !slices.Equal(got, want) {
					t.Errorf("attempt %d: Idempotency-Key = %q, want %q", i, got, want)
				}
			}
		})
	}
}

func TestOneAgentRunsManyTurnsAtOnce(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	s.Delay(20 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			text := fmt.Sprintf("message %d", i)
			if got, err := a.Run(t.Context(), turn(text)); err != nil || got.Text != text {
				t.Errorf("Run = %q, %v, want %q", got.Text, err, text)
			}
		})
	}
	wg.Wait()
}

type idle struct {
	roundTrip
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

func TestCloseEndsIdleConnections(t *testing.T) {
	t.Parallel()
	transport := &idle{}
	openai.NewWith(configFor(t, "http://llm.example/v1"), transport).Close()
	if !transport.closed {
		t.Error("idle connections stay open")
	}
}

func TestACallThatIsCalledOffReturnsTheCause(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	lost := errors.New("the lock was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	s.Queue(func(_ http.ResponseWriter, r *http.Request, _ openaitest.Request) {
		cancel(lost)
		<-r.Context().Done()
	})
	_, err := a.Run(ctx, turn(prompt))
	if !errors.Is(err, lost) || errors.Is(err, message.ErrTimeout) {
		t.Errorf("error = %v, want %v and no timeout", err, lost)
	}
}

func TestTheDeadlineOfTheTurnIsNotTheAgentsTimeout(t *testing.T) {
	t.Parallel()
	a, s := start(t, func(c *agent.Config) { c.Timeout = new(time.Hour) })
	s.Queue(openaitest.Hang())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := a.Run(ctx, turn(prompt))
	if !errors.Is(err, context.DeadlineExceeded) || agent.KindOf(err) == agent.Timeout {
		t.Errorf("error = %v, want the end of the deadline and not kind timeout", err)
	}
}
