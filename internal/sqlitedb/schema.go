package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Schemas make the tables of a file out of nothing, each from what the one
// before it left. The number of those that were carried out is kept in the file
// as its user_version.
type Schemas []string

// Migrate brings the tables to the version that this program knows. It holds
// the write lock from the start, so that of two processes one finds it done.
func (s Schemas) Migrate(ctx context.Context, db *DB) error {
	return Explain(db.Path, s.migrate(ctx, db.Writer))
}

func (s Schemas) migrate(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // refused after the commit
	version, err := s.version(ctx, tx)
	if err != nil || version == len(s) {
		return err
	}
	for _, schema := range s[version:] {
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(s))); err != nil {
		return err
	}
	return tx.Commit()
}

// Check returns an error unless the file at path, which db reads, has tables of
// a version that this program can read.
func (s Schemas) Check(ctx context.Context, db *sql.DB, path string) error {
	version, err := s.version(ctx, db)
	if err == nil && version == 0 {
		err = errors.New("it has no tables yet; the gateway makes them when it starts")
	}
	return Explain(path, err)
}

func (s Schemas) version(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (version int, err error) {
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return 0, err
	}
	if version < 0 || version > len(s) {
		return 0, fmt.Errorf("its schema has version %d, this program knows version %d: it belongs to a newer gateway; run that one or choose another state directory", version, len(s))
	}
	return version, nil
}
