package sqlitehistory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/sqlitehistory"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// openAsNobody opens the history as a user whom modes stop and says what is
// wrong with it.
func openAsNobody(ctx context.Context, path string) string {
	const nobody = 65534
	var err error
	if os.Getuid() == 0 {
		err = errors.Join(syscall.Setgid(nobody), syscall.Setuid(nobody))
	}
	if err == nil {
		var h *sqlitehistory.History
		if h, err = sqlitehistory.Open(ctx, sqlitehistory.Config{Path: path, MaxTurns: 1, TTL: time.Hour}); err == nil {
			err = h.Close()
		}
	}
	return sqlitedb.Classify(err) + ": " + fmt.Sprint(err)
}

func TestTroubleAtTheStart(t *testing.T) {
	t.Parallel()
	here := func(t *testing.T, path string) string {
		h, err := sqlitehistory.Open(t.Context(), config(t, path))
		if err == nil {
			err = h.Close()
		}
		return sqlitedb.Classify(err) + ": " + fmt.Sprint(err)
	}
	made := func(t *testing.T, change func(path string) error) string {
		dir := t.TempDir()
		if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "sessions.db")
		h, err := sqlitehistory.Open(t.Context(), config(t, path))
		if err == nil {
			mustAppend(t, h, "s", 1, "m-1")
			err = h.Close()
		}
		if err := errors.Join(err, change(path)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct {
		change      func(path string) error
		open        func(t *testing.T, path string) string
		class, want string
	}{
		"a file that is no database is refused": {func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600)
		}, here, "corrupt", "is not a SQLite database"},
		"a file whose tables are damaged is refused": {func(path string) error {
			file, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = file.WriteAt(bytes.Repeat([]byte{0xff}, 3900), 110) // behind the header of the first page
			return errors.Join(err, file.Close())
		}, here, "corrupt", "is damaged"},
		"a file that may not be written is refused": {func(path string) error { return os.Chmod(path, 0o444) },
			func(t *testing.T, path string) string { return elsewhere(t, openBound, path) }, "not_writable", "may not be read and written"},
		"a file of a newer gateway is refused": {func(path string) error {
			return setVersion(t.Context(), path, 9)
		}, here, "unusable", "schema has version 9, this program knows version 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := made(t, test.change)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := test.open(t, path)
			if !strings.HasPrefix(got, test.class+": "+path) || !strings.Contains(got, test.want) {
				t.Errorf("Open = %q; want class %s, the file and %q", got, test.class, test.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
				t.Error("the file was changed")
			}
		})
	}
}

func setVersion(ctx context.Context, path string, version int) error {
	db, err := sqlitedb.Open(ctx, sqlitedb.Config{Path: path})
	if err != nil {
		return err
	}
	_, err = db.Writer.ExecContext(ctx, fmt.Sprint("PRAGMA user_version = ", version))
	return errors.Join(err, db.Close())
}

func TestLookAtAFileOfANewerGateway(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	if err := setVersion(t.Context(), cfg.Path, 9); err != nil {
		t.Fatal(err)
	}
	r, err := sqlitehistory.OpenReadOnly(t.Context(), cfg)
	if err == nil {
		_ = r.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "schema has version 9") {
		t.Errorf("OpenReadOnly = %v, want both versions", err)
	}
}

// A caller that leaves costs nobody the connection, and what had not reached it
// yet is not carried out.
func TestACallerThatLeavesWhileTheFileIsLocked(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	h := mustOpen(t, cfg)
	mustBegin(t, h, "s", 1)
	lock, err := mustOpenSQL(t, cfg.Path).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if err := appendTurn(short(), h, "s", 1, "m-1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Append that waits for the lock = %v, want the context's end", err)
	}
	if _, err := h.Begin(short(), "queued", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Begin behind it = %v, want the context's end", err)
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if rows := mustBegin(t, h, "s", 1); len(rows) != 2 {
		t.Errorf("%d rows, want those of the append that had the connection", len(rows))
	}
	if _, _, err := h.Show(t.Context(), "queued"); !errors.Is(err, agent.ErrNoSession) {
		t.Errorf("Show of what was withdrawn = %v, want ErrNoSession", err)
	}
}

