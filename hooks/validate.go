package hooks

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/hooks/template"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// Validate returns every problem of the list of hooks, joined; each begins
// with the key's name, such as "hooks[0].path". The section idempotency
// validates itself. Whether an agent exists is New's to say.
func (c Config) Validate() error {
	var errs []error
	paths := make(map[string]int, len(c.Hooks))
	for i, h := range c.Hooks {
		at := func(err error) { errs = append(errs, fmt.Errorf("hooks[%d].%w", i, err)) }
		for _, err := range append(h.problems(), h.replayProblems(orDefault(h.TTL, c.Idempotency.TTL))...) {
			at(err)
		}
		if first, taken := paths[h.Path]; taken {
			at(fmt.Errorf("path: %q is already the path of hooks[%d]", h.Path, first))
		} else {
			paths[h.Path] = i
		}
	}
	return errors.Join(errs...)
}

func (h Hook) problems() []error {
	var errs []error
	check := func(found ...error) {
		errs = append(errs, slices.DeleteFunc(found, func(err error) bool { return err == nil })...)
	}
	check(checkPath(h.Path))
	check(h.actionProblems()...)
	check(h.authProblems()...)
	for _, t := range h.templates() {
		if _, err := template.Compile(t.text); err != nil {
			check(fmt.Errorf("%s: %w", t.key, err))
		}
	}
	check(h.eventProblems()...)
	check(h.keyProblems()...)
	check(h.fingerprintProblems()...)
	check(h.challengeProblems()...)
	if h.OnDuplicate != message.Conflict && h.OnDuplicate != message.Wait {
		check(fmt.Errorf("on_duplicate: %q is not one of %s, %s", h.OnDuplicate, message.Conflict, message.Wait))
	}
	if h.WaitTimeout <= 0 {
		check(fmt.Errorf("wait_timeout: %s is no time to wait; leave the key out for the default", h.WaitTimeout))
	}
	if h.Lease != nil {
		check(idempotency.CheckDuration("lease", *h.Lease))
	}
	if h.TTL != nil {
		check(idempotency.CheckDuration("ttl", *h.TTL))
	}
	if h.OnUnavailable != "" && h.OnUnavailable != idempotency.Open && h.OnUnavailable != idempotency.Closed {
		check(fmt.Errorf("on_unavailable: %q is not one of %s, %s", h.OnUnavailable, idempotency.Open, idempotency.Closed))
	}
	return errs
}

// hookTemplate is a text of a hook that may refer to the request.
type hookTemplate struct {
	key  string // in the configuration
	text string
	of   func(*route) *template.Template // where the compiled form goes
}

func (h Hook) templates() []hookTemplate {
	all := []hookTemplate{
		{"platform", h.Platform, func(rt *route) *template.Template { return &rt.platform }},
		{"account", h.Account, func(rt *route) *template.Template { return &rt.account }},
		{"channel", cmp.Or(h.Channel, h.Path), func(rt *route) *template.Template { return &rt.channel }},
		{"idempotency_key", h.IdempotencyKey, func(rt *route) *template.Template { return &rt.id }},
		{"event", h.Event, func(rt *route) *template.Template { return &rt.event }},
		{"session", h.Session, func(rt *route) *template.Template { return &rt.session }},
		{"message", h.Message, func(rt *route) *template.Template { return &rt.message }},
	}
	if h.Fingerprint != nil {
		for i, text := range h.Fingerprint.Fields {
			all = append(all, hookTemplate{
				fmt.Sprintf("fingerprint.fields[%d]", i), text,
				func(rt *route) *template.Template { return &rt.fields[i] },
			})
		}
	}
	return all
}

// checkPath wants segments that mean the same escaped and unescaped, and that
// no proxy or router cleans into another path.
func checkPath(path string) error {
	if path == "" {
		return errors.New("path: must not be empty")
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "":
			return fmt.Errorf("path: %q has an empty segment; write it without a slash at either end", path)
		case segment == "." || segment == "..":
			return fmt.Errorf("path: %q has the segment %q", path, segment)
		case strings.IndexFunc(segment, func(r rune) bool { return !isAlphanumeric(r) && !strings.ContainsRune("._~-", r) }) >= 0:
			return fmt.Errorf("path: %q may hold only letters, digits, \".\", \"_\", \"~\", \"-\" and \"/\" between segments", path)
		}
	}
	return nil
}

// actionProblems refuses keys that the action would ignore: whoever wrote one
// expects something of it.
func (h Hook) actionProblems() []error {
	var errs []error
	useless := func(key string, set bool) {
		if set {
			errs = append(errs, fmt.Errorf("%s: does nothing with action %s", key, h.Action))
		}
	}
	switch h.Action {
	case message.ActionAgent, message.ActionWake:
		useless("target", h.Target != "")
		useless("headers", len(h.Headers) > 0)
		useless("response_headers", len(h.ResponseHeaders) > 0)
		useless("soft_failure", !h.SoftFailure)
	case message.ActionForward:
		useless("agent", h.Agent != "")
		useless("message", h.Message != "")
		errs = append(errs, checkTarget(h.Target))
		errs = append(errs, h.headerProblems()...)
	default:
		errs = append(errs, fmt.Errorf("action: %q is not one of %s, %s, %s", h.Action, message.ActionAgent, message.ActionForward, message.ActionWake))
	}
	return errs
}

