package sqlitehistory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// Reader looks at the sessions of a file. It is safe for concurrent use.
type Reader struct{ *look }

// OpenReadOnly opens the file of c for looking only: it makes nothing, changes
// nothing and starts nothing. The file may belong to a running process, but not
// to this one: see sqlitedb.OpenReadOnly.
func OpenReadOnly(ctx context.Context, c Config) (*Reader, error) {
	db, err := sqlitedb.OpenReadOnly(ctx, c.Path)
	if err != nil {
		return nil, err
	}
	if err := schemas.Check(ctx, db, c.Path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Reader{newLook(db, c.Path, c)}, nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.reader.Close() }

// look is what a History and a Reader have in common.
type look struct {
	reader *sql.DB
	path   string
	ttl    time.Duration
	now    func() time.Time
}

func newLook(db *sql.DB, path string, c Config) *look {
	now := c.Now
	if now == nil {
		now = time.Now
	}
	return &look{reader: db, path: path, ttl: c.TTL, now: now}
}

// over returns when sessions were used last whose time is over at now.
func (l *look) over(now int64) int64 { return now - l.ttl.Microseconds() }

// explain names the file in an error, unless that is an answer.
func (l *look) explain(err error) error {
	if errors.Is(err, agent.ErrStale) || errors.Is(err, agent.ErrNoSession) {
		return err
	}
	return sqlitedb.Explain(l.path, err)
}

// List implements agent.Sessions.
func (l *look) List(ctx context.Context, limit int) (sessions []agent.Session, more bool, err error) {
	sessions, err = l.list(ctx, limit+1) // one more than asked for tells whether others follow
	if err != nil {
		return nil, false, fmt.Errorf("list sessions: %w", l.explain(err))
	}
	if more = len(sessions) > limit; more {
		sessions = sessions[:limit]
	}
	return sessions, more, nil
}

func (l *look) list(ctx context.Context, limit int) (sessions []agent.Session, err error) {
	rows, err := l.reader.QueryContext(ctx, `
		SELECT name, created, used, (SELECT count(*) FROM turns WHERE session = sessions.id)
		FROM sessions WHERE used > ? ORDER BY used DESC, id DESC LIMIT ?`, l.over(l.now().UnixMicro()), limit)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has what went wrong
	for rows.Next() {
		var s agent.Session
		var created, used int64
		if err := rows.Scan(&s.ID, &created, &used, &s.Turns); err != nil {
			return nil, err
		}
		s.Created, s.LastUsed = fromMicro(created), fromMicro(used)
		sessions = append(sessions, s)
	}
	return sessions, rows.Err()
}

// Show implements agent.Sessions.
func (l *look) Show(ctx context.Context, session string) (agent.Session, []agent.Row, error) {
	s, rows, err := l.show(ctx, session)
	if err != nil {
		return agent.Session{}, nil, fmt.Errorf("show session %q: %w", session, l.explain(err))
	}
	return s, rows, nil
}

// show reads both tables in one transaction, so that they belong together.
func (l *look) show(ctx context.Context, session string) (agent.Session, []agent.Row, error) {
	tx, err := l.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return agent.Session{}, nil, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	var id, created, used int64
	err = tx.QueryRowContext(ctx, `SELECT id, created, used FROM sessions WHERE name = ? AND used > ?`,
		session, l.over(l.now().UnixMicro())).Scan(&id, &created, &used)
	if errors.Is(err, sql.ErrNoRows) {
		err = agent.ErrNoSession
	}
	if err != nil {
		return agent.Session{}, nil, err
	}
	rows, err := readTurns(tx.QueryContext(ctx, turnsOf, id))
	return agent.Session{ID: session, Turns: len(rows) / 2, Created: fromMicro(created), LastUsed: fromMicro(used)}, rows, err
}
