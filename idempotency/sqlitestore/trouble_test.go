package sqlitestore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// restricted is set for a second process that opens a store and says what is
// wrong with it, see openElsewhere.
const restricted = "ONCEGATE_TEST_RESTRICTED"

const nobody = 65534 // the user

// openRestricted does a job that is made of the restriction and the path.
func openRestricted(job string) int {
	how, path, _ := strings.Cut(job, " ")
	var err error
	switch {
	case how == "short":
		err = unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1024, Max: 1024}) // bytes
	case os.Getuid() == 0: // whom no mode stops
		err = errors.Join(syscall.Setgid(nobody), syscall.Setuid(nobody))
	}
	if err == nil {
		err = use(context.Background(), sqlitestore.Config{Path: path, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	}
	fmt.Printf("%s\n%v\n", sqlitedb.Classify(err), err)
	return 0
}

// use opens a store and pings it.
func use(ctx context.Context, cfg sqlitestore.Config) error {
	s, err := sqlitestore.Open(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(s.Ping(ctx), s.Close())
}

// openElsewhere returns the class and the sentence of the trouble that another
// process has with a file.
func openElsewhere(t *testing.T, how, path string) (class, sentence string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), restricted+"="+how+" "+path)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	class, sentence, _ = strings.Cut(string(out), "\n")
	return class, sentence
}

