package sqlitestore

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
)

// statements are those of the writer. What depends on a deadline compares it
// itself, so that no answer depends on pruning. A row with a message is changed
// by those of messages alone.
type statements struct {
	begin, commit, rollback       statement
	reserve, look, takeOver       statement
	renew, record, insert, remove statement
	carried, prune, count         statement

	numbers, claim, message, put, forget, vacate statement
	standing, due, line, stored                  statement
	reply, cause, leave, rejoin                  statement

	prepared []driver.Stmt
}

type source struct {
	to  *statement
	sql string
}

// prepare compiles the statements. Their parameters are anonymous because the
// driver looks up the name of any other at every use.
func (s *statements) prepare(conn driver.ConnPrepareContext) error {
	for _, p := range append(s.ofClaims(), s.ofMessages()...) {
		stmt, err := conn.PrepareContext(context.Background(), p.sql)
		if err != nil {
			return err
		}
		p.to.stmt = stmt
		s.prepared = append(s.prepared, stmt)
	}
	return nil
}

func (s *statements) ofClaims() []source {
	return []source{
		{&s.begin, `BEGIN IMMEDIATE`},
		{&s.commit, `COMMIT`},
		{&s.rollback, `ROLLBACK`},
		{&s.reserve, `
			INSERT INTO claims (id, key, state, token, fingerprint, deadline, uncarried) VALUES (?, ?, 0, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET state = 0, token = excluded.token,
				fingerprint = excluded.fingerprint, deadline = excluded.deadline, outcome = NULL, uncarried = excluded.uncarried
			WHERE claims.number IS NULL AND (claims.deadline <= ? OR (claims.state = 0 AND claims.token = excluded.token))`},
		{&s.look, `SELECT state, token, fingerprint, deadline, outcome, number, until FROM claims WHERE id = ?`},
		{&s.takeOver, `UPDATE claims SET token = ?, fingerprint = ?, deadline = ?, uncarried = ? WHERE id = ?`},
		{&s.renew, `UPDATE claims SET deadline = ? WHERE id = ? AND token = ? AND state = 0 AND deadline > ?`},
		{&s.record, `UPDATE claims SET state = 1, deadline = ?, outcome = ?, uncarried = ? WHERE id = ? AND token = ? AND state = 0 AND deadline > ?`},
		{&s.insert, `REPLACE INTO claims (id, key, state, token, fingerprint, deadline, outcome, uncarried) VALUES (?, ?, 1, ?, ?, ?, ?, ?)`},
		{&s.remove, `DELETE FROM claims WHERE id = ? AND token = ? AND state = 0`},
		{&s.carried, `UPDATE claims SET uncarried = 0 WHERE id = ? AND token = ? AND state = 1 AND uncarried = 1`},
		{&s.prune, `DELETE FROM claims WHERE id IN (SELECT id FROM claims WHERE deadline <= ? ORDER BY deadline LIMIT ?) RETURNING number`},
		{&s.count, `UPDATE probe SET n = n + 1 RETURNING n`},
	}
}

func (s *statements) ofMessages() []source {
	const standing = `
		SELECT c.id, c.key, c.state, c.token, c.fingerprint, c.number, c.attempts, c.until, c.due, c.deadline,
			m.session, m.order_wait, m.keep, m.lease, m.ttl `
	return []source{
		{&s.numbers, `SELECT max(number) FROM messages`},
		{&s.claim, `
			INSERT INTO claims (id, key, state, token, fingerprint, number, attempts, until, due, deadline)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET state = excluded.state, token = excluded.token, fingerprint = excluded.fingerprint,
				number = excluded.number, attempts = excluded.attempts, until = excluded.until, due = excluded.due,
				deadline = excluded.deadline, outcome = NULL, uncarried = 0
			WHERE claims.number IS NULL AND claims.deadline <= ?`},
		{&s.message, `
			INSERT INTO messages (number, id, session, queued, order_wait, keep, lease, ttl, accepted, replayed, cause, body, reply)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?)`},
		{&s.put, `UPDATE claims SET state = ?, token = ?, number = ?, attempts = ?, until = ?, due = ?, deadline = ? WHERE id = ?`},
		{&s.forget, `DELETE FROM claims WHERE id = ?`},
		{&s.vacate, `DELETE FROM messages WHERE number = ? RETURNING session, queued`},
		{&s.standing, standing + `FROM claims c CROSS JOIN messages m ON m.number = c.number WHERE c.id = ? AND c.deadline > ?`},
		{&s.due, standing + `
			FROM claims c INDEXED BY claims_due CROSS JOIN messages m ON m.number = c.number
			WHERE c.due <= ? ORDER BY c.due, c.number LIMIT 1`},
		{&s.line, standing + `
			FROM messages m INDEXED BY messages_in_order CROSS JOIN claims c ON c.id = m.id
			WHERE m.session = ? AND m.queued = 1 AND c.deadline > ? ORDER BY m.number LIMIT 2`},
		{&s.stored, `SELECT cause, body, reply, reply IS NOT NULL, accepted, replayed FROM messages WHERE number = ?`},
		{&s.reply, `UPDATE messages SET reply = ? WHERE number = ?`},
		{&s.cause, `UPDATE messages SET cause = ? WHERE number = ? AND cause <> ?`},
		{&s.leave, `UPDATE messages SET queued = 0 WHERE number = ?`},
		{&s.rejoin, `
			UPDATE messages SET number = ?, queued = session <> '', replayed = ?, cause = '' WHERE number = ?`},
	}
}

func (s *statements) close() {
	for _, stmt := range s.prepared {
		_ = stmt.Close() // repeats the error of its last execution
	}
}

// statement is a prepared statement and room for its arguments.
type statement struct {
	stmt driver.Stmt
	args []driver.NamedValue
}

// exec runs the statement and returns how many rows it changed.
func (s *statement) exec(values ...driver.Value) (int64, error) {
	result, err := s.stmt.(driver.StmtExecContext).ExecContext(context.Background(), s.bind(values))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// row reads the first row into dest and reports whether there is one.
func (s *statement) row(dest []driver.Value, values ...driver.Value) (bool, error) {
	found := false
	err := s.each(dest, func() bool {
		found = true
		return false
	}, values...)
	return found, err
}

// each reads the rows into dest, one after the other, until more says that it
// wants no more of them.
func (s *statement) each(dest []driver.Value, more func() bool, values ...driver.Value) error {
	rows, err := s.stmt.(driver.StmtQueryContext).QueryContext(context.Background(), s.bind(values))
	if err != nil {
		return err
	}
	for err = rows.Next(dest); err == nil && more(); {
		err = rows.Next(dest)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, rows.Close())
}

func (s *statement) bind(values []driver.Value) []driver.NamedValue {
	s.args = s.args[:0]
	for i, v := range values {
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return s.args
}
