package historytest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
)

func testNew(t *testing.T, b Backend) {
	if rows := mustBegin(t, b, "s", 7); len(rows) != 0 {
		t.Errorf("a new session has %d rows", len(rows))
	}
	shown, rows := mustShow(t, b, "s")
	if shown.ID != "s" || shown.Turns != 0 || shown.Created.IsZero() || !shown.LastUsed.Equal(shown.Created) || len(rows) != 0 {
		t.Errorf("Show = %+v, %d rows; want a session without turns, used when it was made", shown, len(rows))
	}
}

func testOneSession(t *testing.T, b Backend) {
	const racers = 64
	created := make([]time.Time, racers)
	var begun atomic.Int64
	race(racers, func(i int) {
		fence := uint64(i + 1)
		_, err := b.Begin(t.Context(), "s", fence)
		if err == nil {
			begun.Add(1)
		} else if i == racers-1 {
			t.Errorf("the newest turn = %v", err)
		} else {
			wantStale(t, "an older turn", err)
		}
		shown, _, err := b.Show(t.Context(), "s")
		if err != nil {
			t.Error(err)
		}
		created[i] = shown.Created
	})
	for _, c := range created {
		if !c.Equal(created[0]) {
			t.Fatalf("sessions that were made at %s and at %s", created[0], c)
		}
	}
	if begun.Load() == 0 {
		t.Error("no turn began")
	}
	if list, more, err := b.List(t.Context(), 10); err != nil || more || len(list) != 1 {
		t.Errorf("List = %+v, %t, %v; want one session", list, more, err)
	}
	wantStale(t, "Append of the turn before the newest", appendTurn(t.Context(), b, "s", racers-1, "m"))
	mustAppend(t, b, "s", racers, "m")
}

func testRows(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 1)
	mustAppend(t, b, "s", 1, "m-1")
	wantTurns(t, mustBegin(t, b, "s", 2), "m-1")
	mustAppend(t, b, "s", 2, "m-20")
	mustBegin(t, b, "s", 3)
	mustAppend(t, b, "s", 3, "m-0")
	wantTurns(t, mustBegin(t, b, "s", 4), "m-1", "m-20", "m-0")

	user, assistant := turn("bare")
	user.Prompt, user.Time, assistant.Time = "", time.Time{}, user.Time.In(time.FixedZone("far", 9*3600))
	assistant.Prompt, assistant.Cut = "of an assistant", true
	if err := b.Append(t.Context(), "other", 1, user, assistant); err != nil {
		t.Fatal(err)
	}
	wantRows(t, mustBegin(t, b, "other", 1), user, assistant)
}

func testTexts(t *testing.T, b Backend) {
	for i, text := range []string{
		"", " ", "\n\r\n\t", "nul\x00inside", `"quoted" \ <b>&amp;</b>`, "é 🙂 \u2028", "null", "{}", `[{"role":"user"}]`,
	} {
		session := fmt.Sprint(i)
		user, assistant := turn("m:{" + session + "}\x00")
		user.Text, user.Prompt, assistant.Text = text+"?", text, text // an empty answer is a finished turn
		if err := b.Append(t.Context(), session, 1, user, assistant); err != nil {
			t.Fatalf("Append of %q = %v", text, err)
		}
		wantRows(t, mustBegin(t, b, session, 1), user, assistant)
	}
}

func testBounded(t *testing.T, b Backend) {
	long, fits := strings.Repeat("é", agent.MaxRowText), strings.Repeat("a", agent.MaxRowText)
	for session, texts := range map[string][3]string{
		"long question": {long, fits, fits}, "long prompt": {fits, "x" + long, fits}, "long answer": {fits, fits, long}, "fits": {fits, fits, fits},
	} {
		user, assistant := turn("m")
		user.Text, user.Prompt, assistant.Text = texts[0], texts[1], texts[2]
		if err := b.Append(t.Context(), session, 1, user, assistant); err != nil {
			t.Fatal(err)
		}
		user.Cut, assistant.Cut = len(texts[0])+len(texts[1]) > 2*len(fits), len(texts[2]) > len(fits)
		rows := mustBegin(t, b, session, 1)
		wantRows(t, rows, user.Bounded(), assistant.Bounded())
	}
}

func testNoTurn(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 1)
	user, assistant := turn("m")
	_, other := turn("n")
	unnamed, unnamedToo := turn("")
	for what, rows := range map[string][2]agent.Row{
		"two users":                    {user, user},
		"the answer first":             {assistant, user},
		"the answer to another":        {user, other},
		"a turn of a nameless message": {unnamed, unnamedToo},
	} {
		if err := b.Append(t.Context(), "s", 1, rows[0], rows[1]); err == nil {
			t.Errorf("Append of %s was accepted", what)
		} else if strings.Contains(err.Error(), "asks") || strings.Contains(err.Error(), "answers") {
			t.Errorf("Append of %s = %q, which tells what was said", what, err)
		}
	}
	wantTurns(t, mustBegin(t, b, "s", 1))
}

