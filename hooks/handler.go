package hooks

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/hooks/payload"
	"github.com/oncegate/oncegate/internal/client"
	"github.com/oncegate/oncegate/internal/outbound"
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

// clients knows who sends a request, and counts who fails to authenticate.
type clients interface {
	Address(r *http.Request) netip.Addr
	Fail(r *http.Request) (retryAfter time.Duration) // 0 while the client has not failed too often
}

// Deps is what a Handler works with. Pipeline and Agents are required; what
// else is left out has the gateway's own default.
type Deps struct {
	Pipeline  pipeline
	Agents    func(name string) (message.Runner, bool) // the runner of an agent; "" asks for the only one
	Clients   clients                                  // nil: each may fail 20 times a minute, and no proxy is trusted
	Token     secret.String                            // the gateway's own; opens hooks that configure no authentication
	Private   bool                                     // only the gateway's own machine can reach it
	PublicURL func(r *http.Request) string             // what the sender called, for signatures that cover it; nil: ""
	MaxBody   int64                                    // bytes, of a request, as sent and decompressed, and of a forward target's answer; 0: 1 MiB
	Now       func() time.Time                         // nil: time.Now
	Log       *slog.Logger                             // nil: nothing is logged
	Metrics   prometheus.Registerer                    // nil: what is counted is shown nowhere
}

func (d Deps) withDefaults() Deps {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Clients == nil {
		d.Clients = client.New(client.Config{Limit: 20, Window: time.Minute}, d.Now)
	}
	if d.PublicURL == nil {
		d.PublicURL = func(*http.Request) string { return "" }
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Metrics == nil {
		d.Metrics = prometheus.NewRegistry()
	}
	d.MaxBody = cmp.Or(d.MaxBody, 1<<20)
	return d
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

// New builds the handler of a valid configuration. It fails if a hook names
// an agent that does not exist.
func New(cfg Config, d Deps) (*Handler, error) {
	for i, hook := range cfg.Hooks {
		if hook.Signature != nil && hook.Signature.SignedURL != "" && d.PublicURL == nil {
			return nil, fmt.Errorf("hooks[%d].signature.signed_url: needs a public URL, which the sender signs", i)
		}
	}
	d = d.withDefaults()
	m, err := newMetrics(d.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register hook metrics: %w", err)
	}
	h := &Handler{
		routes:  make(map[string]*route, len(cfg.Hooks)),
		deps:    d,
		log:     d.Log.With("component", "hooks"),
		metrics: m,
		targets: outbound.NewTransport(),
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

// Close ends idle connections to forward targets.
func (h *Handler) Close() { h.targets.CloseIdleConnections() }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.deps.Now()
	path := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, Prefix), "/") // some senders add a slash
	rt := h.routes[path]
	answers := h.serve(w, r, rt, start)
	for a := range answers.each() {
		h.metrics.requests[a.result].Inc()
		h.report(r, rt, a, start)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // as for reading, below
	answers.write(w)
}

// serve does the work of one request in the order that keeps strangers out:
// bound, authenticate over the raw bytes, parse, drop, identify, run. Nothing
// before the last step touches the claim store.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, rt *route, start time.Time) answers {
	switch {
	case rt == nil:
		return one(answer{result: unknownPath})
	case r.Method == http.MethodGet && rt.challenge != nil:
		return one(h.challenge(rt, r))
	case r.Method != http.MethodPost:
		return one(answer{result: wrongMethod, allow: rt.methods()})
	}
	// Deadlines belong to the server's connections; a ResponseWriter without
	// them is bounded by whoever made it.
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout))
	wire, res := readBody(w, r, h.deps.MaxBody)
	if res != done {
		return one(answer{result: res})
	}
	// From here net/http watches the connection to notice a sender that leaves;
	// the deadline of the body would look like one.
	_ = conn.SetReadDeadline(time.Time{})
	body, tokenName, refusal := h.authenticate(rt, r, wire, start)
	if refusal != nil {
		return one(*refusal)
	}
	value, err := payload.Parse(r.Header.Get("Content-Type"), body)
	if err != nil {
		return one(unreadableAnswer(err))
	}
	d := whole(r, value, body, tokenName)
	if rt.isBatch(&d) {
		return h.processAll(rt, d.elements())
	}
	return one(h.process(rt, &d))
}

// processAll runs the messages of a batch in their order. Those behind the
// moment at which the sender hangs up are left to its next delivery. The
// answers are kept until the last one, and so together bounded as one is.
func (h *Handler) processAll(rt *route, deliveries []delivery) answers {
	switch {
	case len(deliveries) == 0:
		return one(skip("empty"))
	case len(deliveries) > maxBatch:
		return one(answer{result: tooManyMessages})
	}
	batch, room := make([]answer, 0, len(deliveries)), h.deps.MaxBody
	for i := range deliveries {
		if deliveries[i].Request.Context().Err() != nil {
			break
		}
		a := h.process(rt, &deliveries[i])
		a.receipt.Outcome = a.receipt.Outcome.Bounded(room)
		room -= a.receipt.Outcome.Size()
		batch = append(batch, a)
	}
	return answers{batch: batch}
}

