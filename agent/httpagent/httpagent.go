// Package httpagent is the agent behind a URL: each turn is one POST of the
// wire form of agent.Turn, and the answer is {"text": …}.
//
// A turn is sent at most once. Whether a failed one is sent again is decided by
// whoever owns the message; the far end can tell by Idempotency-Key, and an
// outdated turn by X-Turn-Fence. No redirect is followed, since the configured
// headers, which may be secrets, would go with it.
package httpagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/outbound"
	"github.com/oncegate/oncegate/internal/redact"
)

// maxBody bounds an answer in bytes, after it was unpacked: JSON takes up to six
// for each of the text (\u00XX), and there may be other members.
const maxBody = 6*agent.MaxReply + 64<<10

// Agent is an agent.Agent behind a URL.
type Agent struct {
	config agent.Config
	client *http.Client
}

var _ agent.Agent = (*Agent)(nil)

// New returns the agent of a valid configuration of kind http. Nothing is sent
// yet.
func New(c agent.Config) *Agent {
	transport := outbound.NewTransport()
	transport.DisableCompression = false // a reply is read, not passed on
	return newAgent(c, transport)
}

func newAgent(c agent.Config, transport http.RoundTripper) *Agent {
	return &Agent{config: c, client: outbound.NewClient(transport)}
}

// Close ends the idle connections. Runs under way go on.
func (a *Agent) Close() { a.client.CloseIdleConnections() }

// Run implements agent.Agent. Its error is an *agent.Error, or wraps the cause
// of ctx's end.
func (a *Agent) Run(ctx context.Context, turn agent.Turn) (agent.Reply, error) {
	return a.config.Run(ctx, func(ctx context.Context) (agent.Reply, error) { return a.post(ctx, turn) })
}

func (a *Agent) post(ctx context.Context, turn agent.Turn) (agent.Reply, error) {
	req, err := a.request(ctx, turn)
	if err != nil {
		return agent.Reply{}, &agent.Error{Kind: agent.Refused, Err: redact.Error(err)}
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return agent.Reply{}, unreachable(err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing was written
	if resp.StatusCode/100 != 2 {
		return agent.Reply{}, statusError(resp)
	}
	reply, err := read(resp.Body)
	if e, ok := errors.AsType[*agent.Error](err); ok {
		e.Status = resp.StatusCode
	}
	return reply, err
}

func (a *Agent) request(ctx context.Context, turn agent.Turn) (*http.Request, error) {
	body, err := json.Marshal(turn)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.config.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	for name, value := range a.config.Headers {
		req.Header.Set(name, value.Reveal())
	}
	req.Header.Set("Content-Type", "application/json")
	if turn.Key != "" {
		// In lower case net/http does not know the name. Under the one that it
		// knows it would take leave to post again after a broken connection.
		req.Header["idempotency-key"] = []string{turn.Key}
	}
	if turn.Fence != 0 {
		req.Header.Set("X-Turn-Fence", strconv.FormatUint(turn.Fence, 10))
	}
	return req, nil
}

// read returns the reply in the body of a 2xx answer. No body is an empty one.
func read(body io.Reader) (agent.Reply, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxBody+1))
	if err != nil {
		return agent.Reply{}, unreachable(err)
	}
	if len(data) > maxBody {
		return agent.Reply{}, errTooLarge()
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return agent.Reply{}, nil
	}
	reply, err := agent.ReadReply(data)
	if err == nil && len(reply.Text) > agent.MaxReply {
		return agent.Reply{}, errTooLarge()
	}
	return reply, err
}
