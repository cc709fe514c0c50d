package sqlitestore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
)

// files returns what is in a directory, byte for byte.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = data
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReaderChangesNoByte(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	s, err := sqlitestore.Open(t.Context(), config(t, path))
	if err != nil {
		t.Fatal(err)
	}
	req := idempotency.Request{Token: "r.1", Lease: time.Minute, TTL: time.Minute}
	if _, err := s.Reserve(t.Context(), idempotencytest.Key("m"), req); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := files(t, filepath.Dir(path))
	r, err := sqlitestore.OpenReadOnly(t.Context(), path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := r.Get(t.Context(), idempotencytest.Key("m")); err != nil || e.Token != "r.1" {
		t.Errorf("Get = %+v, %v", e, err)
	}
	if page, err := r.List(t.Context(), idempotency.ListRequest{Limit: 5}); err != nil || len(page.Entries) != 1 {
		t.Errorf("List = %+v, %v", page, err)
	}
	if _, err := r.List(t.Context(), idempotency.ListRequest{Limit: 5, After: "xyz"}); err == nil {
		t.Error("a page behind nothing was listed")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	after := files(t, filepath.Dir(path))
	if len(before) != len(after) {
		t.Errorf("%d files became %d", len(before), len(after))
	}
	for name, data := range before {
		if !bytes.Equal(data, after[name]) {
			t.Errorf("%s has changed", filepath.Base(name))
		}
	}
}

func TestReaderOfAFileThatIsNotThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	if r, err := sqlitestore.OpenReadOnly(t.Context(), path, time.Now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenReadOnly = %v, %v, want an error that says so", r, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was made: %v", err)
	}
}
