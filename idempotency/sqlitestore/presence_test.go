package sqlitestore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
)

// replica opens a store of a process with an id.
func replica(t *testing.T, path, id string) *sqlitestore.Store {
	t.Helper()
	cfg := config(t, path)
	cfg.Replica = id
	return mustOpen(t, cfg)
}

// mustTry reserves with leave to take the claims of the dead over.
func mustTry(t *testing.T, s *sqlitestore.Store, id, token string, want idempotency.State) idempotency.Reservation {
	t.Helper()
	req := request(token)
	req.Owners = idempotencytest.Owners{TakeOver: true}
	got, err := s.Reserve(t.Context(), idempotencytest.Key(id), req)
	if err != nil || got.State != want {
		t.Fatalf("Reserve(%s by %s) = state %d, %v; want %d", id, token, got.State, err, want)
	}
	return got
}

func mustBeat(t *testing.T, s *sqlitestore.Store, own string) (ids []string) {
	t.Helper()
	all, err := s.Beat(t.Context(), health.Replica{ID: own, Version: "v-" + own}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

func wantReplicas(t *testing.T, s *sqlitestore.Store, own string, want ...string) {
	t.Helper()
	if got := mustBeat(t, s, own); !slices.Equal(got, want) {
		t.Errorf("replicas that live, says %s = %q, want %q", own, got, want)
	}
}

func TestACrashedOwnerIsKnownAtOnce(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	claim, kill := writer(t, path)
	claim("m")
	s := replica(t, path, "live")
	mustTry(t, s, "m", "live.a", idempotency.InFlight)
	wantReplicas(t, s, "live", "live", "other")
	kill()
	mustReserve(t, s, "m", "live.b", idempotency.InFlight) // without leave nobody takes it over
	if got := mustTry(t, s, "m", "live.c", idempotency.Won); !got.TakenOver || got.Claim.Token != "live.c" {
		t.Errorf("after the crash = %+v, want the claim, taken over", got)
	}
	wantReplicas(t, s, "live", "live")
	if names := listDir(t, path+"-replicas"); !slices.Equal(names, []string{"live"}) {
		t.Errorf("files of replicas = %q, want those of the living", names)
	}
}

func listDir(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOnlyTheDeadAreTakenOver(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	one, two, nobody := replica(t, path, "one"), replica(t, path, "two"), mustOpen(t, config(t, path))
	owned := mustReserve(t, one, "of one", "one.a", idempotency.Won).Claim
	mustReserve(t, one, "of nobody", "gone.a", idempotency.Won)
	mustReserve(t, one, "of a path", "../two.a", idempotency.Won)
	mustReserve(t, one, "without a replica", "TOKEN", idempotency.Won)

	mustTry(t, two, "of one", "two.b", idempotency.InFlight)
	mustTry(t, two, "of a path", "two.b", idempotency.InFlight)
	mustTry(t, two, "without a replica", "two.b", idempotency.InFlight)
	mustTry(t, nobody, "of nobody", "cli.b", idempotency.InFlight) // it shows nothing, and so knows nothing
	mustTry(t, two, "of nobody", "two.b", idempotency.Won)

	// Its own file tells a replica nothing about itself.
	if err := os.RemoveAll(path + "-replicas"); err != nil {
		t.Fatal(err)
	}
	mustTry(t, one, "of one", "one.c", idempotency.InFlight)
	wantReplicas(t, one, "one", "one") // and it shows itself anew
	mustTry(t, two, "of one", "two.d", idempotency.InFlight)
	wantReplicas(t, two, "two", "one", "two")

	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	mustTry(t, two, "of one", "two.e", idempotency.Won)
	if err := two.Record(t.Context(), owned, nil); !errors.Is(err, idempotency.ErrNotOwner) {
		t.Errorf("Record by the previous owner = %v, want that it has lost the claim", err)
	}
	wantReplicas(t, replica(t, path, "one"), "one", "one", "two") // opened again
}

func TestNobodyIsDeadWhereLocksCannotBeTrusted(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	cfg.FileSystem = func(string) (string, error) { return "nfs", nil }
	cfg.Replica, cfg.Shadow = "one", true
	s := mustOpen(t, cfg)
	mustReserve(t, s, "m", "gone.a", idempotency.Won)
	mustTry(t, s, "m", "one.b", idempotency.InFlight)
	cfg.Replica = "two"
	two := mustOpen(t, cfg)
	mustTry(t, two, "m", "two.c", idempotency.InFlight)

	// On the list is who has written lately, whatever his lock looks like here.
	for name, age := range map[string]time.Duration{"lately": 0, "long-ago": time.Hour} {
		path := filepath.Join(cfg.Path+"-replicas", name)
		if err := os.WriteFile(path, []byte(`{"replica":"`+name+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	wantReplicas(t, two, "two", "lately", "one", "two")
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	one, two := replica(t, path, "one"), replica(t, path, "two")
	wantReplicas(t, two, "two", "one", "two") // one has said nothing yet
	long := health.Replica{ID: "one", Version: strings.Repeat("long ", 1000), Unsettled: 7}
	short := health.Replica{ID: "one", Version: "v1", Unsettled: 3, Backends: map[string]string{"idempotency": "sqlite"}}
	for _, said := range []health.Replica{long, short} {
		if _, err := one.Beat(t.Context(), said, time.Minute); err != nil {
			t.Fatal(err)
		}
		all, err := two.Beat(t.Context(), health.Replica{ID: "two"}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(r health.Replica) bool { return r.ID == "one" })
		if i < 0 || all[i].Version != said.Version || all[i].Unsettled != said.Unsettled {
			t.Errorf("the other sees %+v, want %+v", all, said)
		}
	}
	for name, text := range map[string]string{"torn": `{"replica":"one","vers`, "of another": `{"replica":"two"}`} {
		if err := os.WriteFile(filepath.Join(path+"-replicas", "one"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := mustBeat(t, two, "two"); !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("%s: replicas = %q, want both", name, got)
		}
	}
	if _, err := one.Beat(t.Context(), health.Replica{ID: "one", Version: strings.Repeat("x", 1<<20)}, time.Minute); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(path+"-replicas", "one")); err != nil || info.Size() > 64<<10 {
		t.Errorf("a heartbeat takes %v, %v; want it bounded", info.Size(), err)
	}
	wantReplicas(t, two, "two", "one", "two")

	if err := one.Leave(t.Context(), "two"); err == nil {
		t.Error("a replica took another one's heartbeat back")
	}
	if err := one.Leave(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	wantReplicas(t, two, "two", "two")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := two.Beat(done, health.Replica{ID: "two"}, time.Minute); err == nil {
		t.Error("Beat on a done context succeeded")
	}
	if _, err := mustOpen(t, config(t, path)).Beat(t.Context(), health.Replica{}, time.Minute); err == nil {
		t.Error("a store without a replica showed one")
	}
}

func TestReplicaIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a.b", "..", "../x", "A", "a b", "a/b", strings.Repeat("a", 200)} {
		cfg := config(t, tempPath(t))
		cfg.Replica = id
		if s, err := sqlitestore.Open(t.Context(), cfg); err == nil {
			_ = s.Close()
			t.Errorf("replica %q was opened", id)
		}
	}
	path := tempPath(t)
	replica(t, path, idempotency.NewReplicaID())
	replica(t, path, "one")
	synctest.Test(t, func(t *testing.T) { // which does not really wait
		cfg := config(t, path)
		cfg.Replica = "one"
		if s, err := sqlitestore.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "close that one first") {
			_ = s.Close()
			t.Errorf("a second store of one replica: %v, want that the first must be closed", err)
		}
	})
}

// What belongs to a file stands beside the file, whatever way leads there.
func TestReplicasMeetBehindASymbolicLink(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	one := replica(t, path, "one")
	link := filepath.Join(t.TempDir(), "gateway.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	two := replica(t, link, "two")
	mustReserve(t, one, "m", "one.a", idempotency.Won)
	mustTry(t, two, "m", "two.b", idempotency.InFlight)
	wantReplicas(t, one, "one", "one", "two")
	if err := two.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
