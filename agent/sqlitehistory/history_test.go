package sqlitehistory_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/historytest"
	"github.com/oncegate/oncegate/agent/sqlitehistory"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

func config(t testing.TB, path string) sqlitehistory.Config {
	return sqlitehistory.Config{
		Path: path, MaxTurns: historytest.MaxTurns, TTL: historytest.TTL,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func tempPath(t testing.TB) string { return filepath.Join(t.TempDir(), "state", "sessions.db") }

// mustOpen opens a history and closes it when the test ends.
func mustOpen(t testing.TB, c sqlitehistory.Config) *sqlitehistory.History {
	t.Helper()
	h, err := sqlitehistory.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// mustOpenSQL opens a connection of its own to the file, as another program would.
func mustOpenSQL(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func mustExec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func mustCount(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func mustBegin(t testing.TB, h agent.History, session string, fence uint64) []agent.Row {
	t.Helper()
	rows, err := h.Begin(t.Context(), session, fence)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func appendTurn(ctx context.Context, h agent.History, session string, fence uint64, key string) error {
	return h.Append(ctx, session, fence,
		agent.Row{Role: agent.User, Text: "asks " + key, Key: key}, agent.Row{Role: agent.Assistant, Text: "answers " + key, Key: key})
}

func mustAppend(t testing.TB, h agent.History, session string, fence uint64, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := appendTurn(t.Context(), h, session, fence, key); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	historytest.Run(t, func(t *testing.T) historytest.Backend {
		clock := idempotencytest.NewClock()
		cfg := config(t, tempPath(t))
		cfg.Now = clock.Now
		h := mustOpen(t, cfg)
		return historytest.Backend{History: h, Sessions: h, Advance: clock.Advance, Reopen: func() (agent.History, agent.Sessions) {
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			h := mustOpen(t, cfg)
			return h, h
		}}
	})
}

// Every second call goes to another process's view of the file.
func TestHistoryOfTwoThatShareAFile(t *testing.T) {
	t.Parallel()
	historytest.Run(t, func(t *testing.T) historytest.Backend {
		cfg := config(t, tempPath(t))
		pair := &pair{both: [2]*sqlitehistory.History{mustOpen(t, cfg), mustOpen(t, cfg)}}
		return historytest.Backend{History: pair, Sessions: pair, Reopen: func() (agent.History, agent.Sessions) {
			h := mustOpen(t, cfg)
			return h, h
		}}
	})
}

func TestPruning(t *testing.T) {
	t.Parallel()
	clock := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now = clock.Now
	h := mustOpen(t, cfg)
	const sessions = 50
	for i := range sessions {
		session := fmt.Sprint("old", i)
		mustBegin(t, h, session, 1)
		if i%2 == 0 { // the others have no turns
			mustAppend(t, h, session, 1, "m-1", "m-2", "m-3")
		}
	}
	clock.Advance(historytest.TTL / 2)
	mustBegin(t, h, "live", 1)
	mustAppend(t, h, "live", 1, "m-1")
	clock.Advance(historytest.TTL / 2)
	db := mustOpenSQL(t, cfg.Path)
	left := func() int {
		return mustCount(t, db, `SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM turns)`)
	}
	const others = 3 // the live session, its turn and the session that begins
	before, batches := left(), 0
	for ; before > others; batches++ {
		mustBegin(t, h, "now", 1)
		after := left()
		if after >= before && batches > 0 || batches > 2*sessions {
			t.Fatalf("%d rows of both tables are left after %d turns, %d before the last", after, batches, before)
		}
		before = after
	}
	if batches < 3 {
		t.Errorf("all was pruned by %d turns, want a few rows by each", batches)
	}
	if rows := mustBegin(t, h, "live", 1); len(rows) != 2 {
		t.Errorf("the live session has %d rows, want 2", len(rows))
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	h, other := mustOpen(t, cfg), mustOpen(t, cfg)
	for range 3 {
		if err := errors.Join(h.Ping(t.Context()), other.Ping(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if n := mustCount(t, mustOpenSQL(t, cfg.Path), "SELECT n FROM probe"); n != 6 {
		t.Errorf("%d probes were written, want 6", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Ping on a done context = %v", err)
	}
}

// pair takes turns between two histories.
type pair struct {
	both [2]*sqlitehistory.History
	n    atomic.Uint64
}

func (p *pair) one() *sqlitehistory.History { return p.both[p.n.Add(1)%2] }

func (p *pair) Begin(ctx context.Context, session string, fence uint64) ([]agent.Row, error) {
	return p.one().Begin(ctx, session, fence)
}

func (p *pair) Append(ctx context.Context, session string, fence uint64, user, assistant agent.Row) error {
	return p.one().Append(ctx, session, fence, user, assistant)
}

func (p *pair) List(ctx context.Context, limit int) ([]agent.Session, bool, error) {
	return p.one().List(ctx, limit)
}

func (p *pair) Show(ctx context.Context, session string) (agent.Session, []agent.Row, error) {
	return p.one().Show(ctx, session)
}

func (p *pair) Reset(ctx context.Context, session string) error { return p.one().Reset(ctx, session) }

func (p *pair) Close() error { return errors.Join(p.both[0].Close(), p.both[1].Close()) }
