package idempotencytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// RunLister checks that a backend's Store is also an idempotency.Lister, as Run
// checks a Store.
func RunLister(t *testing.T, newBackend func(t *testing.T) Backend) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Backend, idempotency.Lister)
	}{
		{"get tells a claim a record and a free key apart", testGet},
		{"get forgets what is over and follows the owner", testGetEnds},
		{"list has every message once its state is asked for", testList},
		{"list in pages misses nothing", testListPages},
		{"a page is about as long as asked for", testListPageSize},
		{"list passes over what is over", testListEnds},
		{"awkward keys are listed as they are", testListKeys},
		{"done context looks at nothing", testListDone},
		{"looking changes nothing", testLookingIsHarmless},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			lister, ok := b.Store.(idempotency.Lister)
			if !ok {
				t.Fatalf("%T is no Lister", b.Store)
			}
			c.test(t, b, lister)
		})
	}
}

func mustGet(t *testing.T, l idempotency.Lister, id string) idempotency.Entry {
	t.Helper()
	e, err := l.Get(t.Context(), Key(id))
	if err != nil {
		t.Fatalf("Get(%s) = %v", id, err)
	}
	return e
}

func wantFree(t *testing.T, l idempotency.Lister, id string) {
	t.Helper()
	if e, err := l.Get(t.Context(), Key(id)); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Get(%s) = %+v, %v, want ErrNotFound", id, e, err)
	}
}

// mustList returns the keys of a whole list, taken in pages.
func mustList(t *testing.T, l idempotency.Lister, state idempotency.State, limit int) []idempotency.Key {
	t.Helper()
	var keys []idempotency.Key
	req := idempotency.ListRequest{State: state, Limit: limit}
	for pages := 0; ; pages++ {
		page, err := l.List(t.Context(), req)
		if err != nil {
			t.Fatalf("List = %v", err)
		}
		for _, e := range page.Entries {
			keys = append(keys, e.Key)
		}
		if page.Next == "" {
			slices.Sort(keys)
			return slices.Compact(keys) // one may be on two pages
		}
		if req.After = page.Next; pages > 1000 {
			t.Fatal("the list has no end")
		}
	}
}

func testGet(t *testing.T, b Backend, l idempotency.Lister) {
	wantFree(t, l, "m")
	print := message.Fingerprint{1, 2, 3}
	req := request("r1.a")
	req.Fingerprint = print
	c := mustReserve(t, b.Store, "m", req, idempotency.Won).Claim
	e := mustGet(t, l, "m")
	if e.Key != Key("m") || e.State != idempotency.InFlight || e.Token != "r1.a" || e.Fingerprint != print || e.Outcome != nil {
		t.Errorf("a claim = %+v", e)
	}
	if e.Left <= 0 || e.Left > lease {
		t.Errorf("a claim ends in %s, want within its lease of %s", e.Left, lease)
	}
	mustRecord(t, b.Store, c, "answer")
	e = mustGet(t, l, "m")
	if e.Key != Key("m") || e.State != idempotency.Recorded || e.Token != "r1.a" || e.Fingerprint != print || string(e.Outcome) != "answer" {
		t.Errorf("a record = %+v", e)
	}
	if e.Left <= lease || e.Left > ttl {
		t.Errorf("a record ends in %s, want within its window of %s", e.Left, ttl)
	}
	wantFree(t, l, "other")
}

