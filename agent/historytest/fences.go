package historytest

import (
	"context"
	"errors"
	"testing"
)

func testStaleAppend(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 1)
	mustAppend(t, b, "s", 1, "m-1")
	mustBegin(t, b, "s", 2) // and has written nothing yet
	before, _ := mustShow(t, b, "s")
	wantStale(t, "Append beside a turn that has only begun", appendTurn(t.Context(), b, "s", 1, "late"))
	wantStale(t, "Append repeated", appendTurn(t.Context(), b, "s", 1, "m-1"))
	after, rows := mustShow(t, b, "s")
	if wantTurns(t, rows, "m-1"); after != before {
		t.Errorf("the session = %+v, was %+v", after, before)
	}
	mustAppend(t, b, "s", 2, "m-22")
	wantStale(t, "Append after that turn", appendTurn(t.Context(), b, "s", 1, "late"))
	wantTurns(t, mustBegin(t, b, "s", 2), "m-1", "m-22")
}

func testStaleBegin(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 10)
	mustAppend(t, b, "s", 10, "m-1")
	before, _ := mustShow(t, b, "s")
	if b.Advance != nil {
		b.Advance(TTL / 100)
	}
	rows, err := b.Begin(t.Context(), "s", 9) // which a comparison of texts would let pass
	wantStale(t, "Begin", err)
	if len(rows) != 0 {
		t.Errorf("a refused turn got %d rows", len(rows))
	}
	after, kept := mustShow(t, b, "s")
	if wantTurns(t, kept, "m-1"); after != before {
		t.Errorf("the session = %+v, was %+v", after, before)
	}
	mustAppend(t, b, "s", 10, "m-22")
}

func testEqualFence(t *testing.T, b Backend) {
	for range 3 {
		mustBegin(t, b, "s", 5)
	}
	mustAppend(t, b, "s", 5, "m-1")
	wantTurns(t, mustBegin(t, b, "s", 5), "m-1")
	mustAppend(t, b, "s", 5, "m-22")
	wantTurns(t, mustBegin(t, b, "s", 5), "m-1", "m-22")
}

func testAppendMakes(t *testing.T, b Backend) {
	mustAppend(t, b, "s", 5, "m-1")
	wantStale(t, "Append before the one that made the session", appendTurn(t.Context(), b, "s", 4, "late"))
	mustAppend(t, b, "s", 7, "m-22")
	_, err := b.Begin(t.Context(), "s", 6)
	wantStale(t, "Begin before the newest append", err)
	wantTurns(t, mustBegin(t, b, "s", 7), "m-1", "m-22")
}

func testLargeFence(t *testing.T, b Backend) {
	const largest = 1 << 53
	mustBegin(t, b, "s", 0)
	mustBegin(t, b, "s", largest-1)
	mustAppend(t, b, "s", largest-1, "m-1")
	mustBegin(t, b, "s", largest)
	wantStale(t, "Append by the one before", appendTurn(t.Context(), b, "s", largest-1, "late"))
	mustAppend(t, b, "s", largest, "m-22")
	h, _ := b.Reopen()
	_, err := h.Begin(t.Context(), "s", largest-1)
	wantStale(t, "Begin by the one before", err)
	wantTurns(t, mustBegin(t, h, "s", largest), "m-1", "m-22")
}

func testDoneContext(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 2)
	mustAppend(t, b, "s", 2, "m-1")
	before, _ := mustShow(t, b, "s")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := make(map[string]error)
	_, errs["Begin"] = b.Begin(ctx, "s", 3)
	_, errs["Begin of a new one"] = b.Begin(ctx, "new", 1)
	errs["Append"] = appendTurn(ctx, b, "s", 2, "m-22")
	errs["Reset"] = b.Reset(ctx, "s")
	_, _, errs["List"] = b.List(ctx, 1)
	_, _, errs["Show"] = b.Show(ctx, "s")
	for what, err := range errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want context.Canceled", what, err)
		}
	}
	after, rows := mustShow(t, b, "s")
	if wantTurns(t, rows, "m-1"); after != before {
		t.Errorf("the session = %+v, was %+v", after, before)
	}
	wantNoSession(t, b, "new")
	mustAppend(t, b, "s", 2, "m-22") // for whom its fence is still the newest
}

func testReopen(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 5)
	mustAppend(t, b, "s", 5, "m-1", "m-22")
	mustBegin(t, b, "begun", 5)
	before, _ := mustShow(t, b, "s")
	h, s := b.Reopen()
	after, rows := mustShow(t, s, "s")
	if wantTurns(t, rows, "m-1", "m-22"); after != before {
		t.Errorf("the session = %+v, was %+v", after, before)
	}
	for _, session := range []string{"s", "begun"} {
		_, err := h.Begin(t.Context(), session, 4)
		wantStale(t, "Begin with an older fence", err)
		wantStale(t, "Append with an older fence", appendTurn(t.Context(), h, session, 4, "late"))
	}
	mustAppend(t, h, "s", 5, "m-333")
	wantTurns(t, mustBegin(t, h, "s", 6), "m-1", "m-22", "m-333")
}