func TestCallersThatLeaveAtAnyMoment(t *testing.T) {
	t.Parallel()
	h := mustOpen(t, config(t, tempPath(t)))
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			for range i * 200 { // another moment each time
				_ = ctx.Err()
			}
			cancel()
		}()
		_, err := h.Begin(ctx, "s", 1)
		if err == nil {
			err = appendTurn(ctx, h, "s", 1, fmt.Sprint(i))
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("call %d = %v, want nil or the context's end", i, err)
		}
		if _, _, err := h.Show(ctx, "s"); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, agent.ErrNoSession) {
			t.Errorf("Show %d = %v, want the session or the context's end", i, err)
		}
		<-left
		mustAppend(t, h, "s", 1, "kept")
	}
	if rows := mustBegin(t, h, "s", 1); len(rows) == 0 || len(rows)%2 != 0 {
		t.Errorf("%d rows, want whole turns", len(rows))
	}
}

func TestCloseWaitsForATransactionWhoseCallerHasLeft(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	synctest.Test(t, func(t *testing.T) {
		entered, leave := make(chan struct{}), make(chan struct{})
		cfg.Now = func() time.Time { // is called inside of every transaction
			entered <- struct{}{}
			<-leave
			return time.Now()
		}
		h, err := sqlitehistory.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		appended, closed := make(chan error, 1), make(chan error, 1)
		go func() { appended <- appendTurn(ctx, h, "s", 1, "m-1") }()
		<-entered
		cancel()
		if err := <-appended; !errors.Is(err, context.Canceled) {
			t.Errorf("Append = %v, want the context's end", err)
		}
		go func() { closed <- h.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("Close has not waited")
		default:
		}
		close(leave)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
	})
	if n := mustCount(t, mustOpenSQL(t, cfg.Path), "SELECT count(*) FROM turns"); n != 1 {
		t.Errorf("%d turns, want the one under way", n)
	}
}

func TestAnAnswerNamesNoFile(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	h := mustOpen(t, cfg)
	mustBegin(t, h, "s", 2)
	_, _, unknown := h.Show(t.Context(), "other")
	for _, err := range []error{appendTurn(t.Context(), h, "s", 1, "m-1"), h.Reset(t.Context(), "other"), unknown} {
		if err == nil || strings.Contains(err.Error(), cfg.Path) {
			t.Errorf("%v, want an answer that is no trouble with the file", err)
		}
	}
}

func TestAFault(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	h := mustOpen(t, cfg)
	mustAppend(t, h, "s", 1, "m-1")
	db := mustOpenSQL(t, cfg.Path)
	mustExec(t, db, "CREATE TRIGGER refuse BEFORE DELETE ON turns BEGIN SELECT raise(ABORT, 'no'); END")
	if err := h.Reset(t.Context(), "s"); err == nil || !strings.Contains(err.Error(), cfg.Path) || strings.Contains(err.Error(), "asks") {
		t.Errorf("Reset = %v, want an error that names the file and no text", err)
	}
	for i := range cfg.MaxTurns - 1 {
		mustAppend(t, h, "s", 1, fmt.Sprint(i))
	}
	if err := appendTurn(t.Context(), h, "s", 2, "one too many"); err == nil || errors.Is(err, agent.ErrStale) {
		t.Errorf("Append = %v, want an error that is no answer", err)
	}
	mustExec(t, db, "DROP TRIGGER refuse")
	if rows := mustBegin(t, h, "s", 1); len(rows) != 2*cfg.MaxTurns || rows[0].Key != "m-1" {
		t.Errorf("rows = %+v, want all of them, and the fence of before", rows)
	}
}

func TestAFileThatIsReplaced(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	h := mustOpen(t, cfg)
	if err := os.Rename(cfg.Path, cfg.Path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := h.Ping(t.Context()); !errors.Is(err, sqlitedb.ErrReplaced) {
		t.Errorf("Ping = %v, want that the file was replaced", err)
	}
}
