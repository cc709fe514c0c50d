package openai_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/openai"
	"github.com/oncegate/oncegate/agent/openai/openaitest"
)

func TestPiecesAreToldAsTheyCome(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	release := make(chan struct{})
	s.Queue(openaitest.Stream(openaitest.Delta("one "), openaitest.Pause(release), openaitest.Delta(""), openaitest.Delta("two"),
		openaitest.Finish("stop"), openaitest.Done()))
	var told []string
	asked := turn(prompt)
	asked.OnDelta = func(text string) {
		if told = append(told, text); len(told) == 1 {
			close(release) // which the server waits for before it goes on
		}
	}
	got, err := a.Run(t.Context(), asked)
	if want := []string{"one ", "two"}; err != nil || got.Text != "one two" || !slices.Equal(told, want) {
		t.Errorf("Run = %q, %v, told %q, want %q", got.Text, err, told, want)
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	t.Parallel()
	const (
		delta  = `data: {"choices":[{"delta":{"content":"yes"}}]}` + "\n\n"
		other  = `data: {"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}` + "\n\n"
		tool   = `data: {"choices":[{"delta":{"tool_calls":[{"id":"a"}]}}]}` + "\n\n"
		done   = "data: [DONE]\n\n"
		stream = "text/event-stream"
		object = "application/json"
	)
	finish := func(reason string) string {
		return `data: {"choices":[{"delta":{},"finish_reason":"` + reason + `"}]}` + "\n\n"
	}
	for name, test := range map[string]struct {
		contentType, body string
		want              string
		kind              agent.Kind // empty: no error
	}{
		"a stream with both ends":                          {stream, delta + finish("stop") + done, "yes", ""},
		"a finish reason is enough":                        {stream, delta + finish("stop"), "yes", ""},
		"[DONE] is enough":                                 {stream, delta + done, "yes", ""},
		"what comes after [DONE] is not read":              {stream, delta + done + "data: junk\n\n", "yes", ""},
		"lines may end with a carriage return":             {stream, strings.ReplaceAll(delta+finish("stop"), "\n", "\r\n"), "yes", ""},
		"comments and other events are nothing":            {stream, ": hello\n\n" + delta + `data: {"choices":[],"usage":{}}` + "\n\n" + finish("stop"), "yes", ""},
		"an error that is null is none":                    {stream, `data: {"error":null,"choices":[{"delta":{"content":"yes"},"finish_reason":"stop"}]}` + "\n\n", "yes", ""},
		"other choices are not read":                       {stream, other + delta + other + finish("stop"), "yes", ""},
		"the end of another choice is not the end":         {stream, delta + other, "", agent.Unreachable},
		"a stream that ends without either is incomplete":  {stream, delta, "", agent.Unreachable},
		"a stream that ends inside an event is incomplete": {stream, delta + strings.TrimSpace(finish("stop")), "", agent.Unreachable},
		"the limit of tokens makes a reply":                {stream, delta + finish("length"), "yes", ""},
		"a limit before the reply began is refused":        {stream, finish("length") + done, "", agent.Refused},
		"a filter after some text makes a reply":           {stream, delta + finish("content_filter"), "yes", ""},
		"a filter without text is refused":                 {stream, finish("content_filter"), "", agent.Refused},
		"an empty reply is one":                            {stream, finish("stop") + done, "", ""},
		"[DONE] alone is no reply":                         {stream, done, "", agent.Malformed},
		"tools are not on offer":                           {stream, tool + finish("stop"), "", agent.Malformed},
		"tools in the finish reason neither":               {stream, finish("tool_calls"), "", agent.Malformed},
		"nor under their old name":                         {stream, finish("function_call"), "", agent.Malformed},
		"tools beside a text do not matter":                {stream, delta + tool + finish("tool_calls"), "yes", ""},
		"an event that is no JSON":                         {stream, delta + "data: <html>\n\n" + finish("stop"), "", agent.Malformed},
		"an event of another form":                         {stream, `data: {"choices":5}` + "\n\n" + finish("stop"), "", agent.Malformed},
		"an error in the stream":                           {stream, delta + `data: {"error":{"type":"server_error"}}` + "\n\n" + finish("stop"), "", agent.ServerError},
		"an error of which nothing is known":               {stream, delta + `data: {"error":"sorry"}` + "\n\n", "", agent.ServerError},
		"an error event":                                   {stream, delta + "event: error\n" + `data: {"code":"overloaded"}` + "\n\n" + finish("stop"), "", agent.ServerError},
		"an error as finish reason":                        {stream, delta + finish("error"), "", agent.ServerError},
		"a rate limit by its code":                         {stream, `data: {"error":{"code":"rate_limit_exceeded"}}` + "\n\n", "", agent.RateLimited},
		"a rate limit by its type":                         {stream, `data: {"error":{"type":"RateLimitError","code":null}}` + "\n\n", "", agent.RateLimited},
		"a rate limit by its number":                       {stream, `data: {"error":{"code":429}}` + "\n\n", "", agent.RateLimited},
		"a whole completion":                               {object, `{"choices":[{"index":0,"message":{"content":"yes"},"finish_reason":"stop"}]}`, "yes", ""},
		"a completion under another type":                  {"", `{"choices":[{"message":{"content":"yes"}}]}`, "yes", ""},
		"a completion with nothing to say":                 {object, `{"choices":[{"message":{"content":null},"finish_reason":"stop"}]}`, "", ""},
		"a completion without a choice":                    {object, `{"choices":[]}`, "", agent.Malformed},
		"a completion that is cut":                         {object, `{"choices":[{"mess`, "", agent.Malformed},
		"a completion with tools":                          {object, `{"choices":[{"message":{"tool_calls":[{}]},"finish_reason":"tool_calls"}]}`, "", agent.Malformed},
		"an error instead of a completion":                 {object, `{"error":{"code":"overloaded"}}`, "", agent.ServerError},
		"a page":                                           {"text/html", "<html>", "", agent.Malformed},
		"a stream that does not say so":                    {"text/plain", delta + finish("stop"), "", agent.Malformed},
		"nothing":                                          {object, "", "", agent.Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := openai.NewWith(configFor(t, "http://llm.example/v1"), roundTrip(func(*http.Request) (*http.Response, error) {
				return answer(200, test.contentType, test.body), nil
			}))
			var told strings.Builder
			asked := turn(prompt)
			asked.OnDelta = func(text string) { told.WriteString(text) }
			got, err := a.Run(t.Context(), asked)
			if test.kind != "" {
				if e := wantKind(t, err, test.kind); e.Status != 200 {
					t.Errorf("status = %d, want 200", e.Status)
				}
				return
			}
			if err != nil || got.Text != test.want || told.String() != test.want {
				t.Errorf("Run = %q, %v, told %q, want %q", got.Text, err, &told, test.want)
			}
		})
	}
}

