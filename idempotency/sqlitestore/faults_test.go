package sqlitestore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
)

// gate is a clock that can stop the writer inside a transaction: the writer
// reads the time there, and Release reads none outside.
type gate struct {
	entered, leave chan struct{}
	armed          chan bool
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}), leave: make(chan struct{}), armed: make(chan bool, 1)}
}

func (g *gate) Now() time.Time {
	select {
	case <-g.armed:
		g.entered <- struct{}{}
		<-g.leave
	default:
	}
	return time.Now()
}

func TestWithdrawal(t *testing.T) {
	t.Parallel()
	g := newGate()
	cfg := config(t, tempPath(t))
	cfg.Now = g.Now
	s := mustOpen(t, cfg)
	taken := mustReserve(t, s, "taken", "r1.a", idempotency.Won).Claim

	g.armed <- true
	released := make(chan error)
	takenCtx, cancelTaken := context.WithCancel(t.Context())
	go func() { released <- s.Release(takenCtx, taken) }()
	<-g.entered // the writer has taken the release and nothing else

	queuedCtx, cancelQueued := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancelQueued()
	_, err := s.Reserve(queuedCtx, idempotencytest.Key("queued"), request("r1.b"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Reserve that was never taken = %v, want its context's end", err)
	}
	cancelTaken()
	if err := <-released; !errors.Is(err, context.Canceled) {
		t.Errorf("Release whose caller left while the writer was at it = %v, want its context's end", err)
	}
	close(g.leave) // and now it is carried out
	mustReserve(t, s, "queued", "r2.c", idempotency.Won)
	mustReserve(t, s, "taken", "r2.d", idempotency.Won)
}

func TestFailingBatch(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	s := mustOpen(t, cfg)
	claim := mustReserve(t, s, "m", "r1.a", idempotency.Won).Claim
	db := mustOpenSQL(t, cfg.Path)
	mustExec(t, db, "ALTER TABLE claims RENAME TO away")
	if _, err := s.Reserve(t.Context(), idempotencytest.Key("n"), request("r1.b")); err == nil || !strings.Contains(err.Error(), cfg.Path) {
		t.Errorf("Reserve without a table = %v, want an error that names the file", err)
	}
	if err := s.Record(t.Context(), claim, nil); err == nil || errors.Is(err, idempotency.ErrNotOwner) {
		t.Errorf("Record without a table = %v, want an error that is no answer", err)
	}
	mustExec(t, db, "ALTER TABLE away RENAME TO claims")
	mustReserve(t, s, "n", "r1.b", idempotency.Won)
	if err := s.Record(t.Context(), claim, nil); err != nil {
		t.Errorf("Record after the fault = %v", err)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, config(t, tempPath(t)))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reserve(t.Context(), idempotencytest.Key("m"), request("r1.a")); err == nil {
		t.Error("Reserve on a closed store succeeded")
	}
}

func TestUpkeep(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlitestore.Open(t.Context(), config(t, path))
		if err != nil {
			t.Fatal(err)
		}
		mustReserve(t, s, "short", "r1.a", idempotency.Won)
		claim := mustReserve(t, s, "long", "r1.b", idempotency.Won).Claim
		time.Sleep(20 * time.Minute) // of the bubble: longer than a lease, shorter than a record window
		if err := s.Record(t.Context(), claim, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := s.Close(); err != nil { // and the bubble sees that no goroutine is left
			t.Fatal(err)
		}
	})
	if n := mustCount(t, mustOpenSQL(t, path), "SELECT count(*) FROM claims"); n != 1 {
		t.Errorf("%d rows are left, want the one that is recorded", n)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	newer := tempPath(t)
	mustOpen(t, config(t, newer))
	mustExec(t, mustOpenSQL(t, newer), "PRAGMA user_version = 7")
	garbage := filepath.Join(t.TempDir(), "gateway.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, path, want string }{
		{"a file of a newer gateway is refused with both versions", newer, "schema has version 7, this program knows version 3"},
		{"a file that is no database is refused", garbage, "is not a SQLite database; move it away"},
		{"a directory is refused", t.TempDir(), "not a regular file but a directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before, _ := os.ReadFile(test.path) // fails for the directory
			s, err := sqlitestore.Open(t.Context(), config(t, test.path))
			if err == nil {
				_ = s.Close()
				t.Fatal("Open succeeded")
			}
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.path) {
				t.Errorf("Open = %q, want it to name the file and say %q", err, test.want)
			}
			if after, _ := os.ReadFile(test.path); string(after) != string(before) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestWithoutSharedMemory(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	cfg.FileSystem = func(string) (string, error) { return "nfs", nil }
	s := mustOpen(t, cfg)
	mustReserve(t, s, "m", "r1.a", idempotency.Won)
	mustReserve(t, s, "m", "r2.b", idempotency.InFlight)
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.Prune(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.Path + "-shm"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file in shared memory: %v, want none", err)
	}
}
