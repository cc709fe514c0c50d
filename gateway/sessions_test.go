package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/sqlitehistory"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
)

// talker is an agent made of a function that is told its turn and how many it
// had before.
type talker struct {
	mu    sync.Mutex
	turns []agent.Turn
	say   func(ctx context.Context, t agent.Turn, n int) (string, error) // nil: "re: " and the text
}

func (a *talker) Run(ctx context.Context, t agent.Turn) (agent.Reply, error) {
	a.mu.Lock()
	n := len(a.turns)
	a.turns = append(a.turns, t)
	a.mu.Unlock()
	if a.say == nil {
		return agent.Reply{Text: "re: " + t.Message.Text}, nil
	}
	text, err := a.say(ctx, t, n)
	return agent.Reply{Text: text}, err
}

// conversation is a replica whose agent remembers.
type conversation struct {
	*replica
	agent    *talker
	sessions *gateway.Sessions
	health   *health.Registry
	history  *sqlitehistory.History // the one in use
	broken   error                  // what opening it fails with
	policy   message.Policy
}

func newConversation(t *testing.T, a *talker, options ...option) *conversation {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	c := &conversation{agent: a, health: health.NewRegistry(log)}
	c.health.Enter(health.Ready)
	var metrics *gateway.Metrics
	c.replica = newReplica(t, idempotency.NewMemory(time.Now), append(options, func(cfg *gateway.PipelineConfig) { metrics = cfg.Metrics })...)
	path := filepath.Join(t.TempDir(), "sessions.db")
	c.sessions = gateway.NewSessions(gateway.SessionsConfig{
		Backend: "sqlite",
		Open: func(ctx context.Context) (gateway.History, error) {
			if c.broken != nil {
				return nil, c.broken
			}
			h, err := sqlitehistory.Open(ctx, sqlitehistory.Config{Path: path, MaxTurns: 50, TTL: time.Hour, Log: log})
			if err != nil {
				return nil, err
			}
			c.history = h
			return h, nil
		},
		Timeout: 5 * time.Second, Classify: func(error) string { return "corrupt" }, Hint: func(string) string { return "mend it" },
		Health: c.health, Metrics: metrics, Log: log,
	})
	t.Cleanup(func() {
		if err := c.sessions.Close(); err != nil && c.broken == nil {
			t.Error(err)
		}
	})
	c.policy = policy(gateway.AgentRunner{Name: "a", Agent: a, Sessions: c.sessions, Metrics: metrics})
	return c
}

func started(t *testing.T, a *talker, options ...option) *conversation {
	t.Helper()
	c := newConversation(t, a, options...)
	c.sessions.Start(t.Context())
	return c
}

// say sends a message to the session and returns what became of it.
func (c *conversation) say(t *testing.T, id, text string) (message.Receipt, error) {
	t.Helper()
	return c.Process(t.Context(), message.Message{Key: message.Key{Platform: "test", Channel: "room", ID: id}, Session: "s", Text: text}, c.policy)
}

func (c *conversation) mustSay(t *testing.T, id, text string) string {
	t.Helper()
	got, err := c.say(t, id, text)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return got.Outcome.Reply
}

// said lists the rows as role: text.
func said(rows []agent.Row) string {
	var all []string
	for _, r := range rows {
		all = append(all, string(r.Role)+": "+r.Text)
	}
	return strings.Join(all, ", ")
}

