package sqlitedb_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

var schemas = sqlitedb.Schemas{
	"CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1)",
	"ALTER TABLE t ADD COLUMN m INTEGER NOT NULL DEFAULT 2",
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	t.Run("a new file gets all of them, once, by processes that open it together", func(t *testing.T) {
		t.Parallel()
		path := tempPath(t)
		var wg sync.WaitGroup
		for range 4 {
			db := mustOpen(t, sqlitedb.Config{Path: path})
			wg.Go(func() {
				if err := schemas.Migrate(t.Context(), db); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		db := mustOpen(t, sqlitedb.Config{Path: path})
		if rows, sum := read[int](t, db.Readers, "SELECT count(*) FROM t"), read[int](t, db.Readers, "SELECT n + m FROM t"); rows != 1 || sum != 3 {
			t.Errorf("%d rows, n + m = %d; want 1 row with 3", rows, sum)
		}
		if err := schemas.Check(t.Context(), db.Readers, path); err != nil {
			t.Error(err)
		}
	})
	t.Run("an older file gets those that it lacks and keeps its rows", func(t *testing.T) {
		t.Parallel()
		db := mustOpen(t, sqlitedb.Config{Path: tempPath(t)})
		if err := schemas[:1].Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		mustExec(t, db.Writer, "UPDATE t SET n = 40")
		if err := schemas.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		if sum := read[int](t, db.Readers, "SELECT n + m FROM t"); sum != 42 {
			t.Errorf("n + m = %d, want 42", sum)
		}
	})
	t.Run("one that fails leaves the file as it was", func(t *testing.T) {
		t.Parallel()
		db := mustOpen(t, sqlitedb.Config{Path: tempPath(t)})
		bad := sqlitedb.Schemas{schemas[0], "ALTER TABLE away ADD COLUMN m INTEGER"}
		if err := bad.Migrate(t.Context(), db); err == nil || !strings.Contains(err.Error(), db.Path) {
			t.Errorf("Migrate = %v, want an error that names the file", err)
		}
		if tables := read[int](t, db.Readers, "SELECT count(*) FROM sqlite_schema"); tables != 0 {
			t.Errorf("%d tables, want none", tables)
		}
	})
	t.Run("a newer file is refused and stays as it is", func(t *testing.T) {
		t.Parallel()
		db := mustOpen(t, sqlitedb.Config{Path: tempPath(t)})
		mustExec(t, db.Writer, "PRAGMA user_version = 7")
		mustExec(t, db.Writer, "PRAGMA wal_checkpoint(TRUNCATE)")
		before, _ := os.ReadFile(db.Path) // compared below
		const want = "schema has version 7, this program knows version 2"
		for _, err := range []error{schemas.Migrate(t.Context(), db), schemas.Check(t.Context(), db.Readers, db.Path)} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), db.Path) {
				t.Errorf("%v, want it to name the file and say %q", err, want)
			}
		}
		if after, err := os.ReadFile(db.Path); string(after) != string(before) || len(after) == 0 {
			t.Errorf("the file was changed, %v", err)
		}
	})
	t.Run("a file without tables is refused for reading", func(t *testing.T) {
		t.Parallel()
		db := mustOpen(t, sqlitedb.Config{Path: tempPath(t)})
		if err := schemas.Check(t.Context(), db.Readers, db.Path); err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "no tables yet") {
			t.Errorf("Check = %v, want that there are no tables yet", err)
		}
	})
}
