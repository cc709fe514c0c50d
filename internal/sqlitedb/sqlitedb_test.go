package sqlitedb_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

func tempPath(t *testing.T) string {
	return filepath.Join(t.TempDir(), "state?#%41 é", "gateway.db")
}

func mustOpen(t *testing.T, c sqlitedb.Config) *sqlitedb.DB {
	t.Helper()
	db, err := sqlitedb.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func mustExec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func read[T any](t *testing.T, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, query string) T {
	t.Helper()
	var v T
	if err := db.QueryRowContext(t.Context(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func TestB74_settings_are_in_force_on_every_connection(t *testing.T) {
	t.Parallel()
	db := mustOpen(t, sqlitedb.Config{Path: tempPath(t)})
	conns := map[string]*sql.DB{"writer": db.Writer, "reader 1": db.Readers, "reader 2": db.Readers, "reader 3": db.Readers}
	for name, pool := range conns {
		conn, err := pool.Conn(t.Context()) // held to the end, so that each is another one
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := read[string](t, conn, "PRAGMA journal_mode"); got != sqlitedb.WAL {
			t.Errorf("%s: journal_mode = %s, want wal", name, got)
		}
		if got := read[int](t, conn, "PRAGMA busy_timeout"); got < 5000 {
			t.Errorf("%s: busy_timeout = %d, want 5000 or more", name, got)
		}
		if got := read[int](t, conn, "PRAGMA synchronous"); got != 2 {
			t.Errorf("%s: synchronous = %d, want 2 (full)", name, got)
		}
	}
}

func TestSettingThatIsNotHonoured(t *testing.T) {
	t.Parallel()
	db := mustOpen(t, sqlitedb.Config{Path: tempPath(t)})
	for _, name := range []string{"busy_timeout", "no_such_setting"} {
		other, err := sqlitedb.OpenWith(db.Path, name, "long", "5000")
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("connection with a setting that has no effect = %v, want an error that names %s", err, name)
		}
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	db := mustOpen(t, sqlitedb.Config{Path: path})
	mustExec(t, db.Writer, "CREATE TABLE t (n INTEGER)")
	for name, want := range map[string]fs.FileMode{
		filepath.Dir(path): fs.ModeDir | 0o700, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600,
	} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %s = %s, want %s", name, info.Mode(), want)
		}
	}
	if _, err := db.Readers.ExecContext(t.Context(), "INSERT INTO t VALUES (1)"); err == nil {
		t.Error("a reader may write")
	}
}

func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { mustOpen(t, sqlitedb.Config{Path: path}) })
	}
	wg.Wait()
}

func TestB76_no_write_ahead_log_where_memory_is_not_shared(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nfs", "cifs", "smb", "9p", "fuse", ""} {
		t.Run("on "+name, func(t *testing.T) {
			t.Parallel()
			db := mustOpen(t, sqlitedb.Config{Path: tempPath(t), FileSystem: func(string) (string, error) { return name, nil }})
			mustExec(t, db.Writer, "CREATE TABLE t (n INTEGER)")
			want := sqlitedb.Delete
			if name == "" {
				want = sqlitedb.WAL
			}
			if got := read[string](t, db.Readers, "PRAGMA journal_mode"); got != want || db.Journal != want {
				t.Errorf("journal mode = %s, said to be %s, want %s", got, db.Journal, want)
			}
			if (db.Warning == "") != (name == "") || !strings.Contains(db.Warning, name) {
				t.Errorf("warning = %q, want one that names %q, and none on a local disk", db.Warning, name)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("text ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, path, want string }{
		{"a file that is no database", file, file + " is not a SQLite database; move it away"},
		{"a directory in place of the file", dir, dir + " is not a regular file but a directory"},
		{"a file in place of the directory", filepath.Join(file, "gateway.db"), "state directory " + file + " cannot be used"},
		{"a directory that nobody may write", "/sys/gateway.db", "state directory /sys is not writable"},
		{"a directory that nobody may make", "/sys/state/gateway.db", "state directory /sys/state is not writable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db, err := sqlitedb.Open(t.Context(), sqlitedb.Config{Path: test.path})
			if err == nil {
				_ = db.Close()
				t.Fatal("Open succeeded")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("Open = %q, want it to say %q", err, test.want)
			}
		})
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != strings.Repeat("text ", 1000) {
		t.Errorf("the bytes of a bad file were changed (%v)", err)
	}
}

// files lists a directory with sizes and times of change.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprint(e.Name(), " ", info.Size(), " ", info.ModTime()))
	}
	return list
}

func TestOpenReadOnly(t *testing.T) {
	t.Parallel()
	source := tempPath(t)
	db := mustOpen(t, sqlitedb.Config{Path: source})
	mustExec(t, db.Writer, "CREATE TABLE t (n INTEGER)")
	mustExec(t, db.Writer, "INSERT INTO t VALUES (42)")

	// Copies stand for the file of a process that was killed, or that ended.
	copyTo := func(suffixes ...string) string {
		path := filepath.Join(t.TempDir(), "gateway.db")
		for _, suffix := range suffixes {
			data, err := os.ReadFile(source + suffix)
			if err == nil {
				err = os.WriteFile(path+suffix, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	killed, noIndex := copyTo("", "-wal", "-shm"), copyTo("", "-wal")
	mustExec(t, db.Writer, "PRAGMA wal_checkpoint(TRUNCATE)")
	ended, idle := copyTo(""), copyTo("", "-wal", "-shm")
	onNFS := filepath.Join(t.TempDir(), "gateway.db")
	other := mustOpen(t, sqlitedb.Config{Path: onNFS, FileSystem: func(string) (string, error) { return "nfs", nil }})
	mustExec(t, other.Writer, "CREATE TABLE t AS SELECT 42 AS n")

	for _, test := range []struct{ name, path string }{
		{"after a kill", killed}, {"after a clean end", ended}, {"with an empty log", idle}, {"without a write-ahead log", onNFS},
	} {
		t.Run("reads "+test.name+" and leaves no trace", func(t *testing.T) {
			before := files(t, filepath.Dir(test.path))
			ro, err := sqlitedb.OpenReadOnly(t.Context(), test.path)
			if err != nil {
				t.Fatal(err)
			}
			if n := read[int](t, ro, "SELECT n FROM t"); n != 42 {
				t.Errorf("n = %d, want 42", n)
			}
			if _, err := ro.ExecContext(t.Context(), "INSERT INTO t VALUES (1)"); err == nil {
				t.Error("it can be written")
			}
			if err := ro.Close(); err != nil {
				t.Fatal(err)
			}
			if after := files(t, filepath.Dir(test.path)); !slices.Equal(after, before) {
				t.Errorf("files after = %q, before = %q", after, before)
			}
		})
	}
	for _, test := range []struct{ name, path, want string }{
		{"an absent file", filepath.Join(t.TempDir(), "gateway.db"), "does not exist"},
		{"a log without its index", noIndex, "start the gateway once"},
	} {
		t.Run(test.name+" is an error and stays as it is", func(t *testing.T) {
			before := files(t, filepath.Dir(test.path))
			ro, err := sqlitedb.OpenReadOnly(t.Context(), test.path)
			if err == nil {
				_ = ro.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("OpenReadOnly = %v, want %q", err, test.want)
			}
			if after := files(t, filepath.Dir(test.path)); !slices.Equal(after, before) {
				t.Errorf("files after = %q, before = %q", after, before)
			}
		})
	}
}
