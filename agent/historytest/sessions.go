package historytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
)

func testShow(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 1)
	made, _ := mustShow(t, b, "s")
	b.pass(time.Second)
	mustAppend(t, b, "s", 1, "m-1", "m-22")
	first, rows := mustShow(t, b, "s")
	if wantTurns(t, rows, "m-1", "m-22"); first.ID != "s" || first.Turns != 2 || !first.Created.Equal(made.Created) || !first.LastUsed.After(made.LastUsed) {
		t.Errorf("Show = %+v, want 2 turns, made as %+v and used later", first, made)
	}
	b.pass(time.Second)
	if again, _ := mustShow(t, b, "s"); again != first {
		t.Errorf("Show = %+v, want what it was, %+v", again, first)
	}
}

// pass lets d pass where time does not pass by itself.
func (b Backend) pass(d time.Duration) {
	if b.Advance != nil {
		b.Advance(d)
	}
}

func testList(t *testing.T, b Backend) {
	if list, more, err := b.List(t.Context(), 1); len(list) != 0 || more || err != nil {
		t.Errorf("List of nothing = %+v, %t, %v", list, more, err)
	}
	const sessions = 7
	var want []string // newest first
	use := func(session string, do func(session string)) {
		b.pass(time.Second)
		do(session)
		want = append([]string{session}, slices.DeleteFunc(want, func(s string) bool { return s == session })...)
	}
	begin := func(session string) { mustBegin(t, b, session, 1) }
	for i := range sessions {
		use(fmt.Sprintf("s%d", i), begin)
	}
	use("s2", func(session string) { mustAppend(t, b, session, 1, "m-1") })
	use("s0", begin)
	use("made", func(session string) { mustAppend(t, b, session, 1, "m-1", "m-22") })
	b.pass(time.Second)
	if _, err := b.Begin(t.Context(), "s3", 0); err == nil {
		t.Fatal("an older turn has begun")
	}
	for limit := 1; limit <= len(want)+2; limit++ {
		list, more, err := b.List(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range list {
			got = append(got, s.ID)
			if shown, _ := mustShow(t, b, s.ID); shown != s {
				t.Errorf("listed as %+v, shown as %+v", s, shown)
			}
		}
		if first := want[:min(limit, len(want))]; !slices.Equal(got, first) || more != (limit < len(want)) {
			t.Errorf("List(%d) = %q, more %t; want %q", limit, got, more, first)
		}
	}
}

func testReset(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 5)
	mustAppend(t, b, "s", 5, "m-1", "m-22")
	before, _ := mustShow(t, b, "s")
	for range 2 {
		if err := b.Reset(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		after, rows := mustShow(t, b, "s")
		if len(rows) != 0 || after.Turns != 0 || !after.Created.Equal(before.Created) {
			t.Errorf("Show = %+v, %d rows; want an empty session made as before, %+v", after, len(rows), before)
		}
	}
	_, err := b.Begin(t.Context(), "s", 4)
	wantStale(t, "Begin with an older fence", err)
	wantStale(t, "Append with an older fence", appendTurn(t.Context(), b, "s", 4, "late"))
	h, _ := b.Reopen()
	wantTurns(t, mustBegin(t, h, "s", 6))
}

func testResetUnderWay(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 5)
	mustAppend(t, b, "s", 5, "m-1", "m-22")
	mustBegin(t, b, "s", 6)
	if err := b.Reset(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, b, "s", 6, "m-333", "m-1") // the key of a row that was forgotten is free
	wantTurns(t, mustBegin(t, b, "s", 7), "m-333", "m-1")
	mustAppend(t, b, "s", 7, "a", "bb", "ccc") // and the bound counts from there
	wantTurns(t, mustBegin(t, b, "s", 7), "m-1", "a", "bb", "ccc")
}

func testUnknown(t *testing.T, b Backend) {
	wantNoSession(t, b, "s")
	mustBegin(t, b, "other", 1)
	wantNoSession(t, b, "s")
}

func testLastWrite(t *testing.T, b Backend, ttl time.Duration) {
	mustBegin(t, b, "begun", 1)
	mustBegin(t, b, "appended", 1)
	mustAppend(t, b, "appended", 1, "m-1")
	b.Advance(ttl * 4 / 10)
	mustBegin(t, b, "begun", 2)
	mustAppend(t, b, "appended", 1, "m-22")
	b.Advance(ttl * 7 / 10) // longer ago than the first write may be, not the last
	if shown, _ := mustShow(t, b, "begun"); !shown.LastUsed.After(shown.Created) {
		t.Errorf("Show = %+v, want it used after it was made", shown)
	}
	wantTurns(t, mustBegin(t, b, "appended", 1), "m-1", "m-22")
	b.Advance(ttl * 4 / 10)
	wantNoSession(t, b, "begun")
	if shown, _ := mustShow(t, b, "appended"); shown.Turns != 2 {
		t.Errorf("%d turns, want 2", shown.Turns)
	}
}

func testExpired(t *testing.T, b Backend, ttl time.Duration) {
	mustBegin(t, b, "s", 5)
	mustAppend(t, b, "s", 5, "m-1")
	b.Advance(ttl + ttl/10)
	wantNoSession(t, b, "s")
	if list, more, err := b.List(t.Context(), 1); len(list) != 0 || more || err != nil {
		t.Errorf("List = %+v, %t, %v; want nothing", list, more, err)
	}
	_, s := b.Reopen()
	wantNoSession(t, s, "s")
}

func testBeginsAnew(t *testing.T, b Backend, ttl time.Duration) {
	makes := map[string]func(session string){
		"begun":    func(session string) { wantTurns(t, mustBegin(t, b, session, 6)) },
		"appended": func(session string) { mustAppend(t, b, session, 6, "m-1") },
	}
	before := make(map[string]agent.Session)
	for session := range makes {
		mustBegin(t, b, session, 5)
		mustAppend(t, b, session, 5, "m-1", "m-22")
		before[session], _ = mustShow(t, b, session)
	}
	b.Advance(ttl + ttl/10)
	for session, do := range makes {
		do(session)
		if shown, _ := mustShow(t, b, session); !shown.Created.After(before[session].LastUsed) {
			t.Errorf("Show = %+v, want a session that was made after %+v", shown, before[session])
		}
		wantStale(t, "Append of the turn that was forgotten", appendTurn(t.Context(), b, session, 5, "late"))
		mustAppend(t, b, session, 6, "m-1", "m-333")
		wantTurns(t, mustBegin(t, b, session, 6), "m-1", "m-333")
	}
}

func testListExpired(t *testing.T, b Backend, ttl time.Duration) {
	for i := range 5 {
		mustBegin(t, b, fmt.Sprintf("old%d", i), 1)
	}
	b.Advance(ttl * 6 / 10)
	mustBegin(t, b, "live", 1)
	b.Advance(ttl * 6 / 10)
	for _, limit := range []int{1, 2, 10} {
		list, more, err := b.List(t.Context(), limit)
		if err != nil || more || len(list) != 1 || list[0].ID != "live" {
			t.Errorf("List(%d) = %+v, %t, %v; want the one that lives", limit, list, more, err)
		}
	}
}
