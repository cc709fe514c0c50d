package hooks

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// Prefix is the part of a request's path before the path of its hook.
const Prefix = "/hooks/"

// Bounds on a connection that gets no further. A run in between may take
// minutes, so the server itself can have neither.
const (
	bodyTimeout  = 30 * time.Second // from the end of the header to the end of the body
	writeTimeout = 30 * time.Second // for the answer
)

// pipeline is what a handler hands its messages to.
type pipeline interface {
	Process(ctx context.Context, m message.Message, p message.Policy) (message.Receipt, error)
}

// Deps is what a Handler works with; everything is required.
type Deps struct {
	Pipeline pipeline
	Agents   func(name string) (message.Runner, bool) // the runner of an agent; "" asks for the only one
	Token    secret.String                            // the gateway's own; opens hooks that configure no authentication
	Loopback bool                                     // the gateway can be reached from its own machine only
	MaxBody  int64                                    // bytes, of a request and of a forward target's answer
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Handler serves POST /hooks/<path>. It keeps nothing between requests but
// idle connections to forward targets, which Close ends.
type Handler struct {
	routes  map[string]*route
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	targets *http.Transport
}

var _ http.Handler = (*Handler)(nil)

// route is a hook made ready: templates compiled, secrets loaded, policy built.
type route struct {
	path            string
	guard           guard
	closed          bool // nothing may open it: no token or signature anywhere, and strangers can reach it
	acceptCallerKey bool
	requireKey      bool

	id, platform, account, channel template // of the key
	session, message               template

	policy        message.Policy
	contentPolicy message.Policy // for a message that only its content identifies
}

// New builds the handler of a valid configuration. It fails if a hook names
// an agent that does not exist.
func New(cfg Config, d Deps) (*Handler, error) {
	m, err := newMetrics(d.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register hook metrics: %w", err)
	}
	h := &Handler{
		routes:  make(map[string]*route, len(cfg.Hooks)),
		deps:    d,
		log:     d.Log.With("component", "hooks"),
		metrics: m,
		targets: newTransport(),
	}
	for i, hook := range cfg.Hooks {
		rt, err := h.newRoute(hook, cfg)
		if err != nil {
			return nil, fmt.Errorf("hooks[%d].%w", i, err)
		}
		h.routes[hook.Path] = rt
	}
	return h, nil
}

func (h *Handler) newRoute(hook Hook, cfg Config) (*route, error) {
	rt := &route{
		path:            hook.Path,
		guard:           newGuard(hook, h.deps.Token),
		acceptCallerKey: hook.AcceptIdempotencyKey,
		requireKey:      hook.RequireKey,
	}
	rt.closed = rt.guard.isOpen() && !h.deps.Loopback
	for _, t := range hook.templates() {
		compiled, err := compile(t.text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.key, err)
		}
		*t.of(rt) = compiled
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
	}
	rt.contentPolicy = rt.policy
	rt.contentPolicy.TTL, rt.contentPolicy.FromFirst = contentWindow, true
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
	return runner, nil
}

func orDefault(own *time.Duration, common time.Duration) time.Duration {
	if own != nil {
		return *own
	}
	return common
}

// Close ends idle connections to forward targets.
func (h *Handler) Close() { h.targets.CloseIdleConnections() }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rt := h.routes[strings.TrimPrefix(r.URL.Path, Prefix)]
	a := h.serve(w, r, rt, start)
	h.metrics.requests[a.result].Inc()
	h.report(r, rt, a, start)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // as for reading, below
	a.write(w)
}

// serve does the work of one request in the order that keeps strangers out:
// bound, authenticate over the raw bytes, parse, identify, run. Nothing
// before the last step touches the claim store.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, rt *route, start time.Time) answer {
	if rt == nil {
		return answer{result: unknownPath}
	}
	if r.Method != http.MethodPost {
		return answer{result: wrongMethod}
	}
	// Deadlines belong to the server's connections; a ResponseWriter without
	// them is bounded by whoever made it.
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(start.Add(bodyTimeout))
	body, res := readBody(w, r, h.deps.MaxBody)
	if res != done {
		return answer{result: res}
	}
	// From here net/http watches the connection to notice a sender that leaves;
	// the deadline of the body would look like one.
	_ = conn.SetReadDeadline(time.Time{})
	if rt.closed || rt.guard.isOpen() && fromBrowser(r.Header) || !rt.guard.admits(r.Header, body) {
		return answer{result: unauthorized}
	}
	parsed, res, detail := parseBody(r.Header, body)
	if res != done {
		return answer{result: res, detail: detail}
	}
	return h.process(rt, &inputs{payload: parsed, request: r}, body)
}

