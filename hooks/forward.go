package hooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// forwarder is the Runner of action forward: it posts the body as received to
// the target and keeps the answer.
type forwarder struct {
	target  string
	headers map[string]secret.String
	kept    []string // response headers, canonical
	client  *http.Client
	maxBody int64
}

var _ message.Runner = (*forwarder)(nil)

// newTransport returns the connections to forward targets. Each run brings its
// own deadline, so there is none here but for the steps before a request.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = t.MaxIdleConns
	t.MaxResponseHeaderBytes = 64 << 10
	t.TLSHandshakeTimeout = 10 * time.Second
	t.DisableCompression = true // a body is replayed as the target wrote it
	return t
}

func newForwarder(h Hook, transport http.RoundTripper, maxBody int64) *forwarder {
	// The first two say how to read the body, so they always go with it.
	kept := []string{"Content-Type", "Content-Encoding"}
	for _, name := range h.ResponseHeaders {
		kept = append(kept, http.CanonicalHeaderKey(name))
	}
	slices.Sort(kept)
	return &forwarder{
		target:  h.Target,
		headers: h.Headers,
		kept:    slices.Compact(kept),
		maxBody: maxBody,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Run implements message.Runner. An answer that asks to come again is an
// error, so that the claim is given back and the sender's retry runs.
func (f *forwarder) Run(ctx context.Context, turn message.Turn) (message.Outcome, error) {
	req, err := f.request(ctx, turn)
	if err != nil {
		return message.Outcome{}, fmt.Errorf("forward: %w: %w", message.ErrRun, withoutURL(err))
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return message.Outcome{}, forwardError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing was written
	if !isFinal(resp.StatusCode) {
		return message.Outcome{}, fmt.Errorf("forward: %w: target answered %d", message.ErrRun, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, f.maxBody+1))
	if err != nil {
		return message.Outcome{}, forwardError(ctx, err)
	}
	outcome := message.Outcome{
		Action:   message.ActionForward,
		Response: &message.Response{Status: resp.StatusCode, Header: f.keep(resp.Header), Body: body},
	}
	return outcome.Bounded(f.maxBody), nil
}

func (f *forwarder) request(ctx context.Context, turn message.Turn) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.target, bytes.NewReader(turn.Message.Body))
	if err != nil {
		return nil, err
	}
	if turn.Message.ContentType != "" {
		req.Header.Set("Content-Type", turn.Message.ContentType)
	}
	for name, value := range f.headers {
		if http.CanonicalHeaderKey(name) == "Host" {
			req.Host = value.Reveal()
			continue
		}
		req.Header.Set(name, value.Reveal())
	}
	if turn.Key != "" {
		// In lower case net/http does not know the name. Under the one that it
		// knows it would take leave to post again after a broken connection,
		// and only the claim decides on a second run.
		req.Header["idempotency-key"] = []string{turn.Key}
	}
	return req, nil
}

// isFinal reports whether a status settles the message. The rest may be
// answered otherwise next time.
func isFinal(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 200 && status < 500
}

func (f *forwarder) keep(from http.Header) map[string][]string {
	kept := make(map[string][]string, len(f.kept))
	for _, name := range f.kept {
		if values := from[name]; len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// forwardError names what ended the exchange: the run's time, a turn that was
// called off (its cause is passed on), or the target.
func forwardError(ctx context.Context, err error) error {
	switch ctxErr := ctx.Err(); {
	case errors.Is(ctxErr, context.DeadlineExceeded):
		return fmt.Errorf("forward: %w", message.ErrTimeout)
	case ctxErr != nil:
		return fmt.Errorf("forward: %w", context.Cause(ctx))
	}
	return fmt.Errorf("forward: %w: %w", message.ErrRun, withoutURL(err))
}

// withoutURL drops the address that net/http puts into its errors: it may
// hold a password, or a token in its query.
func withoutURL(err error) error {
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		return urlErr.Err
	}
	return err
}
