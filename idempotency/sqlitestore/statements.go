package sqlitestore

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
)

// statements are those of the writer. What depends on a deadline compares it
// itself, so that no answer depends on pruning.
type statements struct {
	begin, commit, rollback       statement
	reserve, look, takeOver       statement
	renew, record, insert, remove statement
	carried, prune, count         statement
}

// prepare compiles the statements. Their parameters are anonymous because the
// driver looks up the name of any other at every use.
func (s *statements) prepare(conn driver.ConnPrepareContext) error {
	for _, p := range []struct {
		to  *statement
		sql string
	}{
		{&s.begin, `BEGIN IMMEDIATE`},
		{&s.commit, `COMMIT`},
		{&s.rollback, `ROLLBACK`},
		{&s.reserve, `
			INSERT INTO claims (id, key, state, token, fingerprint, deadline, uncarried) VALUES (?, ?, 0, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET state = 0, token = excluded.token,
				fingerprint = excluded.fingerprint, deadline = excluded.deadline, outcome = NULL, uncarried = excluded.uncarried
			WHERE claims.deadline <= ? OR (claims.state = 0 AND claims.token = excluded.token)`},
		{&s.look, `SELECT state, token, fingerprint, deadline, outcome FROM claims WHERE id = ? AND deadline > ?`},
		{&s.takeOver, `UPDATE claims SET token = ?, fingerprint = ?, deadline = ?, uncarried = ? WHERE id = ?`},
		{&s.renew, `UPDATE claims SET deadline = ? WHERE id = ? AND token = ? AND state = 0 AND deadline > ?`},
		{&s.record, `UPDATE claims SET state = 1, deadline = ?, outcome = ?, uncarried = ? WHERE id = ? AND token = ? AND state = 0 AND deadline > ?`},
		{&s.insert, `REPLACE INTO claims (id, key, state, token, fingerprint, deadline, outcome, uncarried) VALUES (?, ?, 1, ?, ?, ?, ?, ?)`},
		{&s.remove, `DELETE FROM claims WHERE id = ? AND token = ? AND state = 0`},
		{&s.carried, `UPDATE claims SET uncarried = 0 WHERE id = ? AND token = ? AND state = 1 AND uncarried = 1`},
		{&s.prune, `DELETE FROM claims WHERE id IN (SELECT id FROM claims WHERE deadline <= ? ORDER BY deadline LIMIT ?)`},
		{&s.count, `UPDATE probe SET n = n + 1 RETURNING n`},
	} {
		stmt, err := conn.PrepareContext(context.Background(), p.sql)
		if err != nil {
			return err
		}
		p.to.stmt = stmt
	}
	return nil
}

func (s *statements) close() {
	for _, p := range []*statement{
		&s.begin, &s.commit, &s.rollback, &s.reserve, &s.look, &s.takeOver,
		&s.renew, &s.record, &s.insert, &s.remove, &s.carried, &s.prune, &s.count,
	} {
		if p.stmt != nil {
			_ = p.stmt.Close() // repeats the error of its last execution
		}
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
	rows, err := s.stmt.(driver.StmtQueryContext).QueryContext(context.Background(), s.bind(values))
	if err != nil {
		return false, err
	}
	err = rows.Next(dest)
	if errors.Is(err, io.EOF) {
		return false, rows.Close()
	}
	return err == nil, errors.Join(err, rows.Close())
}

func (s *statement) bind(values []driver.Value) []driver.NamedValue {
	s.args = s.args[:0]
	for i, v := range values {
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return s.args
}
