package sqlitestore_test

import (
	"bufio"
	"database/sql"
	"fmt"
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
)

func config(t testing.TB, path string) sqlitestore.Config {
	return sqlitestore.Config{Path: path, Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func tempPath(t testing.TB) string { return filepath.Join(t.TempDir(), "state", "gateway.db") }

// mustOpen opens a store and closes it when the test ends.
func mustOpen(t testing.TB, c sqlitestore.Config) *sqlitestore.Store {
	t.Helper()
	s, err := sqlitestore.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// mustOpenSQL opens a connection of its own to the file, as another program would.
func mustOpenSQL(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func mustExec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func mustCount(t testing.TB, db *sql.DB, query string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func mustReserve(t testing.TB, s idempotency.Store, id, token string, want idempotency.State) idempotency.Reservation {
	t.Helper()
	got, err := s.Reserve(t.Context(), idempotencytest.Key(id), request(token))
	if err != nil {
		t.Fatal(err)
	}
	if got.State != want {
		t.Fatalf("Reserve(%s by %s) = state %d, want %d", id, token, got.State, want)
	}
	return got
}

func request(token string) idempotency.Request {
	return idempotency.Request{Token: token, Lease: 900 * time.Second, TTL: 24 * time.Hour}
}

// holdLock is set for a second process that holds the lock of a file for a
// while, see mustHoldLock.
const holdLock = "ONCEGATE_TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	if job := os.Getenv(holdLock); job != "" {
		os.Exit(hold(job))
	}
	if path := os.Getenv(writeOnDemand); path != "" {
		os.Exit(write(path))
	}
	if job := os.Getenv(restricted); job != "" {
		os.Exit(openRestricted(job))
	}
	os.Exit(m.Run())
}

// hold does a job that is made of the duration and the path.
func hold(job string) int {
	text, path, _ := strings.Cut(job, " ")
	d, err := time.ParseDuration(text)
	var db *sql.DB
	if err == nil {
		db, err = sql.Open("sqlite", "file:"+path+"?_txlock=exclusive")
	}
	if err == nil {
		var tx *sql.Tx
		if tx, err = db.Begin(); err == nil {
			fmt.Println("locked")
			time.Sleep(d) // the time for which the file is locked
			err = tx.Commit()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// mustHoldLock returns when another process has the lock of the file, which it
// gives back by itself after d. Readers are kept out too where there is no
// write-ahead log.
func mustHoldLock(t *testing.T, path string, d time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0]) // not of t.Context, which ends before the clean-up waits
	cmd.Env = append(os.Environ(), holdLock+"="+d.String()+" "+path)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "locked" {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	t.Cleanup(func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("the other process: %v", err)
		}
	})
}

func TestStore(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, backend(false))
	idempotencytest.RunLister(t, backend(false))
	idempotencytest.RunSettler(t, backend(false))
	idempotencytest.RunInbox(t, backend(false))
}

func TestStoreAsShadow(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, backend(true))
	idempotencytest.RunShadow(t, backend(true))
	idempotencytest.RunInbox(t, backend(true))
}

func TestInboxWithoutSharedMemory(t *testing.T) {
	t.Parallel()
	idempotencytest.RunInbox(t, backendWith(func(cfg *sqlitestore.Config) {
		cfg.FileSystem = func(string) (string, error) { return "nfs", nil }
	}))
}

// backend makes stores for the suites.
func backend(shadow bool) func(t *testing.T) idempotencytest.Backend {
	return backendWith(func(cfg *sqlitestore.Config) { cfg.Shadow = shadow })
}

func backendWith(change func(cfg *sqlitestore.Config)) func(t *testing.T) idempotencytest.Backend {
	return func(t *testing.T) idempotencytest.Backend {
		c := idempotencytest.NewClock()
		cfg := config(t, tempPath(t))
		cfg.Now = c.Now // without an id, since the suite makes up replicas
		change(&cfg)
		s := mustOpen(t, cfg)
		return idempotencytest.Backend{Store: s, Advance: c.Advance, Reopen: func() idempotency.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return mustOpen(t, cfg)
		}}
	}
}
