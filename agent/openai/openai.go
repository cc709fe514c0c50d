// Package openai is the agent that asks a chat-completions endpoint: OpenAI's,
// or another that speaks like it.
//
// The configuration alone decides where it asks, and as whom: no OPENAI_*
// variable of the environment has an effect (the proxy variables have, as for
// every request of the gateway). A reply is whole, or the run has failed. A
// request is repeated only as long as nothing of an answer has arrived, under
// the same Idempotency-Key; whether the endpoint heeds that header is its own
// affair, so a repeated run may be billed twice.
package openai

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/outbound"
)

const (
	maxRetries   = 2                      // of one run
	maxWait      = time.Minute            // for a retry; who asks for more gets no retry
	firstBackoff = 500 * time.Millisecond // doubled with each retry that the endpoint gave no time for
	drainTime    = 100 * time.Millisecond // for what follows the end of a reply
)

// Agent is an agent.Agent behind a chat-completions endpoint.
type Agent struct {
	config agent.Config
	host   string // of the endpoint
	query  string // of base_url
	client *http.Client
	chat   sdk.ChatCompletionService
}

var _ agent.Agent = (*Agent)(nil)

// New returns the agent of a valid configuration of kind openai. Nothing is
// sent yet.
func New(c agent.Config) *Agent { return newAgent(c, outbound.NewTransport()) }

func newAgent(c agent.Config, transport http.RoundTripper) *Agent {
	base, err := url.Parse(c.BaseURL)
	if err != nil {
		panic("openai: base_url was not validated") // err would quote it
	}
	query := base.RawQuery
	base.RawQuery, base.ForceQuery = "", false
	a := &Agent{
		config: c, host: base.Hostname(), query: query,
		client: outbound.NewClient(transport),
	}
	options := []option.RequestOption{
		option.WithBaseURL(strings.TrimRight(base.String(), "/") + "/"),
		option.WithHTTPClient(a.client),
		option.WithHeader("Accept", "text/event-stream, application/json"),
		// Its loop waits beyond the deadline, and takes a broken connection for
		// a reason to retry only as long as there are no headers.
		option.WithMaxRetries(0),
	}
	if !c.APIKey.IsEmpty() {
		options = append(options, option.WithAPIKey(c.APIKey.Reveal()))
	}
	// The service by itself, unlike a client, reads no environment.
	a.chat = sdk.NewChatCompletionService(options...)
	return a
}

// Close ends the idle connections. Runs under way go on.
func (a *Agent) Close() { a.client.CloseIdleConnections() }

// Run implements agent.Agent. Its error is an *agent.Error, or wraps the cause
// of ctx's end. The timeout of the configuration bounds all attempts together.
func (a *Agent) Run(ctx context.Context, turn agent.Turn) (agent.Reply, error) {
	q, err := a.ask(turn)
	if err != nil {
		return agent.Reply{}, err
	}
	return a.config.Run(ctx, func(ctx context.Context) (agent.Reply, error) { return a.persist(ctx, q) })
}

// persist makes attempts until one settles the matter.
func (a *Agent) persist(ctx context.Context, q question) (agent.Reply, error) {
	for retry := 0; ; retry++ {
		reply, again, err := a.attempt(ctx, q)
		if err == nil || !again || retry == maxRetries || !pause(ctx, retry, err) {
			return reply, err
		}
	}
}

// pause waits until the next attempt is due, and reports whether to make it.
// There is no sense in waiting for an attempt that has no time left.
func pause(ctx context.Context, retry int, err error) bool {
	delay := firstBackoff << retry
	delay -= rand.N(delay / 4) // so that those who failed together do not come back together
	if e, ok := errors.AsType[*agent.Error](err); ok && e.RetryAfter > 0 {
		delay = e.RetryAfter
	}
	if deadline, ok := ctx.Deadline(); delay > maxWait || ok && time.Until(deadline) <= delay {
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt makes one request. Again says that it failed before any of the answer
// had arrived, and in a way that may pass.
func (a *Agent) attempt(ctx context.Context, q question) (reply agent.Reply, again bool, err error) {
	res, err := a.send(ctx, q)
	if err != nil {
		return agent.Reply{}, mayPass(err), err
	}
	body := &bounds{ReadCloser: res.Body}
	defer func() { _ = body.Close() }() // nothing was written
	res.Body = body
	if reply, err = q.read(res); err == nil {
		drain(body)
	}
	return reply, body.size == 0 && mayPass(err), err
}

// drain reads the little that follows the end of a reply, without which the
// connection cannot be used again. A server that does not end is left.
func drain(body io.ReadCloser) {
	timer := time.AfterFunc(drainTime, func() { _ = body.Close() }) // nothing was written
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, 4<<10) // the reply is whole
}

// send returns the 2xx answer to q, whose body the caller closes.
func (a *Agent) send(ctx context.Context, q question) (*http.Response, error) {
	var answer *http.Response
	stream := a.chat.NewStreaming(ctx, q.params, option.WithResponseBodyInto(&answer), option.WithMiddleware(
		func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			req.URL.RawQuery = a.query // the SDK loses it
			if q.turn.Key != "" {
				// In lower case net/http does not know the name. Under the one
				// that it knows it would take leave to post again by itself.
				req.Header.Del("Idempotency-Key")
				req.Header["idempotency-key"] = []string{q.turn.Key}
			}
			res, err := next(req)
			if err != nil || res.StatusCode/100 == 2 {
				return res, err
			}
			defer func() { _ = res.Body.Close() }() // nothing was written
			return nil, q.statusError(res)
		}))
	err := stream.Err()
	if _, ours := errors.AsType[*agent.Error](err); err != nil && !ours {
		err = unreachable(err)
	}
	return answer, err
}
