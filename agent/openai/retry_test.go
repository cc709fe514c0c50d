package openai_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/openai"
	"github.com/oncegate/oncegate/agent/openai/openaitest"
	"github.com/oncegate/oncegate/message"
)

type respond func(*http.Request) (*http.Response, error)

// asks runs an agent in a bubble of false time, against an endpoint that gives
// those answers one after another, the last one for ever. It returns when each
// request was made.
func asks(t *testing.T, ctx context.Context, timeout time.Duration, answers ...respond) (reply agent.Reply, at []time.Duration, err error) {
	t.Helper()
	began := time.Now()
	a := openai.NewWith(configFor(t, "http://llm.example/v1", func(c *agent.Config) {
		if timeout > 0 {
			c.Timeout = &timeout
		}
	}), roundTrip(func(r *http.Request) (*http.Response, error) {
		at = append(at, time.Since(began))
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		return answers[min(len(at), len(answers))-1](r)
	}))
	reply, err = a.Run(ctx, turn(prompt))
	return reply, at, err
}

func says(status int, headers ...string) respond {
	return func(*http.Request) (*http.Response, error) {
		return answer(status, "application/json", "{}", headers...), nil
	}
}

func streams(body string) respond {
	return func(*http.Request) (*http.Response, error) { return answer(200, "text/event-stream", body), nil }
}

func breaks(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

func TestWhatIsRetriedAndWhen(t *testing.T) {
	t.Parallel()
	// The clock of a bubble begins with the year 2000.
	at := func(after time.Duration) string {
		return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(after).Format(http.TimeFormat)
	}
	unspecified := time.Duration(-1)
	for name, test := range map[string]struct {
		answer   respond
		wait     time.Duration // before the first retry; 0: there is none
		deadline time.Duration
	}{
		"a rate limit":                                   {answer: says(429), wait: unspecified},
		"a failure of the server":                        {answer: says(500), wait: unspecified},
		"a gateway that gave up":                         {answer: says(504), wait: unspecified},
		"a timeout of the server":                        {answer: says(408), wait: unspecified},
		"a conflict":                                     {answer: says(409), wait: unspecified},
		"a connection that breaks":                       {answer: breaks, wait: unspecified},
		"an answer that ends before its first byte":      {answer: streams(""), wait: unspecified},
		"no answer that breaks after its first byte":     {answer: streams(":")},
		"no wrong key":                                   {answer: says(401)},
		"no wrong request":                               {answer: says(400, "Retry-After", "1")},
		"no garbage":                                     {answer: says(200)},
		"after as many seconds as it says":               {answer: says(503, "Retry-After", "7"), wait: 7 * time.Second},
		"also parts of them":                             {answer: says(503, "Retry-After", "0.25"), wait: 250 * time.Millisecond},
		"at the time that it says":                       {answer: says(429, "Retry-After", at(9*time.Second)), wait: 9 * time.Second},
		"a time that has passed is as none":              {answer: says(429, "Retry-After", at(-time.Hour)), wait: unspecified},
		"words are as none":                              {answer: says(429, "Retry-After", "soon"), wait: unspecified},
		"a negative number is as none":                   {answer: says(429, "Retry-After", "-5"), wait: unspecified},
		"no number is as none":                           {answer: says(429, "Retry-After", "NaN"), wait: unspecified},
		"milliseconds go first":                          {answer: says(429, "Retry-After", "7", "Retry-After-Ms", "1500"), wait: 1500 * time.Millisecond},
		"a minute is waited for":                         {answer: says(429, "Retry-After", "60"), wait: time.Minute},
		"more than a minute is not":                      {answer: says(429, "Retry-After", "61")},
		"nor until tomorrow":                             {answer: says(429, "Retry-After", at(23*time.Hour))},
		"nor for ever":                                   {answer: says(429, "Retry-After", "1e999")},
		"as long as the deadline allows it":              {answer: says(429, "Retry-After", "7"), wait: 7 * time.Second, deadline: 8 * time.Second},
		"not up to the deadline itself":                  {answer: says(429, "Retry-After", "7"), deadline: 7 * time.Second},
		"not if the deadline is nearer than any backoff": {answer: says(503), deadline: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if test.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.deadline)
					defer cancel()
				}
				began := time.Now()
				reply, made, err := asks(t, ctx, 0, test.answer, streams(stopped))
				if test.wait == 0 {
					if err == nil || len(made) != 1 || time.Since(began) != 0 {
						t.Errorf("error %v after requests at %v and %s, want one at once", err, made, time.Since(began))
					}
					return
				}
				if err != nil || reply.Text != "yes" || len(made) != 2 {
					t.Fatalf("Run = %q, %v with requests at %v, want yes from the second", reply.Text, err, made)
				}
				if test.wait == unspecified {
					if made[1] < 375*time.Millisecond || made[1] > 500*time.Millisecond {
						t.Errorf("second request after %s, want half a second, less a quarter at most", made[1])
					}
				} else if made[1] != test.wait {
					t.Errorf("second request after %s, want %s", made[1], test.wait)
				}
			})
		})
	}
}

