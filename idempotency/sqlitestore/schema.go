package sqlitestore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
)

//go:embed schema.sql
var schema string

// schemaVersion is kept in the file as its user_version; 0 is an empty file.
const schemaVersion = 1

// migrate brings the tables to the version that this program knows. It holds
// the write lock from the start, so that of two processes one finds it done.
func migrate(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // refused after the commit
	empty, err := checkVersion(ctx, tx)
	if err != nil || !empty {
		return err
	}
	if _, err := tx.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA user_version = %d;", schemaVersion)); err != nil {
		return err
	}
	return tx.Commit()
}

// checkVersion returns an error unless the file holds the tables that this
// program knows, or none yet.
func checkVersion(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (empty bool, err error) {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return false, err
	}
	if version != 0 && version != schemaVersion {
		return false, fmt.Errorf("its schema has version %d, this program knows version %d: it belongs to a newer gateway; run that one or choose another state directory", version, schemaVersion)
	}
	return version == 0, nil
}
