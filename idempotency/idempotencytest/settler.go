package idempotencytest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// RunSettler checks what a Failover wants of a store beside Run: that it lets
// claims be taken over and takes records back. newBackend is called as by Run.
func RunSettler(t *testing.T, newBackend func(t *testing.T) Backend) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Backend, idempotency.Settler)
	}{
		{"claim that no run holds is taken over at once", testAbandoned},
		{"abandoned claim goes to one of 16", testAbandonedRace},
		{"settle writes an absent record for its window", testSettleAbsent},
		{"settle replaces a foreign claim, whose owner then changes nothing", testSettleOverClaim},
		{"settle finishes an own claim, and repeated changes nothing", testSettleOwn},
		{"settle leaves a foreign record", testSettleOverRecord},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			c.test(t, b, b.Store.(idempotency.Settler))
		})
	}
}

// RunShadow checks a backend whose store serves for a better one.
func RunShadow(t *testing.T, newBackend func(t *testing.T) Backend) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Backend, idempotency.Shadow)
	}{
		{"records are uncarried until they are carried", testCarried},
		{"what was carried by another token stays", testCarriedByAnother},
		{"uncarried records come in pages and without their claims", testUncarriedPages},
		{"uncarried records survive a restart", testUncarriedReopen},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			c.test(t, b, b.Store.(idempotency.Shadow))
		})
	}
}

// ran is the claim of a message that ran elsewhere.
func ran(id, token string) idempotency.Claim {
	return idempotency.Claim{
		Key: Key(id), Token: token, Fingerprint: message.Fingerprint{1},
		Lease: lease, TTL: ttl, Confirmed: time.Now(), Backend: "elsewhere",
	}
}

func mustSettle(t *testing.T, s idempotency.Settler, c idempotency.Claim, outcome string, wantSlipped bool) {
	t.Helper()
	slipped, err := s.Settle(t.Context(), c, []byte(outcome))
	if err != nil || slipped != wantSlipped {
		t.Fatalf("Settle(%s by %s) = slipped %t, %v; want %t", c.Key, c.Token, slipped, err, wantSlipped)
	}
}

func testSettleAbsent(t *testing.T, b Backend, s idempotency.Settler) {
	mustSettle(t, s, ran("m", "r1.a"), "answer", false)
	other := request("r2.b")
	other.Fingerprint = message.Fingerprint{2}
	got := mustReserve(t, b.Store, "m", other, idempotency.Recorded)
	if string(got.Outcome) != "answer" || got.FingerprintMatch {
		t.Errorf("met %q, fingerprint match %t; want the outcome and the fingerprint that were settled", got.Outcome, got.FingerprintMatch)
	}
	b.Advance(ttl + 100*time.Millisecond)
	mustWin(t, b.Store, "m", "r2.c")
}

func testSettleOverClaim(t *testing.T, b Backend, s idempotency.Settler) {
	foreign := mustWin(t, b.Store, "m", "r2.b")
	mustSettle(t, s, ran("m", "r1.a"), "first", true)
	wantNotOwner(t, "Renew of the replaced claim", b.Store.Renew(t.Context(), foreign))
	wantNotOwner(t, "Record of the replaced claim", b.Store.Record(t.Context(), foreign, []byte("second")))
	wantNotOwner(t, "Release of the replaced claim", b.Store.Release(t.Context(), foreign))
	if got := mustReserve(t, b.Store, "m", request("r3.c"), idempotency.Recorded); string(got.Outcome) != "first" {
		t.Errorf("outcome = %q, want that of the run that was settled", got.Outcome)
	}
}

func testSettleOwn(t *testing.T, b Backend, s idempotency.Settler) {
	mustWin(t, b.Store, "m", "r1.a")
	mustSettle(t, s, ran("m", "r1.a"), "answer", false)
	mustSettle(t, s, ran("m", "r1.a"), "changed", false)
	if got := mustReserve(t, b.Store, "m", request("r2.b"), idempotency.Recorded); string(got.Outcome) != "answer" {
		t.Errorf("outcome = %q, want the first", got.Outcome)
	}
}

func testSettleOverRecord(t *testing.T, b Backend, s idempotency.Settler) {
	mustRecord(t, b.Store, mustWin(t, b.Store, "m", "r2.b"), "theirs")
	mustSettle(t, s, ran("m", "r1.a"), "ours", true)
	if got := mustReserve(t, b.Store, "m", request("r3.c"), idempotency.Recorded); string(got.Outcome) != "theirs" {
		t.Errorf("outcome = %q, want the record that was there", got.Outcome)
	}
}

