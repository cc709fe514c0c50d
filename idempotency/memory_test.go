package idempotency_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

func TestMemoryStore(t *testing.T) {
	t.Parallel()
	newBackend := func(*testing.T) idempotencytest.Backend {
		c := idempotencytest.NewClock()
		return idempotencytest.Backend{Store: idempotency.NewMemory(c.Now), Advance: c.Advance}
	}
	idempotencytest.Run(t, newBackend)
	idempotencytest.RunLister(t, newBackend)
	idempotencytest.RunShadow(t, newBackend)
	idempotencytest.RunSettler(t, newBackend)
	idempotencytest.RunInbox(t, newBackend)
}

func TestMemoryForgetsTheOldestRecordsNotClaims(t *testing.T) {
	t.Parallel()
	m := idempotency.NewMemory(time.Now)
	reserve := func(i int) idempotency.Reservation {
		id := strconv.Itoa(i)
		res, err := m.Reserve(t.Context(), idempotencytest.Key(id), idempotency.Request{Token: "r1." + id, Lease: time.Hour, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	reserve(-1) // in flight all the time
	for i := range idempotency.MaxRecords + 10 {
		if err := m.Record(t.Context(), reserve(i).Claim, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := reserve(10).State; got != idempotency.Recorded {
		t.Errorf("a record inside the bound is in state %d, want recorded", got)
	}
	if got := reserve(9).State; got != idempotency.Won {
		t.Errorf("the oldest record past the bound is in state %d, want forgotten", got)
	}
	if err := m.Record(t.Context(), reserve(-1).Claim, nil); err != nil {
		t.Errorf("the claim in flight was forgotten: %v", err)
	}
}

func TestB26ExpiryIsComparedAtLookup(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	m := idempotency.NewMemory(c.Now)
	req := idempotency.Request{Token: "r1.a", Lease: time.Second, TTL: 2 * time.Second}
	res, err := m.Reserve(t.Context(), idempotencytest.Key("m"), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Record(t.Context(), res.Claim, nil); err != nil {
		t.Fatal(err)
	}
	c.Advance(3 * time.Second)
	req.Token = "r1.b"
	if res, err := m.Reserve(t.Context(), idempotencytest.Key("m"), req); err != nil || res.State != idempotency.Won {
		t.Errorf("after the window, without other traffic: state %d, %v; want it won", res.State, err)
	}
}