func TestTwoRetriesAreAllAndTheSecondWaitsLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, made, err := asks(t, t.Context(), 0, says(503))
		wantKind(t, err, agent.ServerError)
		if len(made) != 3 || made[2]-made[1] < 750*time.Millisecond || made[2]-made[1] > time.Second {
			t.Errorf("requests at %v, want three, the last after a second, less a quarter at most", made)
		}
	})
}

func TestWhatTheEndpointAskedForIsInTheError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header string
		want   time.Duration
	}{
		"seconds":               {"90", 90 * time.Second},
		"nothing":               {"", 0},
		"no time before":        {"-5", 0},
		"no number":             {"NaN", 0},
		"a day at most":         {"1e30", 24 * time.Hour},
		"a day at most, a date": {"Fri, 31 Dec 9999 00:00:00 GMT", 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, _, err := asks(t, t.Context(), 0, says(429, "Retry-After", test.header))
				if e := wantKind(t, err, agent.RateLimited); e.RetryAfter != test.want || e.Status != 429 {
					t.Errorf("RetryAfter = %s, status %d, want %s, 429", e.RetryAfter, e.Status, test.want)
				}
			})
		})
	}
}

func TestTheWaitForARetryEndsWithTheTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("the lock was lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(5*time.Second, func() { cancel(lost) })
		began := time.Now()
		_, made, err := asks(t, ctx, time.Hour, says(503, "Retry-After", "30"))
		if !errors.Is(err, lost) || len(made) != 1 || time.Since(began) != 5*time.Second {
			t.Errorf("error = %v after %d requests and %s, want %v after one and 5s", err, len(made), time.Since(began), lost)
		}
	})
}

func TestTheTimeoutBoundsAllAttemptsTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(r *http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return says(503)(r)
		}
		hangs := func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		began := time.Now()
		_, made, err := asks(t, t.Context(), 7*time.Second, slow, slow, hangs)
		wantKind(t, err, agent.Timeout)
		if !errors.Is(err, message.ErrTimeout) || len(made) != 3 || time.Since(began) != 7*time.Second {
			t.Errorf("error = %v after %d requests and %s, want a timeout after 3 and 7s", err, len(made), time.Since(began))
		}
	})
}

func TestAServerThatHangsMeetsTheTimeout(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]openaitest.Answer{
		"before its answer": openaitest.Hang(),
		"in its answer":     openaitest.Stream(openaitest.Delta("and"), openaitest.Pause(nil)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, s := start(t, func(c *agent.Config) { c.Timeout = new(30 * time.Millisecond) })
			s.Queue(answer)
			_, err := a.Run(t.Context(), turn(prompt))
			wantKind(t, err, agent.Timeout)
		})
	}
}

func TestAStreamThatBrokeIsNeverAskedForAgain(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]openaitest.Step{
		"cut":               openaitest.Cut(),
		"ended":             openaitest.Raw(""),
		"an error":          openaitest.Error("server_error", "overloaded", "sorry"),
		"a limit of a rate": openaitest.Error("requests", "rate_limit_exceeded", "sorry"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, s := start(t)
			s.Queue(openaitest.Stream(openaitest.Delta("and"), step))
			if got, err := a.Run(t.Context(), turn(prompt)); err == nil || got.Text != "" || len(s.Requests()) != 1 {
				t.Errorf("Run = %q, %v after %d requests, want an error after 1", got.Text, err, len(s.Requests()))
			}
		})
	}
}

func TestARealConnectionThatBreaksBeforeTheStreamIsRetried(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]openaitest.Answer{
		"before the headers": openaitest.Drop(),
		"after the headers":  openaitest.Stream(openaitest.Cut()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, s := start(t)
			s.Queue(answer)
			if got, err := a.Run(t.Context(), turn(prompt)); err != nil || got.Text != prompt {
				t.Errorf("Run = %q, %v, want the echo", got.Text, err)
			}
			if n := len(s.Requests()); n != 2 {
				t.Errorf("%d requests, want 2", n)
			}
		})
	}
}

func TestNothingIsRetriedBehindOurBack(t *testing.T) {
	t.Parallel()
	a, s := start(t)
	s.Queue(openaitest.Completion("warm"), openaitest.Drop(), openaitest.Drop(), openaitest.Drop())
	if _, err := a.Run(t.Context(), turn(prompt)); err != nil { // from now on there is a connection in use
		t.Fatal(err)
	}
	_, err := a.Run(t.Context(), turn(prompt))
	if wantKind(t, err, agent.Unreachable); len(s.Requests()) != 4 {
		t.Errorf("%d requests, want 4: the first, and three attempts", len(s.Requests()))
	}
}

func TestABodyThatCannotBeReadIsRetriedOnlyBeforeItsFirstByte(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		start string
		want  int
	}{"before it": {"", 3}, "after it": {`{"ch`, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, made, err := asks(t, t.Context(), 0, func(*http.Request) (*http.Response, error) {
					res := answer(200, "application/json", test.start)
					res.Body = io.NopCloser(io.MultiReader(res.Body, iotest.ErrReader(io.ErrUnexpectedEOF)))
					return res, nil
				})
				if wantKind(t, err, agent.Unreachable); len(made) != test.want {
					t.Errorf("%d requests, want %d", len(made), test.want)
				}
			})
		})
	}
}