func uncarried(t *testing.T, s idempotency.Shadow, all bool) map[idempotency.Key]idempotency.Entry {
	t.Helper()
	found := make(map[idempotency.Key]idempotency.Entry)
	for after := ""; ; {
		page, err := s.Uncarried(t.Context(), all, idempotency.ListRequest{After: after, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			found[e.Key] = e
		}
		if after = page.Next; after == "" {
			return found
		}
	}
}

func wantBacklog(t *testing.T, s idempotency.Shadow, want int) {
	t.Helper()
	if got, err := s.Backlog(t.Context()); got != want || err != nil {
		t.Errorf("Backlog = %d, %v; want %d", got, err, want)
	}
}

func testCarried(t *testing.T, b Backend, s idempotency.Shadow) {
	req := request("r1.a")
	req.Fingerprint = message.Fingerprint{7}
	mustRecord(t, s, mustReserve(t, s, "m", req, idempotency.Won).Claim, "answer")
	wantBacklog(t, s, 1)
	e, ok := uncarried(t, s, false)[Key("m")]
	if !ok || e.Token != "r1.a" || string(e.Outcome) != "answer" || e.Fingerprint != req.Fingerprint || e.Left <= 0 || e.Left > ttl {
		t.Errorf("Uncarried has %+v, %t; want the record", e, ok)
	}
	for range 2 {
		if err := s.Carried(t.Context(), Key("m"), "r1.a"); err != nil {
			t.Fatal(err)
		}
	}
	wantBacklog(t, s, 0)
	if left := uncarried(t, s, false); len(left) != 0 {
		t.Errorf("uncarried after Carried: %v", left)
	}
	if all := uncarried(t, s, true); len(all) != 1 {
		t.Errorf("all records: %v, want the one", all)
	}
	mustReserve(t, s, "m", request("r2.b"), idempotency.Recorded)
	b.Advance(ttl + 100*time.Millisecond)
	if all := uncarried(t, s, true); len(all) != 0 {
		t.Errorf("after the window: %v", all)
	}
}

func testCarriedByAnother(t *testing.T, _ Backend, s idempotency.Shadow) {
	mustRecord(t, s, mustWin(t, s, "m", "r1.a"), "answer")
	if err := s.Carried(t.Context(), Key("m"), "r2.b"); err != nil {
		t.Fatal(err)
	}
	if err := s.Carried(t.Context(), Key("absent"), "r1.a"); err != nil {
		t.Fatal(err)
	}
	wantBacklog(t, s, 1)
}

func testUncarriedPages(t *testing.T, _ Backend, s idempotency.Shadow) {
	for i := range 7 {
		c := mustWin(t, s, fmt.Sprint("m", i), fmt.Sprint("r1.", i))
		if i%3 == 0 {
			continue // stays in flight
		}
		mustRecord(t, s, c, "answer")
	}
	wantBacklog(t, s, 4)
	for _, all := range []bool{false, true} {
		if got := uncarried(t, s, all); len(got) != 4 {
			t.Errorf("uncarried, all %t: %v, want the 4 records", all, got)
		}
	}
	if _, err := s.Uncarried(cancelled(t), false, idempotency.ListRequest{Limit: 1}); err == nil {
		t.Error("Uncarried on a done context succeeded")
	}
}

func testUncarriedReopen(t *testing.T, b Backend, s idempotency.Shadow) {
	if b.Reopen == nil {
		t.Skip("nothing survives a restart of this backend")
	}
	mustRecord(t, s, mustWin(t, s, "m", "r1.a"), "answer")
	mustRecord(t, s, mustWin(t, s, "n", "r1.b"), "answer")
	if err := s.Carried(t.Context(), Key("n"), "r1.b"); err != nil {
		t.Fatal(err)
	}
	s = b.Reopen().(idempotency.Shadow)
	wantBacklog(t, s, 1)
	if got := uncarried(t, s, false); len(got) != 1 {
		t.Errorf("uncarried after a restart: %v, want one", got)
	}
}

func testAbandoned(t *testing.T, b Backend, _ idempotency.Settler) {
	stale := mustWin(t, b.Store, "m", "r1.a")
	req := request("r1.b")
	req.Owners = Owners{}
	mustReserve(t, b.Store, "m", req, idempotency.InFlight)
	req.Owners = Owners{Lost: []string{"r1.a"}}
	got := mustReserve(t, b.Store, "m", req, idempotency.Won)
	if !got.TakenOver || got.Claim.Token != "r1.b" {
		t.Errorf("got %+v, want the claim, taken over", got)
	}
	wantNotOwner(t, "Renew of the abandoned claim", b.Store.Renew(t.Context(), stale))
	wantNotOwner(t, "Record of the abandoned claim", b.Store.Record(t.Context(), stale, nil))
	wantNotOwner(t, "Release of the abandoned claim", b.Store.Release(t.Context(), stale))
	mustRecord(t, b.Store, got.Claim, "done")
	req.Owners = Owners{Lost: []string{"r1.a", "r1.b"}}
	req.Token = "r1.c"
	if got := mustReserve(t, b.Store, "m", req, idempotency.Recorded); string(got.Outcome) != "done" {
		t.Errorf("a record was taken for a claim: %+v", got)
	}
}

func testAbandonedRace(t *testing.T, b Backend, _ idempotency.Settler) {
	mustWin(t, b.Store, "m", "r1.lost")
	winners := race(16, func(i int) bool {
		req := request(fmt.Sprintf("r1.%d", i))
		req.Owners = Owners{Lost: []string{"r1.lost"}}
		r, err := b.Store.Reserve(t.Context(), Key("m"), req)
		if err != nil && !errors.Is(err, t.Context().Err()) {
			t.Errorf("Reserve = %v", err)
		}
		return r.State == idempotency.Won
	})
	if winners != 1 {
		t.Errorf("%d winners of an abandoned claim, want 1", winners)
	}
}
