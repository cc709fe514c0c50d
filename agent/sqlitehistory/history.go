// Package sqlitehistory keeps what was said in each session in one SQLite file.
//
// It promises what agent.History does, to all processes that open the file, and
// that what it has confirmed survives a loss of power. Times are kept to the
// microsecond. A session whose time is over is gone at once; its rows leave the
// file a few at a time, as other turns begin.
package sqlitehistory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// Config says how to open a history.
type Config struct {
	Path     string           // of the file, which is made if absent
	MaxTurns int              // that are kept of each session
	TTL      time.Duration    // how long a session outlives the last write to it
	Now      func() time.Time // default time.Now
	Log      *slog.Logger     // told once of a file system that slows the file down; default none
}

// History is an agent.History in a SQLite file.
type History struct {
	*look
	db       *sqlitedb.DB
	sql      statements
	maxTurns int
	work     sync.WaitGroup // of the transactions, which outlive callers that have left
}

var (
	_ agent.History  = (*History)(nil)
	_ agent.Sessions = (*History)(nil)
)

// Open opens the history. ctx bounds the opening only.
func Open(ctx context.Context, c Config) (*History, error) {
	db, err := sqlitedb.Open(ctx, sqlitedb.Config{Path: c.Path})
	if err != nil {
		return nil, err
	}
	h := &History{look: newLook(db.Readers, db.Path, c), db: db, maxTurns: c.MaxTurns}
	if err := schemas.Migrate(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if err := h.sql.prepare(ctx, db.Writer); err != nil {
		return nil, errors.Join(sqlitedb.Explain(db.Path, err), db.Close())
	}
	if db.Warning != "" && c.Log != nil {
		c.Log.Warn(db.Warning)
	}
	return h, nil
}

// Close waits for the transactions under way and closes the file.
func (h *History) Close() error {
	h.work.Wait()
	return h.db.Close()
}

// turn is a turn as it comes to the file.
type turn struct {
	session string
	fence   uint64
	now     int64
}

// Begin implements agent.History.
func (h *History) Begin(ctx context.Context, session string, fence uint64) ([]agent.Row, error) {
	var rows []agent.Row
	err := h.write(ctx, func(ctx context.Context, tx *sql.Tx, now int64) error {
		id, err := h.enter(ctx, tx, turn{session, fence, now})
		if err != nil {
			return err
		}
		if rows, err = readTurns(tx.StmtContext(ctx, h.sql.turns).QueryContext(ctx, id)); err != nil {
			return err
		}
		return h.prune(ctx, tx, now)
	})
	if err != nil {
		return nil, fmt.Errorf("begin a turn of session %q: %w", session, err)
	}
	return rows, nil
}

// Append implements agent.History.
func (h *History) Append(ctx context.Context, session string, fence uint64, user, assistant agent.Row) error {
	err := agent.CheckTurn(user, assistant)
	if err == nil {
		user, assistant = user.Bounded(), assistant.Bounded()
		err = h.write(ctx, func(ctx context.Context, tx *sql.Tx, now int64) error {
			id, err := h.enter(ctx, tx, turn{session, fence, now})
			if err != nil {
				return err
			}
			if _, err := tx.StmtContext(ctx, h.sql.add).ExecContext(ctx, id, user.Key,
				user.Text, user.Prompt, user.Cut, user.Time.UnixMicro(),
				assistant.Text, assistant.Prompt, assistant.Cut, assistant.Time.UnixMicro()); err != nil {
				return err
			}
			_, err = tx.StmtContext(ctx, h.sql.trim).ExecContext(ctx, id, h.maxTurns)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("append a turn to session %q: %w", session, err)
	}
	return nil
}

// Reset implements agent.Sessions. It is no use of the session.
func (h *History) Reset(ctx context.Context, session string) error {
	err := h.write(ctx, func(ctx context.Context, tx *sql.Tx, now int64) error {
		id, _, err := h.find(ctx, tx, session, now)
		if err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, h.sql.forget).ExecContext(ctx, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("reset session %q: %w", session, err)
	}
	return nil
}

// enter notes t as the newest turn of its session, which it makes if there is
// none, and returns the session's id; ErrStale.
func (h *History) enter(ctx context.Context, tx *sql.Tx, t turn) (id int64, err error) {
	id, newest, err := h.find(ctx, tx, t.session, t.now)
	switch {
	case errors.Is(err, agent.ErrNoSession):
		if err := tx.StmtContext(ctx, h.sql.make).QueryRowContext(ctx, t.session, t.fence, t.now, t.now).Scan(&id); err != nil {
			return 0, err
		}
		// One whose time is over had the name, and may have left turns.
		_, err = tx.StmtContext(ctx, h.sql.forget).ExecContext(ctx, id)
	case err != nil:
	case t.fence < newest:
		err = agent.ErrStale
	default:
		_, err = tx.StmtContext(ctx, h.sql.use).ExecContext(ctx, t.fence, t.now, id)
	}
	return id, err
}

func (h *History) find(ctx context.Context, tx *sql.Tx, session string, now int64) (id int64, newest uint64, err error) {
	err = tx.StmtContext(ctx, h.sql.find).QueryRowContext(ctx, session, h.over(now)).Scan(&id, &newest)
	if errors.Is(err, sql.ErrNoRows) {
		err = agent.ErrNoSession
	}
	return id, newest, err
}

// pruneBatch is how many of the sessions whose time is over a Begin looks at,
// and how many of their turns it deletes: more than a turn adds, and little to
// wait for.
const pruneBatch = 20

func (h *History) prune(ctx context.Context, tx *sql.Tx, now int64) error {
	for _, stmt := range []*sql.Stmt{h.sql.pruneTurns, h.sql.pruneSessions} {
		if _, err := tx.StmtContext(ctx, stmt).ExecContext(ctx, h.over(now), pruneBatch); err != nil {
			return err
		}
	}
	return nil
}

// write runs work in a transaction that has the write lock from the start, and
// is told the time that it got it. Until the connection is this call's, the end
// of ctx withdraws it. From then on it may be carried out although ctx's error
// is returned: an interrupted statement would cost the connection. What work
// returns through variables is the caller's only after nil.
func (h *History) write(ctx context.Context, work func(ctx context.Context, tx *sql.Tx, now int64) error) error {
	conn, err := h.db.Writer.Conn(ctx)
	if err != nil {
		return sqlitedb.Explain(h.db.Path, err)
	}
	done := make(chan error, 1)
	h.work.Go(func() { done <- h.transact(context.WithoutCancel(ctx), conn, work) })
	select {
	case err := <-done:
		return h.explain(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *History) transact(ctx context.Context, conn *sql.Conn, work func(ctx context.Context, tx *sql.Tx, now int64) error) error {
	defer func() { _ = conn.Close() }() // only gives it back to its pool
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // refused after the commit
	if err := work(ctx, tx, h.now().UnixMicro()); err != nil {
		return err
	}
	return tx.Commit()
}

// Ping checks that the file is still the one that was opened, sqlitedb.ErrReplaced,
// writes to it, and reads that back through another connection.
func (h *History) Ping(ctx context.Context) error {
	if err := h.db.Check(ctx); err != nil {
		return fmt.Errorf("look at the sessions: %w", err)
	}
	var written, read int64
	err := h.write(ctx, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		return tx.StmtContext(ctx, h.sql.probe).QueryRowContext(ctx).Scan(&written)
	})
	if err != nil {
		return fmt.Errorf("write to the sessions: %w", err)
	}
	if err := h.db.Readers.QueryRowContext(ctx, "SELECT n FROM probe").Scan(&read); err != nil {
		return fmt.Errorf("read from the sessions: %w", sqlitedb.Explain(h.db.Path, err))
	}
	if read < written { // more is the probe of another process
		return fmt.Errorf("read from the sessions: %s says %d after %d was written", h.db.Path, read, written)
	}
	return nil
}