// process takes one message of an authenticated request through the pipeline,
// unless it is one that must not run.
func (h *Handler) process(rt *route, d *delivery) answer {
	ctx := d.Request.Context()
	if !rt.wants(d, h.metrics) {
		return skip("event")
	}
	text, prompt := h.text(ctx, rt, d)
	if rt.speaks && d.Payload == nil && text == "" {
		return skip("empty")
	}
	id, err := rt.identify(d)
	if err != nil {
		return answer{result: badKey}
	}
	if id.key.IsZero() {
		h.missing(ctx, rt, inKey, id.missing)
		if rt.requireKey {
			return answer{result: missingKey, detail: "missing " + strings.Join(id.missing, ", ")}
		}
		h.metrics.unkeyed.Inc()
	}
	m := message.Message{
		Key:         id.key,
		CallerKey:   id.byCaller,
		Session:     h.session(ctx, rt, d),
		Text:        text,
		Prompt:      prompt,
		Body:        d.body,
		ContentType: d.contentType,
	}
	policy := rt.policy
	if id.byContent {
		policy = rt.contentPolicy
	} else if !id.key.IsZero() {
		m.Fingerprint = rt.digest(d)
	}
	receipt, err := h.deps.Pipeline.Process(ctx, m, policy)
	return receiptAnswer(m, receipt, err)
}

// session returns the conversation of a message. One that cannot be named in
// full is none: its turn runs on its own instead of in a stranger's.
func (h *Handler) session(ctx context.Context, rt *route, d *delivery) string {
	text, missing := rt.session.Render(&d.Inputs)
	if len(missing) > 0 {
		h.missing(ctx, rt, inSession, missing)
		return ""
	}
	return bounded(text)
}

// maxSession bounds a session's name in bytes: it is kept with the record and
// repeated in every answer.
const maxSession = 512

// bounded returns a name as it is or, if it is too long, its digest, as keys do.
func bounded(session string) string {
	if len(session) <= maxSession {
		return session
	}
	sum := sha256.Sum256([]byte(session))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// text returns what the message says: the template's text, else the first of
// payload.message and payload.text that is a string, else the body itself. The
// prompt is empty unless a template frames what others have written.
func (h *Handler) text(ctx context.Context, rt *route, d *delivery) (text, prompt string) {
	if rt.message.IsEmpty() {
		text = defaultText(d)
	} else {
		var missing []string
		text, prompt, missing = rt.message.RenderPrompt(&d.Inputs)
		h.missing(ctx, rt, inMessage, missing)
	}
	return strings.ToValidUTF8(text, "\uFFFD"), strings.ToValidUTF8(prompt, "\uFFFD")
}

func defaultText(d *delivery) string {
	for _, name := range []string{"message", "text"} {
		if v := d.Payload.Member(name); v.IsString() && !v.IsMissing() {
			return string(v.AppendText(nil))
		}
	}
	if d.Payload == nil {
		return "" // white space at most
	}
	return string(d.body)
}

// missing counts and logs parts by the names that the configuration gives
// them; a payload never reaches the log.
func (h *Handler) missing(ctx context.Context, rt *route, template string, parts []string) {
	if len(parts) == 0 {
		return
	}
	h.metrics.missing[template].Add(float64(len(parts)))
	h.log.LogAttrs(ctx, slog.LevelInfo, "template part missing",
		slog.String("hook", rt.path), slog.String("template", template), slog.Any("parts", parts))
}

// report logs the end of a message, once and with the error as it was.
func (h *Handler) report(r *http.Request, rt *route, a *answer, start time.Time) {
	level := results[a.result].level
	if rt == nil || !h.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("hook", rt.path),
		slog.String("result", results[a.result].label),
		slog.String("duration", h.deps.Now().Sub(start).Round(time.Microsecond).String()), // JSON would have nanoseconds
	}
	if results[a.result].status == http.StatusUnauthorized {
		attrs = append(attrs, slog.String("client", h.deps.Clients.Address(r).String()))
	}
	if a.skipped != "" {
		attrs = append(attrs, slog.String("skipped", a.skipped))
	}
	if a.receipt.Key != "" {
		attrs = append(attrs, slog.String("key", a.receipt.Key))
	}
	if a.err != nil {
		attrs = append(attrs, slog.Any("error", a.err))
	}
	h.log.LogAttrs(r.Context(), level, "hook request", attrs...)
}
