package openai_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/openai"
	"github.com/oncegate/oncegate/agent/openai/openaitest"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

func TestTheStatusDecidesTheKind(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]agent.Kind{
		301: agent.Refused, 304: agent.Refused, 400: agent.Refused, 401: agent.Refused, 403: agent.Refused, 404: agent.Refused, 413: agent.Refused,
		422: agent.Refused, 408: agent.Timeout, 409: agent.ServerError, 429: agent.RateLimited, 500: agent.ServerError, 503: agent.ServerError, 529: agent.ServerError,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			a, s := start(t)
			s.Queue(openaitest.Status(status, openaitest.ErrorBody("some_type", "some_code", "some message"), "Retry-After", "100"))
			_, err := a.Run(t.Context(), turn(prompt))
			e := wantKind(t, err, want)
			if e.Status != status || e.RetryAfter != 100*time.Second || len(s.Requests()) != 1 {
				t.Errorf("status %d, RetryAfter %s after %d requests, want %d, 100s, 1", e.Status, e.RetryAfter, len(s.Requests()), status)
			}
			if got, want := errors.Is(err, agent.ErrRefused), want == agent.Refused; got != want {
				t.Errorf("refused for ever: %t, want %t", got, want)
			}
			if got, want := errors.Is(err, message.ErrTimeout), status == 408; got != want {
				t.Errorf("a timeout: %t, want %t", got, want)
			}
		})
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	other := openaitest.Start(t)
	a, s := start(t, func(c *agent.Config) { c.APIKey = secret.New("sk-key") })
	s.Queue(openaitest.Status(307, "", "Location", other.URL()+"/chat/completions"))
	_, err := a.Run(t.Context(), turn(prompt))
	if e := wantKind(t, err, agent.Refused); len(other.Requests()) != 0 || !strings.Contains(e.Error(), "redirect") {
		t.Errorf("error = %v, %d requests to the other server, want one that says redirect, and none", err, len(other.Requests()))
	}
}

func TestTheNameOfAFailureIsTold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ body, want string }{
		"the code":                        {openaitest.ErrorBody("invalid_request_error", "invalid_api_key", "wrong"), ": the endpoint calls it invalid_api_key"},
		"the type where there is no code": {`{"error":{"type":"BadRequestError","code":null}}`, ": the endpoint calls it BadRequestError"},
		"a number":                        {`{"error":{"code":1113}}`, ": the endpoint calls it 1113"},
		"no sentence":                     {openaitest.ErrorBody("", "the model is not yours", "wrong"), ""},
		"no control characters":           {openaitest.ErrorBody("", "a\x1b[31m", "wrong"), ""},
		"nothing long":                    {openaitest.ErrorBody("", strings.Repeat("a", 49), "wrong"), ""},
		"nothing that is in the prompt":   {openaitest.ErrorBody("", "what", "wrong"), ""},
		"nothing that has the key in it":  {openaitest.ErrorBody("", "no_SK-PRIVATE_here", "wrong"), ""},
		"nothing that is part of the key": {openaitest.ErrorBody("", "private", "wrong"), ""},
		"nothing that is part of the URL": {openaitest.ErrorBody("", "v1", "wrong"), ""},
		"nothing that has the host in it": {openaitest.ErrorBody("", "at_127.0.0.1", "wrong"), ""},
		"a bare text":                     {`{"error":"model not found"}`, ""},
		"a page":                          {"<html>", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, s := start(t, func(c *agent.Config) { c.APIKey = secret.New("sk-Private") })
			s.Queue(openaitest.Status(400, test.body))
			_, err := a.Run(t.Context(), turn(prompt))
			if want := "agent: refused (status 400)" + test.want; err == nil || err.Error() != want {
				t.Errorf("error = %v, want %s", err, want)
			}
		})
	}
}

func TestWhyThereIsNoConnection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"an unknown name":       {&net.DNSError{Err: "no such host", Name: "llm.example"}, "the server's name cannot be looked up"},
		"no answer to the dial": {&net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}, "there was no connection in time"},
		"something else":        {errors.New(`malformed HTTP response "llm.example"`), "the connection broke before there was an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, _, err := asks(t, t.Context(), 0, func(*http.Request) (*http.Response, error) { return nil, test.err })
				wantKind(t, err, agent.Unreachable)
				if want := "agent: unreachable: " + test.want; err.Error() != want {
					t.Errorf("error = %v, want %s", err, want)
				}
			})
		})
	}
}