func TestAServerThatDoesNotStreamIsUnderstood(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	s.Queue(openaitest.Completion("all at once"))
	var told []string
	asked := turn(prompt)
	asked.OnDelta = func(text string) { told = append(told, text) }
	got, err := a.Run(t.Context(), asked)
	if want := "all at once"; err != nil || got.Text != want || !slices.Equal(told, []string{want}) {
		t.Errorf("Run = %q, %v, told %q, want %q", got.Text, err, told, want)
	}
}

func TestOnceAReplyIsWholeABreakDoesNotMatter(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	s.Queue(openaitest.Stream(openaitest.Delta("yes"), openaitest.Finish("stop"), openaitest.Cut()))
	if got, err := a.Run(t.Context(), turn(prompt)); err != nil || got.Text != "yes" {
		t.Errorf("Run = %q, %v, want yes", got.Text, err)
	}
}

// ending notes that it was read to its end.
type ending struct {
	io.Reader
	ended bool
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	e.ended = e.ended || err == io.EOF
	return n, err
}

func TestAnAnswerIsReadToItsEndSoThatItsConnectionCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	body := &ending{Reader: strings.NewReader(stopped)}
	a := openai.NewWith(configFor(t, "http://llm.example/v1"), roundTrip(func(*http.Request) (*http.Response, error) {
		res := answer(200, "text/event-stream", "")
		res.Body = io.NopCloser(body)
		return res, nil
	}))
	if _, err := a.Run(t.Context(), turn(prompt)); err != nil || !body.ended {
		t.Errorf("error %v, read to the end: %t; want none, true", err, body.ended)
	}
}