func testRepeated(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 1)
	mustAppend(t, b, "s", 1, "m-1", "m-2")
	again := func(h agent.History) {
		t.Helper()
		user, assistant := turn("m-1")
		user.Text, user.Prompt, assistant.Text, user.Time = "changed", "changed", "changed", user.Time.Add(time.Hour)
		if err := h.Append(t.Context(), "s", 1, user, assistant); err != nil {
			t.Fatalf("Append repeated = %v", err)
		}
		wantTurns(t, mustBegin(t, h, "s", 1), "m-1", "m-2")
	}
	again(b)
	h, s := b.Reopen()
	again(h)
	if shown, _ := mustShow(t, s, "s"); shown.Turns != 2 {
		t.Errorf("%d turns, want 2", shown.Turns)
	}
}

func testRepeatedLater(t *testing.T, b Backend) {
	mustBegin(t, b, "s", 1)
	mustAppend(t, b, "s", 1, "m-1")
	mustBegin(t, b, "s", 2)
	mustAppend(t, b, "s", 2, "m-2", "m-1")
	wantTurns(t, mustBegin(t, b, "s", 2), "m-1", "m-2")
}

func testConcurrent(t *testing.T, b Backend) {
	for round := range 20 {
		session := fmt.Sprint(round)
		keys := []string{"m-1", "m-22"}
		mustBegin(t, b, session, 1)
		race(len(keys), func(i int) {
			if err := appendTurn(t.Context(), b, session, 1, keys[i]); err != nil {
				t.Error(err)
			}
		})
		rows := mustBegin(t, b, session, 1)
		if len(rows) > 0 && rows[0].Key == keys[1] {
			keys[0], keys[1] = keys[1], keys[0]
		}
		wantTurns(t, rows, keys...)
	}
	race(5*MaxTurns, func(i int) {
		if err := appendTurn(t.Context(), b, "many", 1, fmt.Sprintf("m-%d", i/2)); err != nil { // each twice
			t.Error(err)
		}
	})
	rows := mustBegin(t, b, "many", 1)
	var keys []string
	for i := 0; i < len(rows); i += 2 {
		keys = append(keys, rows[i].Key)
	}
	if len(keys) != MaxTurns {
		t.Errorf("%d turns, want %d", len(keys), MaxTurns)
	}
	wantTurns(t, rows, keys...)
}

func testMaxTurns(t *testing.T, b Backend) {
	var keys []string
	for i := range 3 * MaxTurns {
		keys = append(keys, fmt.Sprintf("m-%d", i))
		mustBegin(t, b, "s", uint64(i+1))
		mustAppend(t, b, "s", uint64(i+1), keys[i])
		want := keys[max(0, len(keys)-MaxTurns):]
		shown, rows := mustShow(t, b, "s")
		if wantTurns(t, rows, want...); shown.Turns != len(want) {
			t.Errorf("%d turns, want %d", shown.Turns, len(want))
		}
	}
	wantTurns(t, mustBegin(t, b, "s", 100), keys[2*MaxTurns:]...)
}

func testDroppedKey(t *testing.T, b Backend) {
	keys := []string{"m-0", "m-1", "m-2", "m-3", "m-4"}
	if len(keys) != MaxTurns+1 {
		t.Fatal("the keys are those of one turn too many")
	}
	mustAppend(t, b, "s", 1, keys...)
	mustAppend(t, b, "s", 1, "m-0")
	wantTurns(t, mustBegin(t, b, "s", 1), "m-2", "m-3", "m-4", "m-0")
}

func testIndependent(t *testing.T, b Backend) {
	mustBegin(t, b, "one", 5)
	mustAppend(t, b, "one", 5, "m-1")
	mustBegin(t, b, "two", 3)
	mustAppend(t, b, "two", 3, "m-1", "m-22")
	if err := b.Reset(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	wantTurns(t, mustBegin(t, b, "one", 5))
	wantTurns(t, mustBegin(t, b, "two", 3), "m-1", "m-22")
}

func testNames(t *testing.T, b Backend) {
	long := strings.Repeat("n", 511)
	names := []string{
		"", "s", "s:", ":s", "a:b", "{a}:b", "{}", "}{", "a*", "[ab]", "nul\x00", "nul\x00\x00", "nul", "é", "e\u0301", "🙂", "S",
		" s", "s ", "%s", "'; --", long + "a", long + "b", long,
	}
	for i, name := range names {
		mustBegin(t, b, name, 1)
		mustAppend(t, b, name, 1, fmt.Sprintf("m-%d", i))
	}
	listed := make(map[string]bool)
	list, more, err := b.List(t.Context(), len(names))
	if err != nil || more {
		t.Fatalf("List = more %t, %v", more, err)
	}
	for _, s := range list {
		listed[s.ID] = true
	}
	for i, name := range names {
		wantTurns(t, mustBegin(t, b, name, 1), fmt.Sprintf("m-%d", i))
		if shown, _ := mustShow(t, b, name); shown.ID != name || !listed[name] {
			t.Errorf("%q is shown as %q, listed %t", name, shown.ID, listed[name])
		}
	}
}