func testGetEnds(t *testing.T, b Backend, l idempotency.Lister) {
	c := mustWin(t, b.Store, "released", "r1.a")
	if err := b.Store.Release(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	wantFree(t, l, "released")
	mustWin(t, b.Store, "taken", "r1.b")
	mustWin(t, b.Store, "over", "r1.c")
	recordFor(t, b.Store, "forgotten", lease)
	b.Advance(lease + 100*time.Millisecond)
	wantFree(t, l, "over")
	wantFree(t, l, "forgotten")
	mustWin(t, b.Store, "taken", "r2.d")
	if e := mustGet(t, l, "taken"); e.Token != "r2.d" {
		t.Errorf("the owner is %s, want the one that took it over", e.Token)
	}
}

// recordFor makes a record with its own window.
func recordFor(t *testing.T, s idempotency.Store, id string, window time.Duration) {
	t.Helper()
	req := request("r1." + id)
	req.TTL = window
	mustRecord(t, s, mustReserve(t, s, id, req, idempotency.Won).Claim, "answer")
}

// fill makes claims and records and returns their keys.
func fill(t *testing.T, s idempotency.Store, claims, records int) (inFlight, recorded []idempotency.Key) {
	t.Helper()
	req := idempotency.Request{Lease: time.Minute, TTL: time.Minute}
	for i := range claims + records {
		id := fmt.Sprintf("m%03d", i)
		req.Token = "r1." + id
		c := mustReserve(t, s, id, req, idempotency.Won).Claim
		if i < claims {
			inFlight = append(inFlight, c.Key)
			continue
		}
		mustRecord(t, s, c, id)
		recorded = append(recorded, c.Key)
	}
	return inFlight, recorded
}

func testList(t *testing.T, b Backend, l idempotency.Lister) {
	if got := mustList(t, l, 0, 10); len(got) != 0 {
		t.Errorf("an empty store lists %v", got)
	}
	inFlight, recorded := fill(t, b.Store, 3, 4)
	for state, want := range map[idempotency.State][]idempotency.Key{
		0: append(slices.Clone(inFlight), recorded...), idempotency.InFlight: inFlight, idempotency.Recorded: recorded,
	} {
		if got := mustList(t, l, state, 100); !slices.Equal(got, want) {
			t.Errorf("state %d lists %v, want %v", state, got, want)
		}
	}
	page, err := l.List(t.Context(), idempotency.ListRequest{State: idempotency.Recorded, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		if one, err := l.Get(t.Context(), e.Key); err != nil || one.Token != e.Token || string(one.Outcome) != string(e.Outcome) || e.Left <= 0 {
			t.Errorf("listed %+v, while Get says %+v, %v", e, one, err)
		}
	}
}

func testListPages(t *testing.T, b Backend, l idempotency.Lister) {
	inFlight, recorded := fill(t, b.Store, 10, 10)
	for _, limit := range []int{1, 3, 10, 20} {
		if got, want := mustList(t, l, 0, limit), append(slices.Clone(inFlight), recorded...); !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %v, want %v", limit, got, want)
		}
		if got := mustList(t, l, idempotency.Recorded, limit); !slices.Equal(got, recorded) {
			t.Errorf("records in pages of %d: %v, want %v", limit, got, recorded)
		}
	}
}

func testListPageSize(t *testing.T, b Backend, l idempotency.Lister) {
	const messages, few = 60, 20
	fill(t, b.Store, 0, messages)
	for _, limit := range []int{1, 5} {
		page, err := l.List(t.Context(), idempotency.ListRequest{Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(page.Entries) > limit+few; got != b.OnePage || page.Next == "" != b.OnePage {
			t.Errorf("a page of %d out of %d messages holds %d, next %q", limit, messages, len(page.Entries), page.Next)
		}
	}
}

func testListEnds(t *testing.T, b Backend, l idempotency.Lister) {
	mustWin(t, b.Store, "over", "r1.a")
	recordFor(t, b.Store, "forgotten", lease)
	b.Advance(lease + 100*time.Millisecond)
	mustWin(t, b.Store, "running", "r1.b")
	if got := mustList(t, l, 0, 10); !slices.Equal(got, []idempotency.Key{Key("running")}) {
		t.Errorf("listed %v, want the one that is running", got)
	}
}

func testListKeys(t *testing.T, b Backend, l idempotency.Lister) {
	var want []idempotency.Key
	for i, key := range []message.Key{
		{Platform: "ping", Channel: "x", ID: "1"}, {Platform: "a*b", Account: "[c]", Channel: "?", ID: `\`},
		{Platform: "p", ID: string(make([]byte, 600))}, {Platform: "käse", Channel: ":", ID: "%"},
	} {
		encoded := idempotency.EncodeKey(key)
		req := idempotency.Request{Token: fmt.Sprintf("r1.%d", i), Lease: time.Minute, TTL: time.Minute}
		if _, err := b.Store.Reserve(t.Context(), encoded, req); err != nil {
			t.Fatal(err)
		}
		want = append(want, encoded)
	}
	if err := b.Store.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if got := mustList(t, l, 0, 10); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}

func testListDone(t *testing.T, b Backend, l idempotency.Lister) {
	mustWin(t, b.Store, "m", "r1.a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e, err := l.Get(ctx, Key("m")); !errors.Is(err, context.Canceled) {
		t.Errorf("Get = %+v, %v, want the context's error", e, err)
	}
	if page, err := l.List(ctx, idempotency.ListRequest{Limit: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %+v, %v, want the context's error", page, err)
	}
}

func testLookingIsHarmless(t *testing.T, b Backend, l idempotency.Lister) {
	c := mustWin(t, b.Store, "m", "r1.a")
	mustGet(t, l, "m")
	mustList(t, l, 0, 1)
	mustRecord(t, b.Store, c, "answer")
	mustGet(t, l, "m")
	if got := mustReserve(t, b.Store, "m", request("r2.b"), idempotency.Recorded); string(got.Outcome) != "answer" {
		t.Errorf("outcome = %q, want what was recorded", got.Outcome)
	}
}
