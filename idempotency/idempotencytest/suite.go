// Package idempotencytest is the conformance suite of idempotency.Store: one
// set of promises that every backend keeps.
package idempotencytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// Backend is one store under test and its levers.
type Backend struct {
	Store idempotency.Store

	// Advance makes d pass for the store: a fake clock, a server's own
	// fast-forward, or a real wait.
	Advance func(d time.Duration)

	// Reopen closes the store and opens it again on the same data, as a
	// restarted process does. Nil where nothing survives a restart.
	Reopen func() idempotency.Store

	// OnePage is set for a server that answers with a whole list at once,
	// however little it is asked for.
	OnePage bool
}

// The durations of the suite: long enough for a busy machine, short enough
// for a backend whose Advance really waits.
const (
	lease = 400 * time.Millisecond
	ttl   = 1200 * time.Millisecond
)

// Run checks a backend. newBackend is called once per subtest and returns an
// empty store; it registers its own clean-up.
func Run(t *testing.T, newBackend func(t *testing.T) Backend) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Backend)
	}{
		{"first reservation wins and a second one meets it in flight", testInFlight},
		{"record is met by later reservations with its outcome until the window ends", testRecorded},
		{"release frees the key for the next delivery", testRelease},
		{"expired lease is reclaimed and the stale holder changes nothing", testReclaim},
		{"renewed lease outlives its first deadline", testRenew},
		{"same token wins again: a lost answer is no duplicate", testOwnToken},
		{"record renew and release repeated by the same token succeed", testReplay},
		{"recorded claim is never released or taken", testRecordedStays},
		{"record on an absent key writes what is left of the window", testRecordAbsent},
		{"renew of an absent key says not owner", testRenewAbsent},
		{"one winner of 64 concurrent reservations", testOneWinner},
		{"many keys at once keep apart", testManyKeys},
		{"fingerprint tells a redelivery from other content", testFingerprint},
		{"outcomes are kept byte for byte", testOutcomeBytes},
		{"awkward keys stay distinct", testAwkwardKeys},
		{"done context claims nothing", testDoneContext},
		{"claims and records survive a restart", testReopen},
		{"ping writes and leaves no claim", testPing},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, newBackend(t))
		})
	}
}

// Key returns an encoded key for tests.
func Key(id string) idempotency.Key {
	return idempotency.EncodeKey(message.Key{Platform: "test", Channel: "room", ID: id})
}

func request(token string) idempotency.Request {
	return idempotency.Request{Token: token, Lease: lease, TTL: ttl}
}

func mustReserve(t *testing.T, s idempotency.Store, id string, req idempotency.Request, want idempotency.State) idempotency.Reservation {
	t.Helper()
	got, err := s.Reserve(t.Context(), Key(id), req)
	if err != nil {
		t.Fatalf("Reserve(%s by %s) = %v", id, req.Token, err)
	}
	if got.State != want {
		t.Fatalf("Reserve(%s by %s) = state %d, want %d", id, req.Token, got.State, want)
	}
	return got
}

func mustWin(t *testing.T, s idempotency.Store, id, token string) idempotency.Claim {
	t.Helper()
	return mustReserve(t, s, id, request(token), idempotency.Won).Claim
}

func mustRecord(t *testing.T, s idempotency.Store, c idempotency.Claim, outcome string) {
	t.Helper()
	if err := s.Record(t.Context(), c, []byte(outcome)); err != nil {
		t.Fatalf("Record(%s by %s) = %v", c.Key, c.Token, err)
	}
}

func wantNotOwner(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, idempotency.ErrNotOwner) {
		t.Fatalf("%s = %v, want ErrNotOwner", what, err)
	}
}

func testInFlight(t *testing.T, b Backend) {
	c := mustWin(t, b.Store, "m", "r1.a")
	if c.Token != "r1.a" || c.Key != Key("m") || c.Lease != lease || c.TTL != ttl || c.Backend == "" || c.Confirmed.IsZero() {
		t.Errorf("claim = %+v, want the request's values, a backend and a confirmation time", c)
	}
	dup := mustReserve(t, b.Store, "m", request("r2.b"), idempotency.InFlight)
	if dup.RetryAfter <= 0 || dup.RetryAfter > lease {
		t.Errorf("RetryAfter = %s, want within the lease of %s", dup.RetryAfter, lease)
	}
	mustWin(t, b.Store, "other", "r2.c")
}