func TestAServerThatDoesNotEndItsAnswerIsLeft(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	s.Queue(openaitest.Stream(openaitest.Delta("yes"), openaitest.Done(), openaitest.Pause(nil)))
	if got, err := a.Run(t.Context(), turn(prompt)); err != nil || got.Text != "yes" {
		t.Errorf("Run = %q, %v, want yes", got.Text, err)
	}
}

func TestAReplyIsBounded(t *testing.T) {
	t.Parallel()
	half := strings.Repeat("h", agent.MaxReply/2)
	t.Run("the longest reply is one", func(t *testing.T) {
		t.Parallel()
		a, s := start(t)
		s.Queue(openaitest.Text(half, half))
		if got, err := a.Run(t.Context(), turn(prompt)); err != nil || len(got.Text) != agent.MaxReply {
			t.Errorf("Run = %d bytes, %v, want %d", len(got.Text), err, agent.MaxReply)
		}
	})
	t.Run("one byte more is too large, is not told, and the stream is closed", func(t *testing.T) {
		t.Parallel()
		a, s := start(t)
		left := make(chan struct{})
		s.Queue(openaitest.Stream(openaitest.Delta(half), openaitest.Delta(half+"x"), func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			close(left)
			return false
		}))
		told := 0
		asked := turn(prompt)
		asked.OnDelta = func(text string) { told += len(text) }
		_, err := a.Run(t.Context(), asked)
		wantKind(t, err, agent.TooLarge)
		<-left
		if told != len(half) || len(s.Requests()) != 1 {
			t.Errorf("%d bytes were told in %d attempts, want %d in 1", told, len(s.Requests()), len(half))
		}
	})
	t.Run("a completion of one byte more is too large", func(t *testing.T) {
		t.Parallel()
		a, s := start(t)
		s.Queue(openaitest.Completion(half + half + "x"))
		_, err := a.Run(t.Context(), turn(prompt))
		wantKind(t, err, agent.TooLarge)
	})
	t.Run("the longest reply in its longest form fits in one event", func(t *testing.T) {
		t.Parallel()
		text := strings.Repeat(`\u0001`, agent.MaxReply)
		got, err := stuffed(t, "text/event-stream", `data: {"choices":[{"delta":{"content":"`+text+`"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n", 1).Run(t.Context(), turn(prompt))
		if err != nil || len(got.Text) != agent.MaxReply {
			t.Errorf("Run = %d bytes, %v, want %d", len(got.Text), err, agent.MaxReply)
		}
	})
}

// stuffed returns an agent whose endpoint answers with a text that many times.
func stuffed(t *testing.T, contentType, text string, times int) *openai.Agent {
	t.Helper()
	return openai.NewWith(configFor(t, "http://llm.example/v1"), roundTrip(func(*http.Request) (*http.Response, error) {
		parts := make([]io.Reader, times)
		for i := range parts {
			parts[i] = strings.NewReader(text)
		}
		res := answer(200, contentType, "")
		res.Body = io.NopCloser(io.MultiReader(append(parts, strings.NewReader("\n\n"+stopped))...))
		return res, nil
	}))
}

func TestAnAnswerIsBounded(t *testing.T) {
	t.Parallel()
	const mega = 1 << 20
	text := strings.Repeat("x", mega-10)
	for _, test := range []struct {
		name, contentType, text string
		times                   int
		kind                    agent.Kind // empty: no error
	}{
		{"a long line is passed over", "text/event-stream", text, 7, ""},
		{"a line without an end is too large", "text/event-stream", text, 9, agent.TooLarge},
		{"an event of many lines is too large", "text/event-stream", "data: " + text + "\n", 9, agent.TooLarge},
		{"comments without an end are too large", "text/event-stream", ": " + text + "\r\n\r\n", 257, agent.TooLarge},
		{"many comments are passed over", "text/event-stream", ": " + text + "\r\n\r\n", 16, ""},
		{"an object without an end is too large", "application/json", text, 9, agent.TooLarge},
		{"empty lines do not make room", "application/json", "\n\n" + text + "\n\n", 9, agent.TooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := stuffed(t, test.contentType, test.text, test.times).Run(t.Context(), turn(prompt))
			if test.kind == "" {
				if err != nil {
					t.Errorf("error = %v, want none", err)
				}
				return
			}
			wantKind(t, err, test.kind)
		})
	}
}
