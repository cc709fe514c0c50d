package httpagent

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/redact"
)

// maxRetryAfter is the longest wait that is passed on. A longer one is no more
// than "not today".
const maxRetryAfter = 24 * time.Hour

// unreachable is the failure of an exchange that broke. Of the errors of
// net/http only those whose words are known go into its text: others quote what
// the far end sent.
func unreachable(err error) *agent.Error {
	reason := errors.New("the connection broke before the answer was complete")
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		reason = errors.New("the certificate of the far end cannot be verified") // x509 may quote one
	} else if op, ok := errors.AsType[*net.OpError](err); ok {
		reason = redact.Error(op)
	} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		reason = errors.New("there was no connection in time")
	}
	return &agent.Error{Kind: agent.Unreachable, Err: reason}
}

// statusError is the failure that an answer without a 2xx stands for. Its body
// is not looked at.
func statusError(resp *http.Response) *agent.Error {
	e := &agent.Error{Kind: agent.Refused, Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header.Get("Retry-After"))}
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

// retryAfter returns when the far end wants to be asked again; 0 if it does not
// say.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), maxRetryAfter)
}

func errTooLarge() *agent.Error {
	return &agent.Error{Kind: agent.TooLarge, Err: errors.New("the answer is larger than a reply may be")}
}
