package sqlitestore_test

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

func TestB14_two_stores_on_one_file_give_one_winner(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	stores := []idempotency.Store{mustOpen(t, config(t, path)), mustOpen(t, config(t, path))}
	const rounds, racers = 100, 50
	for round := range rounds {
		key := idempotencytest.Key(fmt.Sprint(round))
		var winners atomic.Int64
		var wg sync.WaitGroup
		for i := range racers {
			wg.Go(func() {
				got, err := stores[i%2].Reserve(t.Context(), key, request(fmt.Sprintf("r%d.x", i)))
				if err != nil {
					t.Error(err)
				}
				if got.State == idempotency.Won {
					winners.Add(1)
				}
			})
		}
		wg.Wait()
		if got := winners.Load(); got != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, got)
		}
	}
}

func TestB15_a_finished_run_is_never_free_before_its_record_is_seen(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	owner, other := mustOpen(t, config(t, path)), mustOpen(t, config(t, path))
	for round := range 20 {
		id := fmt.Sprint(round)
		claim := mustReserve(t, owner, id, "r1.a", idempotency.Won).Claim
		mustReserve(t, other, id, "r2.pause", idempotency.InFlight)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := owner.Record(t.Context(), claim, []byte("answer")); err != nil {
				t.Error(err)
			}
		})
		for try := 0; ; try++ {
			got, err := other.Reserve(t.Context(), claim.Key, request(fmt.Sprintf("r2.%d", try)))
			if err != nil || got.State == idempotency.Won {
				t.Fatalf("Reserve beside Record = state %d, %v; want in flight, then recorded", got.State, err)
			}
			if got.State == idempotency.Recorded {
				break
			}
		}
		wg.Wait()
	}
}

func TestB26_expiry_is_compared_at_lookup_with_pruning_off(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now, cfg.NoUpkeep = c.Now, true
	s := mustOpen(t, cfg)
	claim := mustReserve(t, s, "m", "r1.a", idempotency.Won).Claim
	claim.TTL = 2 * time.Second
	if err := s.Record(t.Context(), claim, nil); err != nil {
		t.Fatal(err)
	}
	mustReserve(t, s, "m", "r2.b", idempotency.Recorded)
	c.Advance(3 * time.Second)
	if n := mustCount(t, mustOpenSQL(t, cfg.Path), "SELECT count(*) FROM claims"); n != 1 {
		t.Fatalf("%d rows, want the expired one still there", n)
	}
	mustReserve(t, s, "m", "r2.c", idempotency.Won)
}

func TestB28_a_claim_in_flight_ends_with_its_lease_not_with_the_record_window(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now = c.Now
	s := mustOpen(t, cfg)
	mustReserve(t, s, "m", "killed.a", idempotency.Won)
	left := mustCount(t, mustOpenSQL(t, cfg.Path), "SELECT deadline FROM claims") - c.Now().UnixMilli()
	if want := (900 * time.Second).Milliseconds(); left != want {
		t.Errorf("claim ends in %d ms, want the lease of %d ms", left, want)
	}
	c.Advance(900*time.Second - time.Millisecond)
	mustReserve(t, s, "m", "r2.b", idempotency.InFlight)
	c.Advance(time.Millisecond)
	mustReserve(t, s, "m", "r2.c", idempotency.Won)
}

func TestB75_claims_wait_for_a_lock_that_another_process_holds(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	s := mustOpen(t, cfg)
	mustHoldLock(t, cfg.Path, 2*time.Second)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			got, err := s.Reserve(t.Context(), idempotencytest.Key(fmt.Sprint(i)), request("r1.a"))
			if err != nil || got.State != idempotency.Won {
				t.Errorf("Reserve under a foreign lock = state %d, %v; want a claim", got.State, err)
			}
		})
	}
	wg.Wait()
}

func TestB80_pruning_empties_a_full_table_while_claims_pass(t *testing.T) {
	t.Parallel()
	cfg := config(t, tempPath(t))
	cfg.NoUpkeep = true // the test prunes
	s := mustOpen(t, cfg)
	db := mustOpenSQL(t, cfg.Path)
	// Rows that expire in the order of their ids: random ones would write
	// thirty times as much to the disk and show no more.
	mustExec(t, db, `
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO claims (id, key, state, token, fingerprint, deadline, outcome, uncarried) SELECT unhex(printf('%032x', i)), 'test::room:' || i, 1, 'r1.a', zeroblob(16), i, NULL, 0 FROM n`, expired)
	live := mustReserve(t, s, "live", "r1.a", idempotency.Won).Claim

	done := make(chan error, 1)
	go func() {
		n, err := s.Prune(t.Context())
		if err == nil && n != expired {
			err = fmt.Errorf("pruned %d rows, want %d", n, expired)
		}
		done <- err
	}()
	claims := 0
	for pruning := true; pruning; claims++ {
		mustReserve(t, s, fmt.Sprint(claims), "r2.b", idempotency.Won)
		select {
		case err := <-done:
			if pruning = false; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	if claims < 100 {
		t.Errorf("%d claims while %d rows were pruned, want them to pass between the batches", claims, expired)
	}
	if n := mustCount(t, db, "SELECT count(*) FROM claims WHERE key <> ? AND state = 1", string(live.Key)); n != 0 {
		t.Errorf("%d expired rows are left", n)
	}
	mustReserve(t, s, "live", "r3.c", idempotency.InFlight)
	mustReserve(t, s, "after", "r3.d", idempotency.Won) // a write lets the log start anew
	if log, err := os.Stat(cfg.Path + "-wal"); err != nil || log.Size() >= 10<<20 {
		t.Errorf("the log has %d bytes, %v; want less than 10 MB", log.Size(), err)
	}
}
