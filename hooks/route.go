package hooks

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/oncegate/oncegate/hooks/template"
	"github.com/oncegate/oncegate/message"
)

// route is a hook made ready: templates compiled, secrets loaded, policy built.
type route struct {
	path            string
	guard           guard
	closed          bool // nothing may open it: no token or signature anywhere, and strangers can reach it
	challenge       *Challenge
	events          []string // empty: all
	acceptCallerKey bool
	callerKey       bool // the template is the caller's own key
	requireKey      bool
	contentOff      bool // content identifies nothing
	takesArray      bool // an array is one message
	speaks          bool // the runner is given the text: without one there is nothing to run

	id, platform, account, channel template.Template // of the key
	fields                         []template.Template
	event, session, message        template.Template

	policy        message.Policy
	contentPolicy message.Policy // for a message that only its content identifies
}

func (h *Handler) newRoute(hook Hook, cfg Config) (*route, error) {
	rt := &route{
		path:            hook.Path,
		challenge:       hook.Challenge,
		events:          hook.Events,
		acceptCallerKey: hook.AcceptIdempotencyKey,
		callerKey:       hook.CallerKey,
		requireKey:      hook.RequireKey,
		speaks:          hook.Action != message.ActionForward,
	}
	var err error
	if rt.guard, err = newGuard(hook, h.deps.Token); err != nil {
		return nil, fmt.Errorf("signature.%w", err)
	}
	rt.closed = rt.guard.isOpen() && !h.deps.Private
	if hook.Fingerprint != nil {
		rt.contentOff = hook.Fingerprint.Mode == FingerprintOff
		rt.fields = make([]template.Template, len(hook.Fingerprint.Fields))
	}
	for _, t := range hook.templates() {
		compiled, err := template.Compile(t.text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.key, err)
		}
		*t.of(rt) = compiled
		rt.takesArray = rt.takesArray || compiled.IndexesPayload()
	}
	runner, err := h.runner(hook)
	if err != nil {
		return nil, err
	}
	rt.policy = message.Policy{
		Route:       "hook:" + hook.Path,
		Runner:      runner,
		Lease:       orDefault(hook.Lease, cfg.Idempotency.Lease),
		TTL:         orDefault(hook.TTL, cfg.Idempotency.TTL),
		OnDuplicate: hook.OnDuplicate,
		WaitTimeout: hook.WaitTimeout,

		OnUnavailable: cmp.Or(hook.OnUnavailable, cfg.Idempotency.OnUnavailable),
	}
	rt.contentPolicy = rt.policy
	rt.contentPolicy.TTL, rt.contentPolicy.FromFirst = hook.ContentWindow(), true
	return rt, nil
}

func (h *Handler) runner(hook Hook) (message.Runner, error) {
	if hook.Action == message.ActionForward {
		return newForwarder(hook, h.targets, h.deps.MaxBody), nil
	}
	runner, ok := h.deps.Agents(hook.Agent)
	if !ok {
		return nil, fmt.Errorf("agent: there is no agent %q", hook.Agent)
	}
	if hook.Action == message.ActionWake {
		return waker{runner}, nil
	}
	return runner, nil
}

// waker is the Runner of action wake: an agent's, whose reply is neither recorded
// nor sent to anybody.
type waker struct{ agent message.Runner }

var _ message.Runner = waker{}

// Run implements message.Runner.
func (w waker) Run(ctx context.Context, turn message.Turn) (message.Outcome, error) {
	outcome, err := w.agent.Run(ctx, turn)
	if err != nil {
		return message.Outcome{}, err
	}
	return message.Outcome{Action: message.ActionWake, Agent: outcome.Agent, Session: outcome.Session}, nil
}

// ContentWindow returns how long content is known. A signed request can be
// repeated by anybody who saw it for as long as it passes, so that its content
// is known for longer than that.
func (h Hook) ContentWindow() time.Duration {
	if h.Fingerprint != nil && h.Fingerprint.Window != nil {
		return *h.Fingerprint.Window
	}
	return max(defaultWindow, h.passes()+time.Second)
}

func orDefault(own *time.Duration, common time.Duration) time.Duration {
	if own != nil {
		return *own
	}
	return common
}

// methods lists what the route answers, for the Allow header.
func (rt *route) methods() string {
	if rt.challenge != nil {
		return http.MethodGet + ", " + http.MethodPost
	}
	return http.MethodPost
}

// wants reports whether the message is of an event that runs. That a part of
// its name is missing is usual, so it is counted and not logged.
func (rt *route) wants(d *delivery, m *metrics) bool {
	if len(rt.events) == 0 {
		return true
	}
	event, missing := rt.event.Render(&d.Inputs)
	m.missing[inEvent].Add(float64(len(missing)))
	return slices.Contains(rt.events, event)
}
