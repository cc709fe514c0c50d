package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/outbound"
)

// The text of a failure is one of the sentences in this package, a word of the
// operating system, or a name that the endpoint gave the failure; see mayTell.
// Everything else that an endpoint or net/http says may quote the prompt, the
// key or the host.

// maxErrorBody is how much of the body of a failure is read, in bytes.
const maxErrorBody = 64 << 10

// mayPass reports whether a request that failed like that is worth repeating.
func mayPass(err error) bool {
	switch agent.KindOf(err) {
	case agent.Unreachable, agent.RateLimited, agent.ServerError, agent.Timeout:
		return true
	}
	return false
}

// unreachable is the failure of a request without an answer.
func unreachable(err error) *agent.Error {
	return &agent.Error{Kind: agent.Unreachable, Err: outbound.Reason(err)}
}

// broken is the failure of a body that was not read to its end; err is nil
// where it ended too early.
func broken(err error) *agent.Error {
	if errors.Is(err, errTooLarge) {
		return &agent.Error{Kind: agent.TooLarge, Err: errTooLarge}
	}
	return &agent.Error{Kind: agent.Unreachable, Err: errors.New("the answer broke off before it was complete")}
}

func malformed(text string) *agent.Error {
	return &agent.Error{Kind: agent.Malformed, Err: errors.New(text)}
}

// statusError is the failure that an answer without a 2xx stands for.
func (q question) statusError(res *http.Response) *agent.Error {
	e := &agent.Error{Kind: agent.Refused, Status: res.StatusCode, RetryAfter: outbound.RetryAfter(res.Header)}
	switch status := res.StatusCode; {
	case status == http.StatusTooManyRequests:
		e.Kind = agent.RateLimited
	case status == http.StatusRequestTimeout:
		e.Kind = agent.Timeout // what it stands for in front of a model: it took too long
	case status == http.StatusConflict, status >= 500:
		e.Kind = agent.ServerError
	case status < 400:
		e.Err = errors.New("a redirect is not followed, since the key would go with it")
		return e
	}
	data, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // for one word; the status is known
	var body chunk
	_ = json.Unmarshal(data, &body)
	e.Err, _ = q.problem(body.Error)
	return e
}

// streamError is the failure that a 2xx answer tells of.
func (q question) streamError(object json.RawMessage) *agent.Error {
	e := &agent.Error{Kind: agent.ServerError}
	var limited bool
	if e.Err, limited = q.problem(object); limited {
		e.Kind = agent.RateLimited
	}
	if e.Err == nil {
		e.Err = errors.New("the endpoint reports an error instead of the rest")
	}
	return e
}

// problem returns the endpoint's name for a failure, nil if it has none that
// may be told, and whether the failure is a rate limit.
func (q question) problem(object json.RawMessage) (named error, limited bool) {
	var e struct{ Code, Type any }
	_ = json.Unmarshal(object, &e) // some send a bare text
	for _, v := range []any{e.Code, e.Type} {
		name, _ := v.(string)
		if n, ok := v.(float64); ok {
			name = strconv.FormatFloat(n, 'f', -1, 64)
		}
		limited = limited || isRateLimit(name)
		if named == nil && q.mayTell(name) {
			named = fmt.Errorf("the endpoint calls it %s", name)
		}
	}
	return named, limited
}

func isRateLimit(name string) bool {
	plain := strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(name))
	return strings.Contains(plain, "ratelimit") || plain == "toomanyrequests" || plain == "429"
}

// identifier is the form of the names that endpoints have for failures.
var identifier = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,47}$`)

// mayTell reports whether a name is one, and has nothing in common with what
// nobody may know or was said. A short text can be in a name by chance.
func (q question) mayTell(name string) bool {
	const chance = 8
	name = strings.ToLower(name)
	common := func(least int) func(string) bool {
		return func(text string) bool {
			text = strings.ToLower(text)
			return strings.Contains(text, name) || text != "" && len(text) >= least && strings.Contains(name, text)
		}
	}
	return identifier.MatchString(name) && !slices.ContainsFunc(q.private, common(0)) && !slices.ContainsFunc(q.said, common(chance))
}
