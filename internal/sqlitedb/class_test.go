package sqlitedb_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

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
		"unusable":     errors.New("another thing"),
	} {
		if got := sqlitedb.Classify(err); got != want {
			t.Errorf("Classify(%v) = %q, want %q", err, got, want)
		}
	}
}
