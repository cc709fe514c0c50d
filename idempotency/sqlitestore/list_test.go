package sqlitestore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/internal/sqlitedb"
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
	wantSame(t, before, files(t, filepath.Dir(path)))
}

func wantSame(t *testing.T, before, after map[string][]byte) {
	t.Helper()
	if len(before) != len(after) {
		t.Errorf("%d files became %d", len(before), len(after))
	}
	for name, data := range before {
		if !bytes.Equal(data, after[name]) {
			t.Errorf("%s has changed", filepath.Base(name))
		}
	}
}

// writeOnDemand is set for a second process that has a store open, see writer.
const writeOnDemand = "ONCEGATE_TEST_WRITE_ON_DEMAND"

// write claims a message for each line of the standard input, or takes one for
// the line "take", and answers with the line.
func write(path string) int {
	// No upkeep: the file changes when it is told to.
	s, err := sqlitestore.Open(context.Background(), sqlitestore.Config{Path: path, Replica: "other", Now: time.Now, Log: slog.New(slog.DiscardHandler), NoUpkeep: true})
	for lines := bufio.NewScanner(os.Stdin); err == nil && lines.Scan(); fmt.Println(lines.Text()) {
		if lines.Text() == "take" {
			_, err = s.Take(context.Background(), idempotency.TakeRequest{Tokens: []string{"other.taker"}, Look: time.Millisecond})
		} else {
			_, err = s.Reserve(context.Background(), idempotencytest.Key(lines.Text()), request("other."+lines.Text()))
		}
	}
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// writer starts a process that has a store open in the file, as replica other,
// until the test ends. The functions that it returns have it claim a message,
// and kill it.
func writer(t *testing.T, path string) (claim func(id string), kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0]) // not of t.Context, which ends before the clean-up waits
	cmd.Env = append(os.Environ(), writeOnDemand+"="+path)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil && !killed {
			t.Errorf("the other process: %v", err)
		}
	})
	kill = func() {
		killed = true
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, out) // ends with the process
	}
	answers := bufio.NewReader(out)
	claim = func(id string) {
		t.Helper()
		if _, err := fmt.Fprintln(in, id); err != nil {
			t.Fatal(err)
		}
		if line, err := answers.ReadString('\n'); line != id+"\n" {
			t.Fatalf("the other process said %q, %v", line, err)
		}
	}
	return claim, kill
}

func TestReaderBesideAnotherProcessThatWrites(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	claim, _ := writer(t, path)
	claim("first")
	before := files(t, filepath.Dir(path))
	r, err := sqlitestore.OpenReadOnly(t.Context(), path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := r.Get(t.Context(), idempotencytest.Key("first")); err != nil || e.Token != "other.first" {
		t.Errorf("Get = %+v, %v", e, err)
	}
	wantSame(t, before, files(t, filepath.Dir(path)))
	claim("second") // the reader does not hold the writer up, and sees what it writes
	if page, err := r.List(t.Context(), idempotency.ListRequest{Limit: 5}); err != nil || len(page.Entries) != 2 {
		t.Errorf("List = %+v, %v, want both messages", page, err)
	}
	before = files(t, filepath.Dir(path))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	wantSame(t, before, files(t, filepath.Dir(path)))
}

func TestReaderSaysWhatIsWrongWithAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, change func(path string)) string {
		path := filepath.Join(dir, name)
		s, err := sqlitestore.Open(t.Context(), config(t, path))
		if err == nil {
			mustReserve(t, s, "m", "r.1", idempotency.Won)
			err = s.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		change(path)
		return path
	}
	for name, test := range map[string]struct{ path, class, want string }{
		"no database": {file("text", func(path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("text ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}), "corrupt", "is not a SQLite database"},
		"a damaged page": {file("damaged", func(path string) { damage(t, path) }), "corrupt", "is damaged; nothing in it was changed"},
		"a newer gateway's": {file("newer", func(path string) {
			mustExec(t, mustOpenSQL(t, path), "PRAGMA user_version = 7")
		}), "unusable", "its schema has version 7"},
		"a file without tables": {file("empty", func(path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}), "unusable", "the gateway makes them when it starts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := look(t, test.path)
			if err == nil || !strings.Contains(err.Error(), test.path) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("looking = %v, want the file and %q", err, test.want)
			}
			if class := sqlitedb.Classify(err); class != test.class {
				t.Errorf("class %q, want %q", class, test.class)
			}
		})
	}
}

// Without a write-ahead log a writer keeps readers out.
func TestReaderOfALockedFileGivesUp(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	cfg.FileSystem = func(string) (string, error) { return "nfs", nil }
	s, err := sqlitestore.Open(t.Context(), cfg)
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	mustHoldLock(t, cfg.Path, sqlitedb.BusyTimeout+2*time.Second)
	if err := look(t, cfg.Path); sqlitedb.Classify(err) != "locked" || !strings.Contains(err.Error(), cfg.Path+" was locked by another process") {
		t.Errorf("looking = %v, want the file and that it is locked", err)
	}
}

// damage overwrites all of a file but the page that describes it.
func damage(t *testing.T, path string) {
	t.Helper()
	const page = 4096
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{0xa5}, int(info.Size())-page), page)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// look opens a file and lists what is in it.
func look(t *testing.T, path string) error {
	t.Helper()
	r, err := sqlitestore.OpenReadOnly(t.Context(), path, time.Now)
	if err != nil {
		return err
	}
	_, err = r.List(t.Context(), idempotency.ListRequest{Limit: 5})
	return errors.Join(err, r.Close())
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