func (h Hook) authProblems() []error {
	var errs []error
	if h.Auth != nil {
		errs = h.Auth.problems()
	}
	if h.Signature != nil {
		for _, err := range joined(h.Signature.Validate()) {
			errs = append(errs, fmt.Errorf("signature.%w", err))
		}
	}
	return errs
}

// joined returns the errors that errors.Join has put together.
func joined(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

func (h Hook) eventProblems() []error {
	event, err := template.Compile(h.Event)
	switch {
	case h.Event == "" && len(h.Events) > 0:
		return []error{errors.New("events: does nothing without event, the template that is looked up in it")}
	case h.Event != "" && len(h.Events) == 0:
		return []error{errors.New("event: does nothing without events, the list of those that run")}
	case h.Event != "" && err == nil && event.IsConstant():
		return []error{fmt.Errorf("event: %q has no {{ }} part, so that every message would be the same event", h.Event)}
	}
	return nil
}

// keyProblems finds keys that would identify nothing, or everything alike.
func (h Hook) keyProblems() []error {
	var errs []error
	if id, err := template.Compile(h.IdempotencyKey); err == nil && h.IdempotencyKey != "" && id.IsConstant() {
		errs = append(errs, fmt.Errorf("idempotency_key: %q has no {{ }} part, so that every message would be a duplicate of the first", h.IdempotencyKey))
	}
	if h.TTL != nil && h.IdempotencyKey == "" && !h.AcceptIdempotencyKey {
		errs = append(errs, errors.New("ttl: does nothing without idempotency_key or accept_idempotency_key; how long content alone is known is fingerprint.window"))
	}
	if h.CallerKey && h.IdempotencyKey == "" {
		errs = append(errs, errors.New("caller_key: does nothing without idempotency_key"))
	}
	return errs
}

func (h Hook) fingerprintProblems() []error {
	f := h.Fingerprint
	if f == nil {
		return nil
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if h.IdempotencyKey != "" {
		bad("fingerprint: does nothing beside idempotency_key; a message without that key runs without deduplication")
	}
	switch {
	case f.Mode != "" && f.Mode != FingerprintOff:
		bad("fingerprint: %q is neither %s nor a section with fields and window", f.Mode, FingerprintOff)
	case f.Mode == FingerprintOff && h.RequireKey && !h.AcceptIdempotencyKey && h.IdempotencyKey == "":
		bad("fingerprint: off leaves no message a key, and require_key refuses those; set idempotency_key or accept_idempotency_key")
	}
	if f.Window != nil {
		if err := idempotency.CheckDuration("fingerprint.window", *f.Window); err != nil {
			errs = append(errs, err)
		}
	}
	for i, text := range f.Fields {
		if t, err := template.Compile(text); err == nil && t.IsConstant() {
			bad("fingerprint.fields[%d]: %q has no {{ }} part, so that it tells no two messages apart", i, text)
		}
	}
	return errs
}

// replayProblems compares how long a signed request passes with how long its
// message is known. A copy that passes when its record is gone would run again.
func (h Hook) replayProblems(ttl time.Duration) []error {
	passes := h.passes()
	if passes == 0 {
		return nil
	}
	var errs []error
	tooLong := func(known time.Duration, key string) {
		if passes >= known {
			errs = append(errs, fmt.Errorf("signature.max_age: with max_future, a request passes for %s, and its message is known for %s (%s): a copy of it would run again after that; shorten max_age or lengthen %s",
				passes, known, key, key))
		}
	}
	if h.IdempotencyKey != "" || h.AcceptIdempotencyKey {
		tooLong(ttl, "ttl")
	}
	if f := h.Fingerprint; h.IdempotencyKey == "" && f != nil && f.Window != nil {
		tooLong(*f.Window, "fingerprint.window")
	}
	return errs
}

// passes returns how long one signed request is accepted at most, from the
// first moment to the last; 0 if no time is signed.
func (h Hook) passes() time.Duration {
	if h.Signature == nil {
		return 0
	}
	maxAge, maxFuture := h.Signature.Window()
	return maxAge + maxFuture
}

func (h Hook) challengeProblems() []error {
	c := h.Challenge
	if c == nil {
		return nil
	}
	var errs []error
	if c.Param == "" {
		errs = append(errs, errors.New("challenge.param: must name the query parameter to echo"))
	}
	switch {
	case c.VerifyParam == "" && !c.VerifyToken.IsEmpty():
		errs = append(errs, errors.New("challenge.verify_param: must name the query parameter that holds the token"))
	case c.VerifyParam != "" && c.VerifyToken.IsEmpty():
		errs = append(errs, errors.New("challenge.verify_token: must not be empty; it is what verify_param is compared with"))
	case c.VerifyParam != "" && c.VerifyParam == c.Param:
		errs = append(errs, errors.New("challenge.verify_param: is the parameter to echo; the token would be echoed"))
	}
	return errs
}

func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}
