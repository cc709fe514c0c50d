package httpagent

import (
	"errors"
	"net/http"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/outbound"
)

// unreachable is the failure of an exchange that broke.
func unreachable(err error) *agent.Error {
	return &agent.Error{Kind: agent.Unreachable, Err: outbound.Reason(err)}
}

// statusError is the failure that an answer without a 2xx stands for. Its body
// is not looked at.
func statusError(resp *http.Response) *agent.Error {
	e := &agent.Error{Kind: agent.Refused, Status: resp.StatusCode, RetryAfter: outbound.RetryAfter(resp.Header)}
	switch status := resp.StatusCode; {
	case status == http.StatusTooManyRequests, status == http.StatusTooEarly:
		e.Kind = agent.RateLimited
	case status == http.StatusRequestTimeout:
		e.Kind = agent.Timeout
	case status >= 500:
		e.Kind = agent.ServerError
	case status/100 == 3:
		e.Err = errors.New("a redirect is not followed, since the headers would go with it")
	}
	return e
}

func errTooLarge() *agent.Error {
	return &agent.Error{Kind: agent.TooLarge, Err: errors.New("the answer is larger than a reply may be")}
}
