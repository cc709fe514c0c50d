package sqlitehistory

import (
	"context"
	"database/sql"
	_ "embed" // for the schema
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

//go:embed schema1.sql
var schema1 string

var schemas = sqlitedb.Schemas{schema1}

// turnsOf reads the turns of a session by its id, oldest first.
const turnsOf = `
	SELECT key, user_text, user_prompt, user_cut, user_time, assistant_text, assistant_prompt, assistant_cut, assistant_time
	FROM turns WHERE session = ? ORDER BY id`

// oldest names a few of the sessions whose time is over. Only they are looked
// at, with or without turns, so that pruning costs the same however many wait.
const oldest = `SELECT id FROM sessions WHERE used <= ?1 ORDER BY used LIMIT ?2`

// statements are those of the writing connection. A session whose time is over
// is found by none but make, forget and the two that prune: no answer depends
// on pruning.
type statements struct {
	find, make, use, forget   *sql.Stmt
	turns, add, trim          *sql.Stmt
	pruneTurns, pruneSessions *sql.Stmt
	probe                     *sql.Stmt
}

// prepare compiles the statements. Closing db closes them.
func (s *statements) prepare(ctx context.Context, db *sql.DB) error {
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&s.find, `SELECT id, fence FROM sessions WHERE name = ? AND used > ?`},
		{&s.make, `
			INSERT INTO sessions (name, fence, created, used) VALUES (?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, created = excluded.created, used = excluded.used
			RETURNING id`},
		{&s.use, `UPDATE sessions SET fence = ?, used = ? WHERE id = ?`},
		{&s.forget, `DELETE FROM turns WHERE session = ?`},
		{&s.turns, turnsOf},
		{&s.add, `
			INSERT INTO turns (session, key, user_text, user_prompt, user_cut, user_time,
				assistant_text, assistant_prompt, assistant_cut, assistant_time)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (session, key) DO NOTHING`},
		{&s.trim, `
			DELETE FROM turns WHERE session = ?1 AND id <=
				(SELECT id FROM turns WHERE session = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)`},
		{&s.pruneTurns, `DELETE FROM turns WHERE id IN (SELECT turns.id FROM turns JOIN (` + oldest + `) AS over ON session = over.id LIMIT ?2)`},
		{&s.pruneSessions, `DELETE FROM sessions WHERE id IN (` + oldest + `) AND NOT EXISTS (SELECT 1 FROM turns WHERE session = sessions.id)`},
		{&s.probe, `UPDATE probe SET n = n + 1 RETURNING n`},
	} {
		stmt, err := db.PrepareContext(ctx, p.sql)
		if err != nil {
			return err
		}
		*p.to = stmt
	}
	return nil
}

// readTurns reads the answer of turnsOf.
func readTurns(rows *sql.Rows, err error) ([]agent.Row, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has what went wrong
	var all []agent.Row
	for rows.Next() {
		user, assistant := agent.Row{Role: agent.User}, agent.Row{Role: agent.Assistant}
		var asked, answered int64
		err := rows.Scan(&user.Key, &user.Text, &user.Prompt, &user.Cut, &asked,
			&assistant.Text, &assistant.Prompt, &assistant.Cut, &answered)
		if err != nil {
			return nil, err
		}
		assistant.Key, user.Time, assistant.Time = user.Key, fromMicro(asked), fromMicro(answered)
		all = append(all, user, assistant)
	}
	return all, rows.Err()
}

func fromMicro(t int64) time.Time { return time.UnixMicro(t).UTC() }
