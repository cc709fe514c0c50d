// Package historytest is the conformance suite of agent.History and
// agent.Sessions: one set of promises that every backend keeps.
package historytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
)

// What a backend of Run is opened with. The TTL is one that never passes by itself.
const (
	MaxTurns = 4
	TTL      = time.Hour
)

// Backend is one history under test and its levers.
type Backend struct {
	agent.History
	agent.Sessions

	// Advance makes d pass for the history: a fake clock, a server's own
	// fast-forward, or a real wait. Nil: its time passes by itself, and the
	// tests of what ends are skipped.
	Advance func(d time.Duration)

	// Reopen closes the history and opens it again on the same data, as a
	// restarted process does.
	Reopen func() (agent.History, agent.Sessions)
}

type testCase struct {
	name string
	test func(*testing.T, Backend)
}

// Run checks a backend that keeps MaxTurns turns for TTL. newBackend is called
// once per subtest and returns an empty history; it registers its own clean-up.
func Run(t *testing.T, newBackend func(t *testing.T) Backend) {
	run(t, newBackend, []testCase{
		{"a new session is empty and known", testNew},
		{"64 turns that begin at once make one session (B50)", testOneSession},
		{"rows come back oldest first with every field", testRows},
		{"texts are kept as they are", testTexts},
		{"a long text comes back bounded and says so", testBounded},
		{"two rows that are no turn are refused", testNoTurn},
		{"a repeated append changes nothing and the first texts stay (B21)", testRepeated},
		{"an append repeated by a later turn changes nothing", testRepeatedLater},
		{"concurrent appends stay whole", testConcurrent},
		{"the last turns are kept and no others", testMaxTurns},
		{"a key that was dropped may be appended again", testDroppedKey},
		{"sessions are independent", testIndependent},
		{"awkward names are distinct sessions", testNames},
		{"an append with an older fence writes nothing", testStaleAppend},
		{"a turn with an older fence does not begin", testStaleBegin},
		{"the same turn may begin and append again", testEqualFence},
		{"an append makes its session, and its fence the newest", testAppendMakes},
		{"fences are told apart up to 2^53", testLargeFence},
		{"show has the rows and is no use", testShow},
		{"list has the sessions used last, newest first", testList},
		{"reset forgets the rows and keeps the fence", testReset},
		{"a turn under way can write after a reset", testResetUnderWay},
		{"an unknown session is none", testUnknown},
		{"a done context changes nothing", testDoneContext},
		{"all of it survives a restart", testReopen},
	})
	t.Run("what ends", func(t *testing.T) { RunExpiry(t, TTL, newBackend) })
}

// RunExpiry checks what a backend that keeps sessions for ttl forgets. Run
// includes it; by itself it is for a backend whose time really passes, which
// it waits for.
func RunExpiry(t *testing.T, ttl time.Duration, newBackend func(t *testing.T) Backend) {
	timed := func(test func(*testing.T, Backend, time.Duration)) func(*testing.T, Backend) {
		return func(t *testing.T, b Backend) {
			if b.Advance == nil {
				t.Skip("time passes by itself here")
			}
			test(t, b, ttl)
		}
	}
	run(t, newBackend, []testCase{
		{"the time of a session counts from its last write", timed(testLastWrite)},
		{"a session whose time is over is gone", timed(testExpired)},
		{"a session that begins again has nothing of the one before it", timed(testBeginsAnew)},
		{"list passes over what is gone", timed(testListExpired)},
	})
}

func run(t *testing.T, newBackend func(t *testing.T) Backend, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, newBackend(t))
		})
	}
}

// turn returns the rows of the message with a key. Their times have the
// precision that every backend keeps.
func turn(key string) (user, assistant agent.Row) {
	asked := time.Date(2026, time.March, 1, 12, 30, 15, 123456000, time.UTC).Add(time.Duration(len(key)) * time.Minute)
	user = agent.Row{Role: agent.User, Text: "asks " + key, Prompt: "prompt of " + key, Key: key, Time: asked}
	assistant = agent.Row{Role: agent.Assistant, Text: "answers " + key, Key: key, Time: asked.Add(time.Second)}
	return user, assistant
}

func mustBegin(t *testing.T, h agent.History, session string, fence uint64) []agent.Row {
	t.Helper()
	rows, err := h.Begin(t.Context(), session, fence)
	if err != nil {
		t.Fatalf("Begin(%q, %d) = %v", session, fence, err)
	}
	return rows
}

func appendTurn(ctx context.Context, h agent.History, session string, fence uint64, key string) error {
	user, assistant := turn(key)
	return h.Append(ctx, session, fence, user, assistant)
}

func mustAppend(t *testing.T, h agent.History, session string, fence uint64, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := appendTurn(t.Context(), h, session, fence, key); err != nil {
			t.Fatalf("Append(%q, %d, %s) = %v", session, fence, key, err)
		}
	}
}

func mustShow(t *testing.T, s agent.Sessions, session string) (agent.Session, []agent.Row) {
	t.Helper()
	shown, rows, err := s.Show(t.Context(), session)
	if err != nil {
		t.Fatalf("Show(%q) = %v", session, err)
	}
	return shown, rows
}

func wantStale(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, agent.ErrStale) {
		t.Errorf("%s = %v, want ErrStale", what, err)
	}
}

func wantNoSession(t *testing.T, s agent.Sessions, session string) {
	t.Helper()
	if shown, rows, err := s.Show(t.Context(), session); !errors.Is(err, agent.ErrNoSession) {
		t.Errorf("Show(%q) = %+v, %d rows, %v; want ErrNoSession", session, shown, len(rows), err)
	}
	if err := s.Reset(t.Context(), session); !errors.Is(err, agent.ErrNoSession) {
		t.Errorf("Reset(%q) = %v, want ErrNoSession", session, err)
	}
}

// wantRows compares rows, whose times may be in another zone.
func wantRows(t *testing.T, got []agent.Row, want ...agent.Row) {
	t.Helper()
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("rows = %s\nwant   %s", brief(got), brief(want))
	}
}

// wantTurns checks that rows are the whole turns of the keys, in this order.
func wantTurns(t *testing.T, got []agent.Row, keys ...string) {
	t.Helper()
	var want []agent.Row
	for _, key := range keys {
		user, assistant := turn(key)
		want = append(want, user, assistant)
	}
	wantRows(t, got, want...)
}

func same(a, b agent.Row) bool {
	equal := a.Time.Equal(b.Time)
	a.Time, b.Time = time.Time{}, time.Time{}
	return equal && a == b
}

func brief(rows []agent.Row) (text []string) {
	for _, r := range rows {
		text = append(text, fmt.Sprintf("%s %.40q (%d bytes) prompt %.40q key %q cut %t at %s",
			r.Role, r.Text, len(r.Text), r.Prompt, r.Key, r.Cut, r.Time.UTC().Format(time.RFC3339Nano)))
	}
	return text
}

// race runs call(0..n-1) at once.
func race(n int, call func(int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			call(i)
		})
	}
	close(start)
	wg.Wait()
}