func testRecorded(t *testing.T, b Backend) {
	mustRecord(t, b.Store, mustWin(t, b.Store, "m", "r1.a"), "answer")
	dup := mustReserve(t, b.Store, "m", request("r2.b"), idempotency.Recorded)
	if string(dup.Outcome) != "answer" {
		t.Errorf("outcome = %q, want %q", dup.Outcome, "answer")
	}
	b.Advance(lease + 100*time.Millisecond)
	mustReserve(t, b.Store, "m", request("r2.c"), idempotency.Recorded)
	b.Advance(ttl)
	mustWin(t, b.Store, "m", "r2.d")
}

func testRelease(t *testing.T, b Backend) {
	c := mustWin(t, b.Store, "m", "r1.a")
	if err := b.Store.Release(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	mustWin(t, b.Store, "m", "r2.b")
	wantNotOwner(t, "late Release", b.Store.Release(t.Context(), c))
	mustReserve(t, b.Store, "m", request("r3.c"), idempotency.InFlight)
}

func testReclaim(t *testing.T, b Backend) {
	stale := mustWin(t, b.Store, "m", "r1.a")
	b.Advance(lease + 100*time.Millisecond)
	fresh := mustWin(t, b.Store, "m", "r2.b")
	wantNotOwner(t, "stale Renew", b.Store.Renew(t.Context(), stale))
	wantNotOwner(t, "stale Record", b.Store.Record(t.Context(), stale, []byte("stale")))
	wantNotOwner(t, "stale Release", b.Store.Release(t.Context(), stale))
	mustReserve(t, b.Store, "m", request("r3.c"), idempotency.InFlight)
	mustRecord(t, b.Store, fresh, "fresh")
	wantNotOwner(t, "stale Record over a record", b.Store.Record(t.Context(), stale, []byte("stale")))
	if got := mustReserve(t, b.Store, "m", request("r3.d"), idempotency.Recorded); string(got.Outcome) != "fresh" {
		t.Errorf("outcome = %q, want the fresh owner's", got.Outcome)
	}
}

func testRenew(t *testing.T, b Backend) {
	c := mustWin(t, b.Store, "m", "r1.a")
	for range 3 {
		b.Advance(lease / 2)
		if err := b.Store.Renew(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	mustReserve(t, b.Store, "m", request("r2.b"), idempotency.InFlight)
	mustRecord(t, b.Store, c, "")
}

func testOwnToken(t *testing.T, b Backend) {
	mustWin(t, b.Store, "m", "r1.a")
	c := mustWin(t, b.Store, "m", "r1.a")
	mustReserve(t, b.Store, "m", request("r1.b"), idempotency.InFlight)
	mustRecord(t, b.Store, c, "done")
}

func testReplay(t *testing.T, b Backend) {
	c := mustWin(t, b.Store, "m", "r1.a")
	for range 2 {
		if err := b.Store.Renew(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	mustRecord(t, b.Store, c, "done")
	mustRecord(t, b.Store, c, "changed")
	if got := mustReserve(t, b.Store, "m", request("r2.b"), idempotency.Recorded); string(got.Outcome) != "done" {
		t.Errorf("outcome = %q after a repeated Record, want the first", got.Outcome)
	}

	c = mustWin(t, b.Store, "n", "r1.b")
	for range 2 {
		if err := b.Store.Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
}

func testRecordedStays(t *testing.T, b Backend) {
	c := mustWin(t, b.Store, "m", "r1.a")
	mustRecord(t, b.Store, c, "done")
	wantNotOwner(t, "Release of a record", b.Store.Release(t.Context(), c))
	wantNotOwner(t, "Renew of a record", b.Store.Renew(t.Context(), c))
	foreign := c
	foreign.Token = "r2.b"
	wantNotOwner(t, "foreign Record", b.Store.Record(t.Context(), foreign, []byte("stolen")))
	if got := mustReserve(t, b.Store, "m", request("r3.c"), idempotency.Recorded); string(got.Outcome) != "done" {
		t.Errorf("outcome = %q, want the first", got.Outcome)
	}
}

func testRecordAbsent(t *testing.T, b Backend) {
	c := mustWin(t, b.Store, "m", "r1.a")
	if err := b.Store.Release(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	late := c
	late.Confirmed = time.Now().Add(-2 * ttl)
	late.TTL = ttl
	wantNotOwner(t, "Record after its window", b.Store.Record(t.Context(), late, []byte("late")))
	mustRecord(t, b.Store, mustWin(t, b.Store, "m", "r1.b"), "still free")

	req := request("r1.c")
	req.Fingerprint = message.Fingerprint{1}
	c = mustReserve(t, b.Store, "n", req, idempotency.Won).Claim
	b.Advance(lease + 100*time.Millisecond)
	mustRecord(t, b.Store, c, "in time")
	other := request("r2.d")
	other.Fingerprint = message.Fingerprint{2}
	if got := mustReserve(t, b.Store, "n", other, idempotency.Recorded); got.FingerprintMatch {
		t.Error("the fingerprint was lost with the claim")
	}
	b.Advance(ttl - lease)
	mustWin(t, b.Store, "n", "r2.e")
}

func testRenewAbsent(t *testing.T, b Backend) {
	c := mustWin(t, b.Store, "m", "r1.a")
	b.Advance(lease + 100*time.Millisecond)
	wantNotOwner(t, "Renew", b.Store.Renew(t.Context(), c))
	mustWin(t, b.Store, "m", "r2.b")
}

func testOneWinner(t *testing.T, b Backend) {
	const rounds, racers = 5, 64
	for round := range rounds {
		id := fmt.Sprintf("m%d", round)
		winners := race(racers, func(i int) bool {
			r, err := b.Store.Reserve(t.Context(), Key(id), request(fmt.Sprintf("r%d.%d", i, round)))
			if err != nil {
				t.Errorf("Reserve = %v", err)
			}
			return r.State == idempotency.Won
		})
		if winners != 1 {
			t.Fatalf("round %d: %d winners of %d, want 1", round, winners, racers)
		}
	}
}

func testManyKeys(t *testing.T, b Backend) {
	const n = 500
	done := race(n, func(i int) bool {
		id := fmt.Sprintf("m%d", i)
		r, err := b.Store.Reserve(t.Context(), Key(id), request("r1."+id))
		if err != nil || r.State != idempotency.Won || r.Claim.Key != Key(id) {
			t.Errorf("Reserve(%s) = %+v, %v", id, r, err)
			return false
		}
		if i%2 == 0 {
			err = b.Store.Record(t.Context(), r.Claim, []byte(id))
		} else {
			err = b.Store.Release(t.Context(), r.Claim)
		}
		if err != nil {
			t.Errorf("settle %s: %v", id, err)
		}
		return err == nil
	})
	if done != n {
		t.Fatalf("%d of %d keys went through", done, n)
	}
	for _, i := range []int{0, 1, n - 2, n - 1} {
		id := fmt.Sprintf("m%d", i)
		if i%2 == 1 {
			mustWin(t, b.Store, id, "r2."+id)
		} else if got := mustReserve(t, b.Store, id, request("r2.x"), idempotency.Recorded); string(got.Outcome) != id {
			t.Errorf("outcome of %s = %q", id, got.Outcome)
		}
	}
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func testDoneContext(t *testing.T, b Backend) {
	ctx := cancelled(t)
	if _, err := b.Store.Reserve(ctx, Key("m"), request("r1.a")); !errors.Is(err, context.Canceled) {
		t.Fatalf("Reserve on a done context = %v, want context.Canceled", err)
	}
	c := mustWin(t, b.Store, "m", "r2.b")
	for what, err := range map[string]error{
		"Renew": b.Store.Renew(ctx, c), "Record": b.Store.Record(ctx, c, nil), "Release": b.Store.Release(ctx, c),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s on a done context = %v, want context.Canceled", what, err)
		}
	}
	mustReserve(t, b.Store, "m", request("r3.c"), idempotency.InFlight)
}

func testReopen(t *testing.T, b Backend) {
	if b.Reopen == nil {
		t.Skip("nothing survives a restart of this backend")
	}
	held := mustWin(t, b.Store, "held", "r1.a")
	mustRecord(t, b.Store, mustWin(t, b.Store, "done", "r1.b"), "answer")
	s := b.Reopen()
	if got := mustReserve(t, s, "done", request("r2.c"), idempotency.Recorded); string(got.Outcome) != "answer" {
		t.Errorf("outcome after reopening = %q", got.Outcome)
	}
	mustReserve(t, s, "held", request("r2.d"), idempotency.InFlight)
	mustRecord(t, s, held, "late but owned")
}

func testPing(t *testing.T, b Backend) {
	for range 3 {
		if err := b.Store.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mustWin(t, b.Store, "m", "r1.a")
}

// race runs try(0..n-1) at once and counts the calls that returned true.
func race(n int, try func(int) bool) int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := make(chan struct{})
	count := 0
	for i := range n {
		wg.Go(func() {
			<-start
			if try(i) {
				mu.Lock()
				count++
				mu.Unlock()
			}
		})
	}
	close(start)
	wg.Wait()
	return count
}