func (c *conversation) transcript(t *testing.T) string {
	t.Helper()
	_, rows, err := c.history.Show(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	return said(rows)
}

func TestSessions(t *testing.T) {
	t.Parallel()
	t.Run("each turn is told what was said before it, in strict alternation", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{})
		for i := range 3 {
			c.mustSay(t, fmt.Sprint("m-", i), fmt.Sprint("q", i))
		}
		if got, want := said(c.agent.turns[2].History), "user: q0, assistant: re: q0, user: q1, assistant: re: q1"; got != want {
			t.Errorf("the third turn was told %q, want %q", got, want)
		}
	})

	t.Run("a message whose runs fail is in the history once when one succeeds (B21)", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{say: func(_ context.Context, t agent.Turn, n int) (string, error) {
			if n < 2 {
				return "", errors.New("provider away")
			}
			return "at last", nil
		}})
		for range 2 {
			if _, err := c.say(t, "m-1", "hello"); !errors.Is(err, message.ErrRun) {
				t.Fatalf("Process = %v, want ErrRun", err)
			}
		}
		c.mustSay(t, "m-1", "hello")
		if got, want := c.transcript(t), "user: hello, assistant: at last"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
		if got := c.counter(t, "gateway_agent_errors_total", "other"); got != 2 {
			t.Errorf("%v agent errors counted, want 2", got)
		}
	})

	t.Run("a turn that waits starts from the history that the one before has left, however long that took (B39)", func(t *testing.T) {
		t.Parallel()
		started1, free := make(chan struct{}), make(chan struct{})
		c := started(t, &talker{say: func(_ context.Context, t agent.Turn, n int) (string, error) {
			if n == 0 {
				close(started1)
				<-free
			}
			return "re: " + t.Message.Text, nil
		}})
		var wg sync.WaitGroup
		wg.Go(func() { c.mustSay(t, "m-1", "first") })
		<-started1
		wg.Go(func() { c.mustSay(t, "m-2", "second") })
		close(free)
		wg.Wait()
		if got := len(c.agent.turns[1].History); got != len(c.agent.turns[0].History)+2 {
			t.Errorf("the second turn was told %d rows after %d", got, len(c.agent.turns[0].History))
		}
		if got, want := c.transcript(t), "user: first, assistant: re: first, user: second, assistant: re: second"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
	})

	t.Run("a message whose answer is in the history is answered from there when its record was lost", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{say: func(_ context.Context, _ agent.Turn, n int) (string, error) { return fmt.Sprint("answer ", n), nil }})
		c.mustSay(t, "m-1", "hello")
		again := newReplica(t, idempotency.NewMemory(time.Now)) // which knows no record
		got, err := again.Process(t.Context(), message.Message{Key: message.Key{Platform: "test", Channel: "room", ID: "m-1"}, Session: "s", Text: "hello"}, c.policy)
		if err != nil || got.State != message.New || got.Outcome.Reply != "answer 0" {
			t.Errorf("%+v, %v; want the first answer", got, err)
		}
		if n := len(c.agent.turns); n != 1 {
			t.Errorf("the agent ran %d times, want once", n)
		}
	})

	t.Run("what is said under a known key is a message of its own with another text, after its window, and without a key", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{})
		short := c.policy
		short.TTL = time.Nanosecond
		for i, m := range []struct {
			id, text string
			policy   message.Policy
			runs     int
		}{
			{"k", "one", c.policy, 1},
			{"k", "two", c.policy, 2},
			{"k", "two", c.policy, 2}, // the same, whose record was lost
			{"fp", "yes", short, 3},
			{"fp", "yes", short, 4}, // its window is over
			{"fp", "yes", c.policy, 4},
			{"", "no key", c.policy, 5},
			{"", "no key", c.policy, 6},
		} {
			fresh := newReplica(t, idempotency.NewMemory(time.Now), func(cfg *gateway.PipelineConfig) {
				at := time.Now().Add(time.Duration(i+1) * time.Hour) // fences of later turns are larger
				cfg.Locks = turnlock.NewLocal(func() time.Time { return at }, time.Minute)
			})
			if _, err := fresh.Process(t.Context(), message.Message{Key: message.Key{ID: m.id}, Session: "s", Text: m.text}, m.policy); err != nil {
				t.Fatal(err)
			}
			if n := len(c.agent.turns); n != m.runs {
				t.Errorf("message %d: %d runs, want %d", i, n, m.runs)
			}
		}
		if got := strings.Count(c.transcript(t), "user: "); got != 6 {
			t.Errorf("%d user rows, want 6: %s", got, c.transcript(t))
		}
	})

	t.Run("an answer that was too long to be kept whole is given anew, and the message does not see itself", func(t *testing.T) {
		t.Parallel()
		long := strings.Repeat("x", agent.MaxRowText+1)
		c := started(t, &talker{say: func(context.Context, agent.Turn, int) (string, error) { return long, nil }})
		c.mustSay(t, "m-0", "before")
		c.mustSay(t, "m-1", "hello")
		again := newReplica(t, idempotency.NewMemory(time.Now))
		got, err := again.Process(t.Context(), message.Message{Key: message.Key{Platform: "test", Channel: "room", ID: "m-1"}, Session: "s", Text: "hello"}, c.policy)
		if err != nil || got.Outcome.Reply != long || len(c.agent.turns) != 3 {
			t.Errorf("%d bytes, %v after %d runs; want the whole answer of a third", len(got.Outcome.Reply), err, len(c.agent.turns))
		}
		if told := c.agent.turns[2].History; len(told) != 2 || told[0].Text != "before" {
			t.Errorf("told %d rows, want those of the message before", len(told))
		}
	})

	t.Run("what a turn said is written although its time ended just then", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{say: func(ctx context.Context, _ agent.Turn, _ int) (string, error) {
			<-ctx.Done() // and answers all the same
			return "done", nil
		}}, func(cfg *gateway.PipelineConfig) { cfg.TurnTimeout = 20 * time.Millisecond })
		c.mustSay(t, "m-1", "hello")
		if got, want := c.transcript(t), "user: hello, assistant: done"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
	})

	t.Run("a turn that is stopped while it reads its history says why", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(turnlock.ErrLost)
		_, err := c.policy.Runner.Run(ctx, message.Turn{Message: message.Message{Session: "s", Text: "hello"}, Key: "k", Fence: 1})
		if !errors.Is(err, turnlock.ErrLost) || len(c.agent.turns) != 0 {
			t.Errorf("%v after %d runs, want ErrLost and none", err, len(c.agent.turns))
		}
		if got := c.counter(t, "gateway_turns_without_history_total", ""); got != 0 {
			t.Errorf("%v turns without history counted, want none", got)
		}
	})

	t.Run("a history that a probe finds replaced is opened anew", func(t *testing.T) {
		t.Parallel()
		c := newConversation(t, &talker{})
		opened := 0
		replaced := errors.New("replaced")
		fail := true
		sessions := gateway.NewSessions(gateway.SessionsConfig{
			Backend: "sqlite",
			Open: func(context.Context) (gateway.History, error) {
				opened++
				return failing{ping: func() error {
					if fail {
						return replaced
					}
					return nil
				}}, nil
			},
			Reopen:  func(err error) bool { return errors.Is(err, replaced) },
			Timeout: time.Second, Classify: func(error) string { return "replaced" }, Hint: func(string) string { return "wait" },
			Health: c.health, Metrics: gateway.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		})
		sessions.Start(t.Context())
		if got := sessions.Backend(); got != "none" || len(c.health.Owners()) != 1 {
			t.Errorf("backend %q, owners %v; want none and a degraded one", got, c.health.Owners())
		}
		fail = false
		sessions.Start(t.Context())
		if got := sessions.Backend(); got != "sqlite" || opened != 2 || len(c.health.Owners()) != 0 {
			t.Errorf("backend %q after %d openings, owners %v", got, opened, c.health.Owners())
		}
	})

	t.Run("one session that nobody can read does not degrade the others", func(t *testing.T) {
		t.Parallel()
		c := newConversation(t, &talker{})
		metrics := gateway.NewMetrics(prometheus.NewRegistry())
		sessions := gateway.NewSessions(gateway.SessionsConfig{
			Backend: "redis", Open: func(context.Context) (gateway.History, error) { return failing{begin: agent.ErrUnreadable}, nil },
			Timeout: time.Second, Classify: func(error) string { return "other" }, Hint: func(string) string { return "" },
			Health: c.health, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
		})
		sessions.Start(t.Context())
		runner := gateway.AgentRunner{Name: "a", Agent: c.agent, Sessions: sessions, Metrics: metrics}
		if _, err := runner.Run(t.Context(), message.Turn{Message: message.Message{Session: "s", Text: "hello"}, Key: "k", Fence: 1}); err != nil {
			t.Error(err)
		}
		if owners := c.health.Owners(); len(owners) != 0 {
			t.Errorf("degraded %+v", owners)
		}
	})

	t.Run("an empty reply is a finished turn", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{say: func(context.Context, agent.Turn, int) (string, error) { return "", nil }})
		c.mustSay(t, "m-1", "hello")
		got, err := c.say(t, "m-1", "hello")
		if err != nil || got.State != message.Processed {
			t.Errorf("%v, %v; want a record", got.State, err)
		}
		if got, want := c.transcript(t), "user: hello, assistant: "; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
	})

	t.Run("a turn behind which a later one has begun is refused: nothing is written, nothing answered (B56)", func(t *testing.T) {
		t.Parallel()
		var c *conversation
		c = started(t, &talker{say: func(ctx context.Context, turn agent.Turn, n int) (string, error) {
			if n == 0 { // another replica takes the session meanwhile
				if _, err := c.history.Begin(ctx, "s", turn.Fence+1); err != nil {
					t.Error(err)
				}
			}
			return "too late", nil
		}})
		if got, err := c.say(t, "m-1", "hello"); !errors.Is(err, message.ErrRun) || got.Outcome.Reply != "" {
			t.Errorf("%+v, %v; want it refused", got, err)
		}
		if got := c.transcript(t); got != "" {
			t.Errorf("history %q, want none", got)
		}
		if stale, lost := c.counter(t, "gateway_stale_writes_total", "history"), c.counter(t, "gateway_turns_total", "lock_lost"); stale != 1 || lost != 1 {
			t.Errorf("%v stale writes and %v lost turns counted, want one each", stale, lost)
		}
	})

	t.Run("a turn that has lost its lock writes nothing and is not answered, and its message is free (B40)", func(t *testing.T) {
		t.Parallel()
		locks := &losable{}
		c := started(t, &talker{say: func(_ context.Context, _ agent.Turn, n int) (string, error) {
			locks.lost = n == 0
			return "hello", nil
		}}, func(cfg *gateway.PipelineConfig) { cfg.Locks = locks })
		if got, err := c.say(t, "m-1", "hello"); !errors.Is(err, message.ErrRun) || got.Outcome.Reply != "" {
			t.Errorf("%+v, %v; want it refused", got, err)
		}
		if got := c.transcript(t); got != "" {
			t.Errorf("history %q, want none", got)
		}
		if got := c.mustSay(t, "m-1", "hello"); got != "hello" {
			t.Errorf("the redelivery got %q", got)
		}
		if got := c.gauge(t, "gateway_turn_locks_held"); got != 0 {
			t.Errorf("%v locks are held", got)
		}
	})

	t.Run("the result of a forward whose lock was lost is refused too", func(t *testing.T) {
		t.Parallel()
		locks := &losable{}
		r := newReplica(t, idempotency.NewMemory(time.Now), func(cfg *gateway.PipelineConfig) { cfg.Locks = locks })
		m := msg("m")
		m.Session = "s"
		forward := &runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) {
			locks.lost = true
			return message.Outcome{Action: message.ActionForward}, nil
		}}
		if _, err := r.Process(t.Context(), m, policy(forward)); !errors.Is(err, message.ErrRun) {
			t.Errorf("Process = %v, want ErrRun", err)
		}
	})

	t.Run("without a history turns go on, the owner is degraded before the first one, and it is open when it can be", func(t *testing.T) {
		t.Parallel()
		c := newConversation(t, &talker{})
		c.broken = errors.New("file is damaged")
		c.sessions.Start(t.Context())
		owners := c.health.Owners()
		if len(owners) != 1 || owners[0].ID != "sessions:sqlite" || owners[0].State != health.Cold || owners[0].Reason != "session history unavailable (turns run without it)" {
			t.Fatalf("degraded %+v", owners)
		}
		if got := c.mustSay(t, "m-1", "hello"); got != "re: hello" {
			t.Errorf("reply %q", got)
		}
		if got := c.counter(t, "gateway_turns_without_history_total", ""); got != 2 {
			t.Errorf("%v reads and writes without history counted, want 2", got)
		}
		c.broken = nil
		c.sessions.Start(t.Context())
		if owners := c.health.Owners(); len(owners) != 0 {
			t.Errorf("still degraded: %+v", owners)
		}
		c.mustSay(t, "m-2", "again")
		if got, want := c.transcript(t), "user: again, assistant: re: again"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
	})

	t.Run("a history that fails is degraded at once and its turn answered", func(t *testing.T) {
		t.Parallel()
		c := started(t, &talker{})
		if err := c.history.Close(); err != nil {
			t.Fatal(err)
		}
		c.broken = io.EOF // so that the clean-up may fail
		c.mustSay(t, "m-1", "hello")
		owners := c.health.Owners()
		if !slices.ContainsFunc(owners, func(o health.Owner) bool { return o.ID == "sessions:sqlite" && o.State == health.Stale }) {
			t.Errorf("degraded %+v, want the sessions as stale", owners)
		}
	})
}

// failing is a history that fails as a test says.
type failing struct {
	begin error
	ping  func() error
}

func (f failing) Begin(context.Context, string, uint64) ([]agent.Row, error) { return nil, f.begin }

func (f failing) Append(context.Context, string, uint64, agent.Row, agent.Row) error { return f.begin }

func (f failing) Close() error { return nil }

func (f failing) Ping(context.Context) error {
	if f.ping == nil {
		return nil
	}
	return f.ping()
}

// losable hands out locks that can be lost.
type losable struct{ lost bool }

func (l *losable) Acquire(ctx context.Context, _ string) (*turnlock.Lease, error) {
	l.lost = false
	return turnlock.NewLease(ctx, turnlock.LeaseConfig{
		Fence: uint64(time.Now().UnixMicro()),
		Confirm: func(context.Context) error {
			if l.lost {
				return turnlock.ErrLost
			}
			return nil
		},
		Release: func() {},
	}), nil
}
