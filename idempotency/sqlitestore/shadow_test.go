package sqlitestore_test

import (
	"crypto/sha256"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
)

func mustRecord(t *testing.T, s idempotency.Store, c idempotency.Claim, outcome string) {
	t.Helper()
	if err := s.Record(t.Context(), c, []byte(outcome)); err != nil {
		t.Fatal(err)
	}
}

func wantBacklog(t *testing.T, s *sqlitestore.Store, want int) {
	t.Helper()
	if got, err := s.Backlog(t.Context()); err != nil || got != want {
		t.Errorf("backlog = %d, %v; want %d", got, err, want)
	}
}

// uncarried reads the list in pages of two and returns its tokens, sorted.
func uncarried(t *testing.T, s *sqlitestore.Store, all bool) (tokens []string) {
	t.Helper()
	for req := (idempotency.ListRequest{Limit: 2}); ; {
		page, err := s.Uncarried(t.Context(), all, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			tokens = append(tokens, e.Token)
		}
		if req.After = page.Next; req.After == "" {
			slices.Sort(tokens)
			return tokens
		}
	}
}

func TestOnlyAShadowHasRecordsToCarry(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	configured := mustOpen(t, cfg)
	cfg.Shadow = true
	shadow := mustOpen(t, cfg)
	mustRecord(t, configured, mustReserve(t, configured, "one", "r1.a", idempotency.Won).Claim, "")
	mustRecord(t, shadow, mustReserve(t, shadow, "two", "r2.b", idempotency.Won).Claim, "")
	// A claim of the shadow that the configured store records, and the reverse.
	mustRecord(t, configured, mustReserve(t, shadow, "three", "r1.c", idempotency.Won).Claim, "")
	mustRecord(t, shadow, mustReserve(t, configured, "four", "r2.d", idempotency.Won).Claim, "")
	for _, s := range []*sqlitestore.Store{configured, shadow} {
		if got := uncarried(t, s, false); !slices.Equal(got, []string{"r2.b", "r2.d"}) {
			t.Errorf("uncarried = %q, want what the shadow recorded", got)
		}
	}
	wantBacklog(t, shadow, 2)

	mustReserve(t, configured, "five", "r1.lost", idempotency.Won)
	req := request("r2.e")
	req.Owners = idempotencytest.Owners{Lost: []string{"r1.lost"}}
	if got, err := shadow.Reserve(t.Context(), idempotencytest.Key("five"), req); err != nil || !got.TakenOver {
		t.Fatalf("Reserve of an abandoned claim = %+v, %v", got, err)
	}
	if n := mustCount(t, mustOpenSQL(t, cfg.Path), "SELECT uncarried FROM claims WHERE token = 'r2.e'"); n != 1 {
		t.Errorf("a claim that the shadow took over has uncarried = %d, want 1", n)
	}
}

