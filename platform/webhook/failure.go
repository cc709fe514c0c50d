package webhook

import (
	"context"
	"fmt"
	"net/http"

	"github.com/oncegate/oncegate/internal/outbound"
	"github.com/oncegate/oncegate/platform"
)

// broke is the failure of an exchange that has no answer, or half of one. With a
// connection the reply may have been sent.
func (e *exchange) broke(bounded context.Context, err error) *platform.SendError {
	failed := &platform.SendError{Unsent: !e.connected.Load(), Err: outbound.Reason(err)}
	switch {
	case e.ctx.Err() != nil:
		failed.Err = context.Cause(e.ctx)
	case bounded.Err() != nil && e.connected.Load():
		failed.Err = fmt.Errorf("there was no complete answer within %s", timeout)
	}
	return failed
}

// statusError is the failure that an answer without a 2xx stands for. Its body
// is not looked at.
func statusError(resp *http.Response) *platform.SendError {
	status := resp.StatusCode
	e := &platform.SendError{Unsent: true, Err: fmt.Errorf("the server answered %d", status)}
	switch {
	case isUndecided(status):
		e.Unsent = false
	case status/100 == 3:
		e.Refused, e.Err = true, fmt.Errorf("the server answered %d; a redirect is not followed, since the reply would go with it: set the channel's url to where it leads", status)
	case !isPassing(status):
		e.Refused, e.Err = true, fmt.Errorf("the server answered %d; check the channel's url and secret, and what the server says about it", status)
	}
	if !e.Refused {
		e.RetryAfter = outbound.RetryAfter(resp.Header)
	}
	return e
}

// isPassing reports whether a server that did not take a reply may do so later.
func isPassing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// isUndecided reports whether a server may have taken the reply in spite of its
// answer: an earlier attempt under the key is not finished, or a proxy has
// heard nothing from the server behind it, in its own numbers or in those of
// no standard.
func isUndecided(status int) bool {
	switch status {
	case http.StatusConflict, http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	}
	return status >= 520
}

// softFailure is the failure of a 2xx whose body says that it is one.
func softFailure(status int) *platform.SendError {
	return &platform.SendError{Unsent: true, Err: fmt.Errorf("the server answered %d and says in its body that it failed", status)}
}
