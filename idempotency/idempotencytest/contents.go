package idempotencytest

import (
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

func testFingerprint(t *testing.T, b Backend) {
	first := request("r1.a")
	first.Fingerprint = message.Fingerprint{1}
	c := mustReserve(t, b.Store, "m", first, idempotency.Won).Claim
	if c.Fingerprint != first.Fingerprint {
		t.Errorf("claim fingerprint = %x, want %x", c.Fingerprint, first.Fingerprint)
	}
	check := func(state idempotency.State) {
		t.Helper()
		for i, want := range []struct {
			print message.Fingerprint
			match bool
		}{{first.Fingerprint, true}, {message.Fingerprint{2}, false}, {message.Fingerprint{}, true}} {
			req := request(fmt.Sprintf("r2.%d%d", state, i))
			req.Fingerprint = want.print
			if got := mustReserve(t, b.Store, "m", req, state); got.FingerprintMatch != want.match {
				t.Errorf("fingerprint %x matches = %t, want %t", want.print, got.FingerprintMatch, want.match)
			}
		}
	}
	check(idempotency.InFlight)
	mustRecord(t, b.Store, c, "done")
	check(idempotency.Recorded)
}

func testOutcomeBytes(t *testing.T, b Backend) {
	for i, outcome := range []string{"", " ", "\x00\xff|\r\n", `{"reply":"é 🙂"}`, string(make([]byte, 70_000))} {
		id := fmt.Sprintf("m%d", i)
		mustRecord(t, b.Store, mustWin(t, b.Store, id, "r1.a"), outcome)
		if got := mustReserve(t, b.Store, id, request("r2.b"), idempotency.Recorded); string(got.Outcome) != outcome {
			t.Errorf("outcome %d: got %d bytes, want %d unchanged", i, len(got.Outcome), len(outcome))
		}
	}
}

func testAwkwardKeys(t *testing.T, b Backend) {
	for i, k := range []message.Key{
		{Channel: "a:b", ID: "c"}, {Channel: "a", ID: "b:c"}, {Channel: "a", ID: ""}, {Channel: "", ID: "a"},
		{ID: "x{y}z"}, {ID: "{}"}, {ID: "a|b"}, {ID: "a%7Cb"}, {ID: "nul\x00"}, {ID: "é"}, {ID: "\xff"}, {ID: string(make([]byte, 600))},
	} {
		r, err := b.Store.Reserve(t.Context(), idempotency.EncodeKey(k), request(fmt.Sprintf("r1.%d", i)))
		if err != nil || r.State != idempotency.Won {
			t.Errorf("Reserve(%+v) = state %d, %v; want its own claim", k, r.State, err)
		}
	}
}
