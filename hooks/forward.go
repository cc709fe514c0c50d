package hooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/oncegate/oncegate/hooks/payload"
	"github.com/oncegate/oncegate/internal/outbound"
	"github.com/oncegate/oncegate/internal/redact"
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
	soft    bool // a 2xx may say in its body that it failed
}

var _ message.Runner = (*forwarder)(nil)

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
		soft:    h.SoftFailure,
		client:  outbound.NewClient(transport),
	}
}

// Run implements message.Runner. An answer that asks to come again is an
// error, so that the claim is given back and the sender's retry runs.
func (f *forwarder) Run(ctx context.Context, turn message.Turn) (message.Outcome, error) {
	req, err := f.request(ctx, turn)
	if err != nil {
		return message.Outcome{}, fmt.Errorf("forward: %w: %w", message.ErrRun, redact.Error(err))
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
	if f.soft && failedSoftly(resp.StatusCode, body) {
		return message.Outcome{}, fmt.Errorf("forward: %w: target answered %d and says that it failed", message.ErrRun, resp.StatusCode)
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

// failedSoftly reports whether a target that answers 2xx says "success": false
// or "ok": false in the object that it answers with.
func failedSoftly(status int, body []byte) bool {
	if status >= 300 {
		return false
	}
	v, err := payload.Parse("application/json", body)
	return err == nil && (v.Member("success").IsFalse() || v.Member("ok").IsFalse())
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
	return fmt.Errorf("forward: %w: %w", message.ErrRun, redact.Error(err))
}

// checkTarget never quotes the target: it may hold a password.
func checkTarget(target string) error {
	if target == "" {
		return errors.New("target: is required with action forward")
	}
	u, err := url.Parse(target)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return errors.New("target: is not an http or https URL with a host")
	}
	if u.User != nil {
		return errors.New("target: holds a user or password, which would be printed; send an Authorization header with headers instead")
	}
	return nil
}

// ownHeaders are set by the gateway or belong to one connection only.
var ownHeaders = []string{
	"Connection", "Content-Length", "Idempotency-Key", "Idempotency-Replayed", "Keep-Alive", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "X-Idempotency-Key", "X-Idempotency-Status",
}

func (h Hook) headerProblems() []error {
	var errs []error
	checkName := func(key, name string) {
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			errs = append(errs, fmt.Errorf("%s: %q is not the name of a header", key, name))
		case slices.Contains(ownHeaders, http.CanonicalHeaderKey(name)):
			errs = append(errs, fmt.Errorf("%s: %s is set by the gateway", key, name))
		}
	}
	seen := make(map[string]string, len(h.Headers))
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		checkName("headers", name)
		if other, twice := seen[http.CanonicalHeaderKey(name)]; twice {
			errs = append(errs, fmt.Errorf("headers: %s and %s are the same header", other, name))
		}
		seen[http.CanonicalHeaderKey(name)] = name
		if strings.ContainsFunc(h.Headers[name].Reveal(), func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			errs = append(errs, fmt.Errorf("headers: the value of %s holds a line break or another control character", name))
		}
	}
	for _, name := range h.ResponseHeaders {
		checkName("response_headers", name)
	}
	return errs
}