func TestAConnectionThatIsRefusedIsToldInTheWordsOfTheSystem(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	_, err := openai.New(configFor(t, s.URL)).Run(t.Context(), turn(prompt))
	if want := "agent: unreachable: connection refused"; err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestACertificateThatNobodyVouchesForIsNotAccepted(t *testing.T) {
	t.Parallel()
	asked := false
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that fails
	s.StartTLS()
	a := openai.New(configFor(t, s.URL))
	_, err := a.Run(t.Context(), turn(prompt))
	s.Close()
	if e := wantKind(t, err, agent.Unreachable); asked || !strings.Contains(e.Error(), "certificate") {
		t.Errorf("error = %v, asked: %t; want the certificate, and no request", err, asked)
	}
}

func TestHeadersWithoutAnEndAreNotRead(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	long := openaitest.Status(200, "{}", "X-Long", strings.Repeat("x", 100<<10))
	s.Queue(long, long, long)
	_, err := a.Run(t.Context(), turn(prompt))
	wantKind(t, err, agent.Unreachable)
}

func TestALongErrorIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	s.Queue(func(w http.ResponseWriter, r *http.Request, _ openaitest.Request) {
		w.WriteHeader(http.StatusBadRequest)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
				return
			}
		}
	})
	_, err := a.Run(t.Context(), turn(prompt))
	wantKind(t, err, agent.Refused)
}

// FuzzNoErrorTellsWhatIsPrivate lets an endpoint, or net/http, put anything
// anywhere. The upper-case words in what it says stand for what is private.
func FuzzNoErrorTellsWhatIsPrivate(f *testing.F) {
	const (
		key, host, said, words = "sk-4f9a-private", "inner.llm.example", "my_password_is_hunter2", "You wrote that, and it is wrong"
		everything             = "KEY HOST SAID WORDS"
	)
	for _, status := range []uint16{0, 200, 204, 302, 400, 401, 408, 409, 429, 500} {
		for _, contentType := range []string{"text/event-stream", "application/json", everything} {
			for _, body := range []string{
				everything, `{"error":"WORDS"}`, `{"error":{"code":"KEY","type":"SAID","message":"WORDS"}}`, `{"error":{"code":"HOST","type":"not_SAID"}}`,
				`{"error":{"code":"HOST:8080","type":"x-KEY"}}`, "data: WORDS SAID\n\n", "event: error\ndata: {\"code\":\"SAID\",\"type\":\"KEY\"}\n\n",
				`data: {"error":{"code":"KEY.HOST","type":"SAID","message":"WORDS"}}` + "\n\n", `data: {"choices":[{"delta":{"content":"SAID"}}]}` + "\n\n",
				`data: {"choices":[{"finish_reason":"SAID KEY"}]}` + "\n\n", `{"choices":[{"message":{"tool_calls":["WORDS"]},"finish_reason":"KEY"}]}`,
			} {
				f.Add(status, contentType, body, everything)
			}
		}
	}
	private := strings.NewReplacer("KEY", key, "HOST", host, "SAID", said, "WORDS", words)
	f.Fuzz(func(t *testing.T, status uint16, contentType, body, header string) {
		c := configFor(t, "https://"+host+":8443/v1", func(c *agent.Config) { c.APIKey, c.Instructions = secret.New(key), said })
		a := openai.NewWith(c, roundTrip(func(r *http.Request) (*http.Response, error) {
			if status < 200 || status > 599 {
				return nil, fmt.Errorf("%s %s: %s", r.Method, r.URL, private.Replace(body))
			}
			return answer(int(status), private.Replace(contentType), private.Replace(body),
				"Location", private.Replace(header), "Retry-After", private.Replace(header)), nil
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // too short for any retry
		defer cancel()
		_, err := a.Run(ctx, turn(said))
		if err == nil {
			return
		}
		told := fmt.Sprintf("%v %+v %q", err, err, err)
		for e := err; e != nil; e = errors.Unwrap(e) {
			told += e.Error()
		}
		for _, text := range []string{key, host, said, words} {
			if strings.Contains(strings.ToLower(told), strings.ToLower(text)) {
				t.Errorf("%q is told: %s", text, told)
			}
		}
		if strings.ContainsFunc(told, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(err.Error()) > 200 {
			t.Errorf("the error is no line for a log: %q", err)
		}
	})
}
