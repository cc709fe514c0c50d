package sqlitestore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
)

//go:embed schema1.sql
var schema1 string

//go:embed schema2.sql
var schema2 string

// schemas make the tables out of nothing, each from what the one before it
// left. The number of those that were carried out is kept in the file as its
// user_version.
var schemas = []string{schema1, schema2}

// migrate brings the tables to the version that this program knows. It holds
// the write lock from the start, so that of two processes one finds it done.
func migrate(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // refused after the commit
	version, err := readVersion(ctx, tx)
	if err != nil || version == len(schemas) {
		return err
	}
	for _, schema := range schemas[version:] {
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(schemas))); err != nil {
		return err
	}
	return tx.Commit()
}

// readVersion returns the version of the tables in the file, 0 if there are
// none, and an error for one that this program does not know.
func readVersion(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (version int, err error) {
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return 0, err
	}
	if version < 0 || version > len(schemas) {
		return 0, fmt.Errorf("its schema has version %d, this program knows version %d: it belongs to a newer gateway; run that one or choose another state directory", version, len(schemas))
	}
	return version, nil
}