// fromBrowser reports whether a web page sent the request. Any page can make
// its visitor's browser post to a loopback address, so that a hook without
// authentication is open to programs of this machine only.
func fromBrowser(header http.Header) bool { return len(header["Origin"]) > 0 }

// process runs an authenticated request through the pipeline.
func (h *Handler) process(rt *route, in *inputs, body []byte) answer {
	ctx := in.request.Context()
	id, err := rt.identify(in)
	if err != nil {
		return answer{result: badKey}
	}
	if len(id.missing) > 0 {
		h.missing(ctx, rt, inKey, id.missing)
		if rt.requireKey {
			return answer{result: missingKey, detail: "missing " + strings.Join(id.missing, ", ")}
		}
		h.metrics.unkeyed.Inc()
	}
	m := message.Message{
		Key:         id.key,
		CallerKey:   id.byCaller,
		Session:     h.session(ctx, rt, in),
		Text:        h.text(ctx, rt, in, body),
		Body:        body,
		ContentType: in.request.Header.Get("Content-Type"),
	}
	policy := rt.policy
	if id.byContent {
		policy = rt.contentPolicy
	} else if !id.key.IsZero() {
		m.Fingerprint = digest(in.request, body)
	}
	receipt, err := h.deps.Pipeline.Process(ctx, m, policy)
	return receiptAnswer(m, receipt, err)
}

// session returns the conversation of a message. One that cannot be named in
// full is none: its turn runs on its own instead of in a stranger's.
func (h *Handler) session(ctx context.Context, rt *route, in *inputs) string {
	text, missing := rt.session.render(in)
	if len(missing) > 0 {
		h.missing(ctx, rt, inSession, missing)
		return ""
	}
	return text
}

// text returns what the message says: the template's text, else the first of
// payload.message and payload.text that is a string, else the body itself.
func (h *Handler) text(ctx context.Context, rt *route, in *inputs, body []byte) string {
	var text string
	if rt.message.isEmpty() {
		text = defaultText(in.payload, body)
	} else {
		var missing []string
		text, missing = rt.message.render(in)
		if len(missing) > 0 {
			h.missing(ctx, rt, inMessage, missing)
		}
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text
}

func defaultText(p payload, body []byte) string {
	if len(p) > 0 && p[0] == '{' {
		for _, name := range []string{"message", "text"} {
			if v := p.at(name); v.isString() && !v.isMissing() {
				return string(v.appendText(nil))
			}
		}
	}
	return string(body)
}

// missing counts and logs parts by the names that the configuration gives
// them; a payload never reaches the log.
func (h *Handler) missing(ctx context.Context, rt *route, template string, parts []string) {
	h.metrics.missing[template].Add(float64(len(parts)))
	h.log.LogAttrs(ctx, slog.LevelInfo, "template part missing",
		slog.String("hook", rt.path), slog.String("template", template), slog.Any("parts", parts))
}

// report logs the end of a request, once and with the error as it was.
func (h *Handler) report(r *http.Request, rt *route, a answer, start time.Time) {
	level := results[a.result].level
	if rt == nil || !h.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("hook", rt.path),
		slog.String("result", results[a.result].label),
		slog.String("duration", time.Since(start).Round(time.Microsecond).String()), // JSON would have nanoseconds
	}
	if a.receipt.Key != "" {
		attrs = append(attrs, slog.String("key", a.receipt.Key))
	}
	if a.err != nil {
		attrs = append(attrs, slog.Any("error", a.err))
	}
	h.log.LogAttrs(r.Context(), level, "hook request", attrs...)
}