// mustMake makes a file with one record and closes it.
func mustMake(t *testing.T, path, id string) {
	t.Helper()
	s, err := sqlitestore.Open(t.Context(), config(t, path))
	if err == nil {
		mustRecord(t, s, mustReserve(t, s, id, "r1."+id, idempotency.Won).Claim, id)
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// openDir returns a directory that every user may enter and write.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestB78_trouble_at_the_start_has_a_class_and_a_remedy_and_changes_no_byte(t *testing.T) {
	t.Parallel()
	made := func(t *testing.T) string {
		path := filepath.Join(openDir(t), "gateway.db")
		mustMake(t, path, "m")
		return path
	}
	here := func(t *testing.T, path string) (string, string) {
		err := use(t.Context(), config(t, path))
		return sqlitedb.Classify(err), fmt.Sprint(err)
	}
	for name, test := range map[string]struct {
		make        func(t *testing.T) string
		use         func(t *testing.T, path string) (class, sentence string)
		class, want string
	}{
		"random bytes": {func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "gateway.db")
			junk := make([]byte, 4<<10)
			_, _ = rand.NewChaCha8([32]byte{}).Read(junk) // never fails
			if err := os.WriteFile(path, junk, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}, here, "corrupt", "is not a SQLite database; move it away"},
		"a damaged page": {func(t *testing.T) string {
			path := made(t)
			damage(t, path)
			return path
		}, here, "corrupt", "is damaged; nothing in it was changed"},
		"a directory": {func(t *testing.T) string { return t.TempDir() }, here, "unusable", "is not a regular file but a directory"},
		"a file that this user may not write": {func(t *testing.T) string {
			path := made(t)
			if err := os.Chmod(path, 0o444); err != nil {
				t.Fatal(err)
			}
			return path
		}, func(t *testing.T, path string) (string, string) { return openElsewhere(t, "nobody", path) },
			"not_writable", "may not be read and written by user"},
		"a directory that this user may not write": {func(t *testing.T) string {
			path := made(t)
			if err := errors.Join(os.Chmod(path, 0o666), os.Chmod(filepath.Dir(path), 0o555)); err != nil {
				t.Fatal(err)
			}
			return path
		}, func(t *testing.T, path string) (string, string) { return openElsewhere(t, "nobody", path) },
			"not_writable", "may not be written by user"},
		"a disk that fails": {made, func(t *testing.T, path string) (string, string) { return openElsewhere(t, "short", path) },
			"io", "could not be read or written; look at the disk"},
		"a file that another process has locked": {func(t *testing.T) string {
			path := made(t)
			mustHoldLock(t, path, sqlitedb.BusyTimeout+2*time.Second)
			return path
		}, here, "locked", "was locked by another process"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := test.make(t)
			before, _ := os.ReadFile(path) // fails for the directory
			class, sentence := test.use(t, path)
			if class != test.class || !strings.Contains(sentence, test.want) || !strings.Contains(sentence, path) {
				t.Errorf("%q: %s; want class %q, the file and %q", class, sentence, test.class, test.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestB78_a_disk_that_is_full(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	s := mustOpen(t, config(t, path))
	claim := mustReserve(t, s, "m", "r1.a", idempotency.Won).Claim
	if err := s.LimitPages(t.Context(), 20); err != nil {
		t.Fatal(err)
	}
	err := s.Record(t.Context(), claim, make([]byte, 100<<10))
	if class := sqlitedb.Classify(err); class != "full" || !strings.Contains(err.Error(), path+" cannot grow; free some space") {
		t.Errorf("Record = class %q, %v", class, err)
	}
	mustReserve(t, s, "m", "r2.b", idempotency.InFlight) // and the claim is as it was
	mustRecord(t, s, claim, "a short answer")
}

func TestB78_an_empty_file_is_an_empty_database(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := use(t.Context(), config(t, path)); err != nil {
		t.Error(err)
	}
}

// wantTrouble pings a store and checks what it says about its file.
func wantTrouble(t *testing.T, s *sqlitestore.Store, path, class, sentence string) {
	t.Helper()
	err := s.Ping(t.Context())
	if got := sqlitedb.Classify(err); got != class {
		t.Fatalf("Ping = class %q, %v; want %q", got, err, class)
	}
	if !strings.Contains(err.Error(), path+" "+sentence) || strings.Count(err.Error(), path) != 1 {
		t.Errorf("Ping = %v, want the file once and %q", err, sentence)
	}
}

func TestB78_a_file_that_is_replaced_while_it_is_open(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(path, other string) error{
		"by a rename over it": func(path, other string) error { return os.Rename(other, path) },
		"after it was moved away": func(path, other string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Rename(other, path))
		},
		"after it was deleted": func(path, other string) error { return errors.Join(os.Remove(path), os.Rename(other, path)) },
		"together with its log": func(path, other string) error {
			return errors.Join(os.Rename(other, path), os.Remove(path+"-wal"), os.Remove(path+"-shm"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := tempPath(t)
			other := filepath.Join(filepath.Dir(path), "other.db")
			mustMake(t, other, "new")
			bytesOfNew := mustRead(t, other)
			cfg := config(t, path)
			cfg.Replica, cfg.NoUpkeep = "one", true // so that all is in the log
			s, err := sqlitestore.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			closed := false
			defer func() {
				if !closed {
					_ = s.Close()
				}
			}()
			mustRecord(t, s, mustReserve(t, s, "old", "one.a", idempotency.Won).Claim, "")
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := replace(path, other); err != nil {
				t.Fatal(err)
			}
			wantTrouble(t, s, path, "replaced", "was moved away, deleted or replaced")
			mustReserve(t, s, "late", "one.b", idempotency.Won) // goes where the old file went
			if got := mustRead(t, path); !bytes.Equal(got, bytesOfNew) {
				t.Error("the new file was changed while the old one was open")
			}
			closed = true
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := mustRead(t, path); !bytes.Equal(got, bytesOfNew) {
				t.Error("the new file was changed when the old one was closed")
			}
			again := mustOpen(t, cfg)
			if err := again.Ping(t.Context()); err != nil {
				t.Error(err)
			}
			mustReserve(t, again, "new", "one.c", idempotency.Recorded)
			mustReserve(t, again, "old", "one.d", idempotency.Won)
			mustReserve(t, again, "late", "one.e", idempotency.Won)
			if got := mustText(t, mustOpenSQL(t, path), "PRAGMA integrity_check"); got != "ok" {
				t.Errorf("the new file: %s", got)
			}
			if old := path + ".old"; name == "after it was moved away" {
				if err := look(t, old); err != nil {
					t.Errorf("the old file: %v", err)
				}
				if n := mustCount(t, mustOpenSQL(t, old), "SELECT count(*) FROM claims"); n != 2 {
					t.Errorf("the old file has %d of its messages, want both", n)
				}
			}
		})
	}
}

func TestB78_a_file_that_goes_away_while_it_is_open(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(path string) error{
		"the file": os.Remove,
		"its log":  func(path string) error { return os.Remove(path + "-wal") },
		"its directory": func(path string) error {
			return os.Rename(filepath.Dir(path), filepath.Dir(path)+"-old")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := tempPath(t)
			cfg := config(t, path)
			cfg.Replica = "one"
			s, err := sqlitestore.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			mustReserve(t, s, "m", "one.a", idempotency.Won)
			if err := remove(path); err != nil {
				t.Error(err)
			}
			wantTrouble(t, s, path, "replaced", "was moved away, deleted or replaced")
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := use(t.Context(), cfg); err != nil {
				t.Errorf("opened anew: %v", err)
			}
		})
	}
}

func TestB78_a_file_that_somebody_writes_over_while_it_is_open(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"cut to nothing": {func(path string) error { return os.Truncate(path, 0) }, "was emptied while it was open"},
		"the first page": {func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.Write(bytes.Repeat([]byte{0xa5}, 4096))
				err = errors.Join(err, f.Close())
			}
			return err
		}, "is not a SQLite database"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := tempPath(t)
			cfg := config(t, path)
			cfg.NoUpkeep = true
			s, err := sqlitestore.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			mustReserve(t, s, "m", "r1.a", idempotency.Won)
			// All is in the file, and what is open goes by what it remembers.
			mustExec(t, mustOpenSQL(t, path), "PRAGMA wal_checkpoint(PASSIVE)")
			if err := test.spoil(path); err != nil {
				t.Fatal(err)
			}
			spoiled := mustRead(t, path)
			wantTrouble(t, s, path, "corrupt", test.want)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(mustRead(t, path), spoiled) {
				t.Error("the bytes were changed")
			}
		})
	}
}