func TestAShadowBearsItsRecordsUncarriedOnEveryWay(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now, cfg.Shadow, cfg.NoUpkeep = c.Now, true, true
	s := mustOpen(t, cfg)
	late := mustReserve(t, s, "late", "r1.late", idempotency.Won).Claim
	if err := s.Release(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	mustRecord(t, s, late, "on an absent key")
	settled := idempotency.Claim{Key: idempotencytest.Key("settled"), Token: "r1.settled", TTL: time.Hour}
	if slipped, err := s.Settle(t.Context(), settled, nil); slipped || err != nil {
		t.Errorf("Settle = %t, %v", slipped, err)
	}
	if got, want := uncarried(t, s, false), []string{"r1.late", "r1.settled"}; !slices.Equal(got, want) {
		t.Errorf("uncarried = %q, want %q", got, want)
	}
	c.Advance(2 * time.Hour) // longer than one of the windows; nothing is pruned
	wantBacklog(t, s, 1)
	if got := uncarried(t, s, false); !slices.Equal(got, []string{"r1.late"}) {
		t.Errorf("uncarried = %q, want the one whose window is not over", got)
	}
}

// A restarted process finds claims of the outage whose owner is gone: the
// better store decides about their messages. Others stay.
func TestAShadowDropsTheUnfinishedClaimsOfDeadProcesses(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now, cfg.NoUpkeep = c.Now, true
	configured := mustOpen(t, cfg)
	cfg.Shadow, cfg.Replica = true, "live"
	live := mustOpen(t, cfg)
	mustReserve(t, live, "over a shadow's", "dead.over", idempotency.Won)
	c.Advance(time.Hour) // past its lease
	mustReserve(t, configured, "over a shadow's", "dead.configured", idempotency.Won)
	mustReserve(t, configured, "configured", "dead.configured", idempotency.Won)
	mustReserve(t, live, "live", "live.a", idempotency.Won)
	mustReserve(t, live, "dead", "dead.a", idempotency.Won)
	mustReserve(t, live, "dead too", "dead.b", idempotency.Won)
	mustReserve(t, live, "odd", "../DEAD.c", idempotency.Won)
	mustRecord(t, live, mustReserve(t, live, "recorded", "dead.d", idempotency.Won).Claim, "answer")

	cfg.Replica = ""
	mustOpen(t, cfg) // knows nobody to be dead
	mustReserve(t, live, "dead", "live.b", idempotency.InFlight)
	cfg.Replica = "next"
	next := mustOpen(t, cfg)
	for id, want := range map[string]idempotency.State{
		"configured": idempotency.InFlight, "over a shadow's": idempotency.InFlight, "live": idempotency.InFlight, "odd": idempotency.InFlight,
		"dead": idempotency.Won, "dead too": idempotency.Won, "recorded": idempotency.Recorded,
	} {
		mustReserve(t, next, id, "next."+id, want)
	}
}

func TestMigration(t *testing.T) {
	t.Parallel()
	for version, name := range map[int]string{1: "version1.sql", 2: "version2.sql"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testMigration(t, version, filepath.Join("testdata", name))
		})
	}
}

func testMigration(t *testing.T, version int, tables string) {
	old, err := os.ReadFile(tables)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gateway.db")
	db := mustOpenSQL(t, path)
	mustExec(t, db, "PRAGMA journal_mode = WAL")
	mustExec(t, db, fmt.Sprintf("%s; PRAGMA user_version = %d", old, version))
	claim := idempotency.Claim{Key: idempotencytest.Key("m"), Token: "r1.a", Lease: time.Hour, TTL: time.Hour, Confirmed: time.Now()}
	id := sha256.Sum256([]byte(claim.Key))
	mustExec(t, db, `
		INSERT INTO claims (id, key, state, token, fingerprint, deadline) VALUES (?, ?, 0, 'r1.a', zeroblob(16), ?)`,
		id[:16], string(claim.Key), time.Now().Add(time.Hour).UnixMilli())
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	// Commands look at it as it is.
	before := files(t, filepath.Dir(path))
	if err := look(t, path); err != nil {
		t.Errorf("looking at a file of version %d: %v", version, err)
	}
	wantSame(t, before, files(t, filepath.Dir(path)))

	cfg := config(t, path)
	cfg.Shadow = true
	s := mustOpen(t, cfg)
	mustReserve(t, s, "m", "r2.b", idempotency.InFlight)
	if err := s.Renew(t.Context(), claim); err != nil {
		t.Error(err)
	}
	migrated, made := mustOpenSQL(t, path), mustOpenSQL(t, mustOpenPath(t))
	if n := mustCount(t, migrated, "SELECT count(*) FROM claims WHERE uncarried = 0 AND number IS NULL"); n != 1 {
		t.Errorf("%d claims of version %d are neither uncarried nor have a message, want the one", n, version)
	}
	for _, query := range []string{
		"SELECT group_concat(name || type || \"notnull\") FROM pragma_table_info('claims')",
		"SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_schema ORDER BY name)",
		"PRAGMA user_version",
	} {
		if got, want := mustText(t, migrated, query), mustText(t, made, query); got != want {
			t.Errorf("%s = %q after the migration, %q in a new file", query, got, want)
		}
	}
	mustRecord(t, s, claim, "answer")
	wantBacklog(t, s, 1)
	mustAccept(t, s, "n", "s")
	if got := mustTake(t, s, "r2.c", nil); len(got) != 1 {
		t.Errorf("taken %+v, want the message", got)
	}
}

// mustOpenPath returns the path of a file with the newest tables.
func mustOpenPath(t *testing.T) string {
	t.Helper()
	path := tempPath(t)
	mustOpen(t, config(t, path))
	return path
}

func mustText(t *testing.T, db *sql.DB, query string) (text string) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return text
}
