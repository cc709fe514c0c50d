package sqlitedb_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.db")
	if err := os.WriteFile(junk, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(junk, []byte("this is not a database, it only has its name"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		want string
	}{
		"not a database":           {junk, "corrupt"},
		"a directory that is none": {filepath.Join(junk, "gateway.db"), "not_writable"},
	} {
		db, err := sqlitedb.Open(t.Context(), sqlitedb.Config{Path: c.path})
		if err == nil {
			_ = db.Close()
			t.Fatalf("%s: opened", name)
		}
		if got := sqlitedb.Classify(err); got != c.want {
			t.Errorf("%s: Classify(%v) = %q, want %q", name, err, got, c.want)
		}
	}
	for want, err := range map[string]error{
		"":             nil,
		"not_writable": &fs.PathError{Op: "mkdir", Path: "/x", Err: fs.ErrPermission},
		"readonly":     &fs.PathError{Op: "open", Path: "/x", Err: unix.EROFS},
		"full":         &fs.PathError{Op: "open", Path: "/x", Err: unix.ENOSPC},
		"io":           &fs.PathError{Op: "stat", Path: "/x", Err: unix.EIO},
		"replaced":     sqlitedb.ErrReplaced,
		"unusable":     errors.New("another thing"),
	} {
		if got := sqlitedb.Classify(err); got != want {
			t.Errorf("Classify(%v) = %q, want %q", err, got, want)
		}
	}
	sentences := make(map[string]error)
	for _, err := range []error{unix.EROFS, unix.ENOSPC, fs.ErrPermission, fs.ErrNotExist, sqlitedb.ErrReplaced} {
		explained := sqlitedb.Explain("/x", err)
		sentence, _, _ := strings.Cut(explained.Error(), ":")
		if other, taken := sentences[sentence]; taken || !errors.Is(explained, err) {
			t.Errorf("Explain(%v) = %v, Explain(%v) says the same", err, explained, other)
		}
		sentences[sentence] = err
	}
}

// A new connection to what stands at the path now would read and change
// another file than the old ones.
func TestB78_no_new_connection_goes_to_a_file_that_was_put_in_the_place(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	db := mustOpen(t, sqlitedb.Config{Path: path})
	mustExec(t, db.Writer, "CREATE TABLE t AS SELECT 1 AS n")
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	held, err := db.Readers.Conn(t.Context()) // the one that there is
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := db.Readers.PingContext(t.Context()); !errors.Is(err, sqlitedb.ErrReplaced) {
		t.Errorf("another connection = %v, want that the file was replaced", err)
	}
	if err := db.Check(t.Context()); sqlitedb.Classify(err) != "replaced" {
		t.Errorf("Check = %v, want that the file was replaced", err)
	}
	if n := read[int](t, held, "SELECT n FROM t"); n != 1 {
		t.Errorf("n = %d in the old file, want 1", n)
	}
}
