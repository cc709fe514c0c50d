package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/message"
)

// Sessions give turns their history. One that is away does not stop the turns:
// they run without what was said before, what they say is lost to later ones,
// and the owner capability/sessions:<backend> is degraded.
type Sessions struct {
	cfg SessionsConfig
	log *slog.Logger

	mu      sync.Mutex
	history History // nil: not open
	worked  bool    // a probe ever did
	away    bool    // the last call failed, or nothing has been tried
}

// History is what Sessions keep their rows in.
type History interface {
	agent.History
	// Ping writes, and reads that back.
	Ping(ctx context.Context) error
}

// SessionsConfig is what NewSessions needs.
type SessionsConfig struct {
	Backend  string                                     // its name on /health
	Open     func(ctx context.Context) (History, error) // tried again until it succeeds
	Reopen   func(err error) bool                       // whether a failed probe wants the history opened anew; nil: never
	Timeout  time.Duration                              // of one call
	Classify func(err error) string
	Hint     func(class string) string // what to do about a class of trouble
	Health   *health.Registry
	Metrics  *Metrics
	Log      *slog.Logger
}

const (
	probeSessionsEvery = time.Second
	reasonSessions     = "session history unavailable (turns run without it)"
)

var errNotOpen = errors.New("the session history is not open yet")

// NewSessions returns Sessions that are not open; Start opens them.
func NewSessions(cfg SessionsConfig) *Sessions {
	return &Sessions{cfg: cfg, log: cfg.Log.With("component", "sessions"), away: true}
}

// Start opens the history, so that the first message has one, or says on
// /health that there is none.
func (s *Sessions) Start(ctx context.Context) { s.probe(ctx) }

// Run looks after the history each second until ctx ends.
func (s *Sessions) Run(ctx context.Context) error {
	tick := time.NewTicker(probeSessionsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.probe(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// Close closes the history. No turn runs any more, nor does Run.
func (s *Sessions) Close() error {
	if h := s.swap(nil); h != nil {
		return h.Close()
	}
	return nil
}

func (s *Sessions) swap(h History) (before History) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.history = s.history, h
	return before
}

func (s *Sessions) open() (History, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.history == nil {
		return nil, errNotOpen
	}
	return s.history, nil
}

func (s *Sessions) probe(ctx context.Context) {
	err := s.tryProbe(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.degrade(err)
		return
	}
	s.mu.Lock()
	s.worked, s.away = true, false
	s.mu.Unlock()
	s.cfg.Health.Clear(health.KindCapability, s.owner())
}

func (s *Sessions) tryProbe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	h, err := s.open()
	if err != nil {
		if h, err = s.cfg.Open(ctx); err != nil {
			return err
		}
		s.swap(h)
	}
	err = h.Ping(ctx)
	if err != nil && s.cfg.Reopen != nil && s.cfg.Reopen(err) {
		s.swap(nil)
		err = errors.Join(err, h.Close())
	}
	return err
}

// Backend names where histories are kept now, "none" while they are away.
func (s *Sessions) Backend() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return "none"
	}
	return s.cfg.Backend
}

func (s *Sessions) owner() string { return "sessions:" + s.cfg.Backend }

func (s *Sessions) degrade(err error) {
	class := s.cfg.Classify(err)
	s.mu.Lock()
	s.away = true
	state := health.Cold
	if s.worked {
		state = health.Stale
	}
	s.mu.Unlock()
	s.cfg.Health.Degrade(health.Owner{
		Kind: health.KindCapability, ID: s.owner(), State: state, Class: class, Reason: reasonSessions,
		RetryHint: s.cfg.Hint(class) + "; it is tried again by itself", Detail: err.Error(),
	})
}

// without says that a turn has no history because of err. What is wrong with one
// session does not make the histories of all others worse.
func (s *Sessions) without(t message.Turn, doing string, err error) {
	s.cfg.Metrics.forgetful.Inc()
	s.log.Warn("turn without history", "session", t.Message.Session, "key", t.Key, "doing", doing, "error", err)
	if !errors.Is(err, errNotOpen) && !errors.Is(err, agent.ErrUnreadable) { // of the first the probe has said why
		s.degrade(err)
	}
}

// memory is what a turn knows of its session.
type memory struct {
	key      string      // of this turn's rows
	earlier  []agent.Row // of other messages
	answer   string      // of an earlier run of this message
	answered bool
}

// begin notes the turn's fence and reads what was said before. ErrStale means
// that a later turn has begun.
func (s *Sessions) begin(ctx context.Context, t message.Turn) (memory, error) {
	h, err := s.open()
	var rows []agent.Row
	if err == nil {
		call, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		rows, err = h.Begin(call, t.Message.Session, t.Fence)
	}
	switch {
	case errors.Is(err, agent.ErrStale):
		s.cfg.Metrics.stale.WithLabelValues(staleHistory).Inc()
		return memory{}, fmt.Errorf("read the history: %w", err)
	case err != nil && ctx.Err() != nil:
		return memory{}, context.Cause(ctx)
	case err != nil:
		s.without(t, "read", err)
	}
	return recall(t, rows, time.Now()), nil
}

// recall tells the rows of earlier messages from those of an earlier run of
// this one: of the same key and text, and inside the window. Any other run under
// the key is a message of its own, whose rows have the fence in their key.
func recall(t message.Turn, rows []agent.Row, now time.Time) memory {
	own := t.Key + "#" + strconv.FormatUint(t.Fence, 10)
	if t.Key == "" {
		return memory{key: own, earlier: rows}
	}
	text := agent.Row{Text: t.Message.Text}.Bounded().Text
	used := false
	for i := len(rows) - 2; i >= 0; i -= 2 { // of each turn the user's row; the latest first
		user, assistant := rows[i], rows[i+1]
		if user.Key != t.Key && !strings.HasPrefix(user.Key, t.Key+"#") {
			continue
		}
		used = true
		switch {
		case user.Text != text || now.Sub(user.Time) >= t.Window:
		case user.Cut || assistant.Cut:
			// The answer is not there in full: the message runs again, and does
			// not see itself.
			return memory{key: user.Key, earlier: append(rows[:i:i], rows[i+2:]...)}
		default:
			return memory{key: user.Key, answer: assistant.Text, answered: true}
		}
	}
	if used {
		return memory{key: own, earlier: rows}
	}
	return memory{key: t.Key, earlier: rows}
}

// finish writes what the turn said. Both writes of a turn outlive its time: the
// run has succeeded. ErrStale means that a later turn has begun, and this one's
// result must not be used.
func (s *Sessions) finish(ctx context.Context, t message.Turn, m memory, reply agent.Reply) error {
	ctx = context.WithoutCancel(ctx)
	if err := t.Confirmed(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	now := time.Now()
	user := agent.Row{Role: agent.User, Text: t.Message.Text, Prompt: t.Message.Prompt, Key: m.key, Time: now}
	assistant := agent.Row{Role: agent.Assistant, Text: reply.Text, Key: m.key, Time: now}
	h, err := s.open()
	if err == nil {
		err = h.Append(ctx, t.Message.Session, t.Fence, user, assistant)
	}
	switch {
	case errors.Is(err, agent.ErrStale):
		s.cfg.Metrics.stale.WithLabelValues(staleHistory).Inc()
		return fmt.Errorf("write the history: %w", err)
	case err != nil:
		s.without(t, "write", err)
	}
	return nil
}
