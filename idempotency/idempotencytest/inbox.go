package idempotencytest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// RunInbox checks a backend whose store keeps messages. newBackend is called as
// by Run.
func RunInbox(t *testing.T, newBackend func(t *testing.T) Backend) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *inbox)
	}{
		{"accepted message is met in flight and taken once, whole", testAcceptTake},
		{"accepted again by its own token is accepted, by another one is met", testAcceptAgain},
		{"accept meets a claim, and a record with its outcome", testAcceptMeets},
		{"one of 32 concurrent accepts stores", testAcceptRace},
		{"each of 40 messages goes to one of 8 takers", testTakeRace},
		{"take stops at its tokens, the longest due first", testTakeOrder},
		{"record finishes the message: its body is gone, its outcome met", testRecordStored},
		{"release frees the key and forgets the message", testReleaseStored},
		{"retry waits, is taken later, and counts the attempt", testRetry},
		{"uncounted retry takes the attempt back", testRetryUncounted},
		{"reply of a checkpoint comes with every later taking", testCheckpoint},
		{"buried message is met as recorded, not taken, and kept for its time", testBury},
		{"stored claim outlives its lease, then goes to the next taker, and the stale holder changes nothing", testLeaseOver},
		{"renewed stored claim is not taken", testRenewStored},
		{"abandoned stored claim is taken at once", testTakeAbandoned},
		{"settled calls repeated by the same token succeed", testInboxReplay},
		{"second message of a session is taken when the first is recorded, dead, released or dropped", testSessionOrder},
		{"order of a session outlives retries and takeovers", testOrderHolds},
		{"message past its order wait buries one that waits for a retry", testOrderWait},
		{"message past its order wait never overtakes one that runs or was not tried", testOrderWaitRunning},
		{"messages without a session and of other sessions do not wait", testIndependent},
		{"dead message is replayed once for each wish", testReplayDead},
		{"replayed message is the last of its session and keeps its reply", testReplayOrder},
		{"drop frees what waits or is dead and refuses what runs or is recorded", testDrop},
		{"held message is accepted with its claim, and with what it brings", testAcceptHeld},
		{"settle finishes a stored message, whoever has it", testSettleStored},
		{"listed as waiting, running, recorded and dead", testListStored},
		{"counted", testCounts},
		{"awkward bodies, sessions and keys come back as they were", testAwkwardBodies},
		{"untouched message is forgotten with its place in the session", testKeep},
		{"everything survives a restart", testInboxReopen},
		{"done context changes nothing", testInboxDone},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			c.test(t, &inbox{t: t, Inbox: b.Store.(idempotency.Inbox), b: b})
		})
	}
}

// The durations of a message in the suite, beside lease and ttl.
const (
	keep = 30 * time.Second
	look = 50 * time.Millisecond
)

// inbox is the Inbox under test with the steps that the tests are made of. Each
// fails the test where the Inbox does not answer as it says.
type inbox struct {
	t *testing.T
	idempotency.Inbox
	b      Backend
	tokens int
}

func stored(session, body string) idempotency.Acceptance {
	return idempotency.Acceptance{Stored: idempotency.Stored{Session: session, Body: []byte(body), OrderWait: 10 * time.Second, Keep: keep}}
}

// accept stores message id, whose body is its id.
func (in *inbox) accept(id, session string) {
	in.t.Helper()
	in.acceptAs(id, "acceptor."+id, stored(session, id), idempotency.Won)
}

func (in *inbox) acceptAs(id, token string, a idempotency.Acceptance, want idempotency.State) idempotency.Reservation {
	in.t.Helper()
	res, err := in.Accept(in.t.Context(), Key(id), request(token), a)
	if err != nil || res.State != want {
		in.t.Fatalf("Accept(%s by %s) = state %d, %v; want %d", id, token, res.State, err, want)
	}
	return res
}

func (in *inbox) take(n int, owners idempotency.Owners) idempotency.Taking {
	in.t.Helper()
	req := idempotency.TakeRequest{Look: look, Owners: owners}
	for range n {
		in.tokens++
		req.Tokens = append(req.Tokens, fmt.Sprintf("taker.%d", in.tokens))
	}
	got, err := in.Take(in.t.Context(), req)
	if err != nil {
		in.t.Fatalf("Take = %v", err)
	}
	return got
}

// wantTaken takes, with room for ten, and demands exactly these messages, in
// this order.
func (in *inbox) wantTaken(ids ...string) []idempotency.Taken {
	in.t.Helper()
	got := in.take(10, nil).Taken
	in.wantBodies(got, ids...)
	return got
}

func (in *inbox) wantBodies(got []idempotency.Taken, ids ...string) {
	in.t.Helper()
	bodies := []string{}
	for _, m := range got {
		bodies = append(bodies, string(m.Stored.Body))
	}
	if !slices.Equal(bodies, ids) && len(bodies)+len(ids) > 0 {
		in.t.Fatalf("taken: %q, want %q", bodies, ids)
	}
}

// taken takes the one message there is to take.
func (in *inbox) taken(id string) idempotency.Claim {
	in.t.Helper()
	return in.wantTaken(id)[0].Claim
}

func (in *inbox) ok(what string, err error) {
	in.t.Helper()
	if err != nil {
		in.t.Fatalf("%s = %v", what, err)
	}
}

func (in *inbox) record(c idempotency.Claim, outcome string) {
	in.t.Helper()
	mustRecord(in.t, in, c, outcome)
}

func (in *inbox) retry(c idempotency.Claim, after time.Duration) {
	in.t.Helper()
	in.ok("Retry", in.Retry(in.t.Context(), c, idempotency.Retry{After: after, Cause: "agent"}))
}

func (in *inbox) bury(c idempotency.Claim) {
	in.t.Helper()
	in.ok("Bury", in.Bury(in.t.Context(), c, "max_attempts"))
}

func (in *inbox) lister() idempotency.Lister { return in.Inbox.(idempotency.Lister) }

// entry returns message id as the list has it.
func (in *inbox) entry(id string) idempotency.Entry {
	in.t.Helper()
	e, err := in.lister().Get(in.t.Context(), Key(id))
	in.ok("Get("+id+")", err)
	return e
}

func testAcceptTake(t *testing.T, in *inbox) {
	in.acceptAs("m", "a.1", stored("s", "body"), idempotency.Won)
	met := mustReserve(t, in, "m", request("r2.b"), idempotency.InFlight)
	if !met.Stored || met.RetryAfter <= 0 {
		t.Errorf("Reserve met %+v, want a stored message and a RetryAfter", met)
	}
	got := in.take(3, nil)
	if len(got.Taken) != 1 || len(got.Buried) != 0 {
		t.Fatalf("taken %+v, want the one message", got)
	}
	m := got.Taken[0]
	want := idempotency.Stored{Session: "s", Body: []byte("body"), OrderWait: 10 * time.Second, Keep: keep, Attempts: 1}
	if !reflect.DeepEqual(*m.Stored, want) {
		t.Errorf("stored = %+v, want %+v", *m.Stored, want)
	}
	if m.TakenOver || m.Key != Key("m") || m.Token != "taker.1" || m.Lease != lease || m.TTL != ttl || m.Backend == "" || m.Confirmed.IsZero() {
		t.Errorf("claim = %+v, want the taker's, with what the message was accepted with", m.Claim)
	}
	if met = mustReserve(t, in, "m", request("r2.c"), idempotency.InFlight); !met.Stored || met.RetryAfter > lease {
		t.Errorf("while it runs Reserve met %+v, want it stored, for the lease at most", met)
	}
	in.wantTaken()
}

func testAcceptAgain(t *testing.T, in *inbox) {
	in.acceptAs("m", "a.1", stored("s", "first"), idempotency.Won)
	in.acceptAs("m", "a.1", stored("s", "first"), idempotency.Won)
	other := request("a.2")
	other.Fingerprint = message.Fingerprint{7}
	if res, err := in.Accept(t.Context(), Key("m"), other, stored("s", "second")); err != nil || res.State != idempotency.InFlight || !res.Stored || !res.FingerprintMatch {
		t.Fatalf("another Accept met %+v, %v", res, err)
	}
	c := in.taken("first")
	in.acceptAs("m", "a.1", stored("s", "first"), idempotency.Won)
	in.wantTaken()
	in.record(c, "done")
	in.acceptAs("m", "a.1", stored("s", "first"), idempotency.Recorded)
	in.wantTaken()
}

func testAcceptMeets(t *testing.T, in *inbox) {
	c := mustWin(t, in, "m", "r1.a")
	if res := in.acceptAs("m", "a.1", stored("", "b"), idempotency.InFlight); res.Stored {
		t.Error("a claim without a message is met as stored")
	}
	mustRecord(t, in, c, "answer")
	if res := in.acceptAs("m", "a.2", stored("", "b"), idempotency.Recorded); string(res.Outcome) != "answer" {
		t.Errorf("outcome %q, want the record's", res.Outcome)
	}
	b := request("r1.x")
	b.Fingerprint = message.Fingerprint{1}
	mustReserve(t, in, "n", b, idempotency.Won)
	b.Token, b.Fingerprint = "a.3", message.Fingerprint{2}
	if res, err := in.Accept(t.Context(), Key("n"), b, stored("", "b")); err != nil || res.FingerprintMatch {
		t.Errorf("Accept of other content = %+v, %v; want no match", res, err)
	}
	in.wantTaken()
}

func testAcceptRace(t *testing.T, in *inbox) {
	var wg sync.WaitGroup
	states := make(chan idempotency.State, 32)
	for i := range 32 {
		wg.Go(func() {
			res, err := in.Accept(t.Context(), Key("m"), request(fmt.Sprintf("a.%d", i)), stored("s", "m"))
			if err != nil {
				t.Errorf("Accept = %v", err)
			}
			states <- res.State
		})
	}
	wg.Wait()
	close(states)
	won := 0
	for s := range states {
		if s == idempotency.Won {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d accepts stored the message, want 1", won)
	}
	in.wantTaken("m")
}

func testTakeRace(t *testing.T, in *inbox) {
	for i := range 40 {
		in.accept(fmt.Sprint("m", i), "")
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	times := map[idempotency.Key]int{}
	for taker := range 8 {
		wg.Go(func() {
			for round := 0; ; round++ {
				mu.Lock()
				enough := len(times) == 40
				mu.Unlock()
				if enough || round == 100 {
					return
				}
				got, err := in.Take(t.Context(), idempotency.TakeRequest{Look: look, Tokens: []string{fmt.Sprintf("t%d.%d-a", taker, round), fmt.Sprintf("t%d.%d-b", taker, round)}})
				if err != nil {
					t.Errorf("Take = %v", err)
					return
				}
				mu.Lock()
				for _, m := range got.Taken {
					times[m.Key]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for key, n := range times {
		if n != 1 {
			t.Errorf("%s was taken %d times", key, n)
		}
	}
	if len(times) != 40 {
		t.Errorf("%d of 40 messages were taken", len(times))
	}
}

func testTakeOrder(t *testing.T, in *inbox) {
	for _, id := range []string{"c", "a", "b"} {
		in.accept(id, "")
		in.b.Advance(5 * time.Millisecond)
	}
	in.wantBodies(in.take(2, nil).Taken, "c", "a")
	in.wantTaken("b")
	in.wantBodies(in.take(0, nil).Taken)
}

func testRecordStored(t *testing.T, in *inbox) {
	in.accept("m", "s")
	c := in.taken("m")
	in.record(c, "answer")
	if got := mustReserve(t, in, "m", request("r.b"), idempotency.Recorded); string(got.Outcome) != "answer" {
		t.Errorf("outcome = %q", got.Outcome)
	}
	if e := in.entry("m"); e.State != idempotency.Recorded || e.Stored != nil {
		t.Errorf("entry = %+v, want a record without a message", e)
	}
	in.b.Advance(lease + look)
	in.wantTaken()
	in.b.Advance(ttl)
	mustWin(t, in, "m", "r.c")
}

func testReleaseStored(t *testing.T, in *inbox) {
	in.accept("m", "s")
	c := in.taken("m")
	in.ok("Release", in.Release(t.Context(), c))
	in.ok("Release again", in.Release(t.Context(), c))
	in.b.Advance(lease + look)
	in.wantTaken()
	mustWin(t, in, "m", "r.b")
}

func testRetry(t *testing.T, in *inbox) {
	in.accept("m", "s")
	in.retry(in.taken("m"), 200*time.Millisecond)
	if met := mustReserve(t, in, "m", request("r.b"), idempotency.InFlight); !met.Stored || met.RetryAfter <= 0 {
		t.Errorf("Reserve met %+v, want a stored message that waits", met)
	}
	in.wantTaken()
	in.b.Advance(250 * time.Millisecond)
	got := in.wantTaken("m")[0]
	if got.Stored.Attempts != 2 || got.Stored.Cause != "agent" || got.TakenOver {
		t.Errorf("taken %+v (taken over: %t), want the second attempt, and why", *got.Stored, got.TakenOver)
	}
}

func testRetryUncounted(t *testing.T, in *inbox) {
	in.accept("m", "s")
	in.ok("Retry", in.Retry(t.Context(), in.taken("m"), idempotency.Retry{Cause: "draining", Uncounted: true}))
	if got := in.wantTaken("m")[0]; got.Stored.Attempts != 1 {
		t.Errorf("attempts = %d, want 1: the one before was none", got.Stored.Attempts)
	}
}

func testCheckpoint(t *testing.T, in *inbox) {
	in.accept("m", "s")
	c := in.taken("m")
	in.ok("Checkpoint", in.Checkpoint(t.Context(), c, []byte("a\x00b")))
	in.retry(c, 0)
	c = in.taken("m")
	if string(c.Stored.Reply) != "a\x00b" {
		t.Fatalf("reply = %q after a retry", c.Stored.Reply)
	}
	in.ok("Checkpoint", in.Checkpoint(t.Context(), c, []byte("later")))
	in.b.Advance(lease + look)
	if c = in.taken("m"); string(c.Stored.Reply) != "later" || c.Stored.Attempts != 3 {
		t.Errorf("stored = %+v after a takeover, want the reply and three attempts", *c.Stored)
	}
}

func testBury(t *testing.T, in *inbox) {
	in.accept("m", "s")
	in.bury(in.taken("m"))
	if got := mustReserve(t, in, "m", request("r.b"), idempotency.Recorded); len(got.Outcome) != 0 {
		t.Errorf("outcome = %q, want none", got.Outcome)
	}
	in.acceptAs("m", "a.2", stored("s", "again"), idempotency.Recorded)
	in.b.Advance(lease + look)
	in.wantTaken()
	e := in.entry("m")
	if e.State != idempotency.Dead || e.Stored.Cause != "max_attempts" || string(e.Stored.Body) != "m" || e.Stored.Attempts != 1 || e.Left <= 0 || e.Left > keep {
		t.Errorf("entry = %+v, stored %+v; want it dead, whole and with its cause", e, e.Stored)
	}
}

func testLeaseOver(t *testing.T, in *inbox) {
	in.accept("m", "s")
	stale := in.taken("m")
	in.b.Advance(lease + look)
	mustReserve(t, in, "m", request("r.b"), idempotency.InFlight)
	got := in.wantTaken("m")[0]
	if !got.TakenOver || got.Stored.Attempts != 2 {
		t.Errorf("taken %+v, taken over: %t; want a takeover", *got.Stored, got.TakenOver)
	}
	ctx := t.Context()
	wantNotOwner(t, "late Renew", in.Renew(ctx, stale))
	wantNotOwner(t, "late Record", in.Record(ctx, stale, []byte("x")))
	wantNotOwner(t, "late Release", in.Release(ctx, stale))
	wantNotOwner(t, "late Checkpoint", in.Checkpoint(ctx, stale, []byte("x")))
	wantNotOwner(t, "late Retry", in.Retry(ctx, stale, idempotency.Retry{}))
	wantNotOwner(t, "late Bury", in.Bury(ctx, stale, "x"))
	in.record(got.Claim, "done")
}

func testRenewStored(t *testing.T, in *inbox) {
	in.accept("m", "s")
	c := in.taken("m")
	for range 3 {
		in.b.Advance(lease * 3 / 4)
		in.ok("Renew", in.Renew(t.Context(), c))
		in.wantTaken()
	}
	in.record(c, "done")
}

func testTakeAbandoned(t *testing.T, in *inbox) {
	in.accept("m", "s")
	c := in.taken("m")
	if got := in.take(1, abandoned("somebody.else")); len(got.Taken) != 0 {
		t.Fatal("a claim that nobody abandoned was taken")
	}
	in.b.Advance(look)
	got := in.take(1, abandoned(c.Token))
	in.wantBodies(got.Taken, "m")
	if !got.Taken[0].TakenOver {
		t.Error("the message counts as never taken before")
	}
	wantNotOwner(t, "late Record", in.Record(t.Context(), c, nil))
}

func testInboxReplay(t *testing.T, in *inbox) {
	ctx := t.Context()
	for _, id := range []string{"record", "retry", "bury"} {
		in.accept(id, "")
	}
	claims := map[string]idempotency.Claim{}
	for _, m := range in.take(3, nil).Taken {
		claims[string(m.Stored.Body)] = m.Claim
	}
	for range 2 {
		in.record(claims["record"], "done")
		in.ok("Checkpoint", in.Checkpoint(ctx, claims["retry"], []byte("r")))
		in.ok("Bury", in.Bury(ctx, claims["bury"], "why"))
	}
	for range 2 {
		in.ok("Retry", in.Retry(ctx, claims["retry"], idempotency.Retry{After: time.Hour, Uncounted: true}))
	}
	if e := in.entry("retry"); e.State != idempotency.Waiting || e.Stored.Attempts != 0 {
		t.Errorf("entry = %+v, %+v; want it waiting, its attempt taken back once", e, e.Stored)
	}
}

func testSessionOrder(t *testing.T, in *inbox) {
	ids := []string{"m1", "m2", "m3", "m4", "m5"}
	for _, id := range ids {
		in.accept(id, "s")
	}
	in.record(in.taken("m1"), "done")
	in.bury(in.taken("m2"))
	in.ok("Release", in.Release(t.Context(), in.taken("m3")))
	c := in.taken("m4")
	in.wantTaken()
	in.retry(c, time.Hour)
	in.wantTaken()
	in.ok("Drop", in.Drop(t.Context(), Key("m4"), nil))
	in.record(in.taken("m5"), "done")
}

func testOrderHolds(t *testing.T, in *inbox) {
	in.accept("m1", "s")
	in.accept("m2", "s")
	in.retry(in.taken("m1"), 100*time.Millisecond)
	in.wantTaken()
	in.b.Advance(150 * time.Millisecond)
	in.taken("m1") // whose owner dies
	in.b.Advance(lease + look)
	c := in.taken("m1")
	in.wantTaken()
	in.record(c, "done")
	in.taken("m2")
}

func testOrderWait(t *testing.T, in *inbox) {
	first, later := stored("s", "m1"), stored("s", "m2")
	later.OrderWait = 200 * time.Millisecond
	in.acceptAs("m1", "a.1", first, idempotency.Won)
	in.acceptAs("m2", "a.2", later, idempotency.Won)
	in.retry(in.taken("m1"), time.Hour)
	in.wantTaken()
	in.b.Advance(250 * time.Millisecond)
	got := in.take(5, nil)
	if len(got.Taken) == 0 { // the place was free only after the look
		got.Taken = in.take(5, nil).Taken
	}
	in.wantBodies(got.Taken, "m2")
	if !slices.Equal(got.Buried, []idempotency.Key{Key("m1")}) {
		t.Errorf("buried %q, want m1", got.Buried)
	}
	if e := in.entry("m1"); e.State != idempotency.Dead || e.Stored.Cause != idempotency.CauseOvertaken {
		t.Errorf("m1 = %+v, %+v; want it dead, and why", e, e.Stored)
	}
}

func testOrderWaitRunning(t *testing.T, in *inbox) {
	later := stored("s", "m2")
	later.OrderWait = 100 * time.Millisecond
	in.accept("m1", "s")
	in.acceptAs("m2", "a.2", later, idempotency.Won)
	in.b.Advance(150 * time.Millisecond)
	c := in.taken("m1") // had to wait for its first taker
	in.b.Advance(150 * time.Millisecond)
	if got := in.take(5, nil); len(got.Taken)+len(got.Buried) > 0 {
		t.Fatalf("taken or buried beside the running message: %+v", got)
	}
	in.record(c, "done")
	in.taken("m2")
}

func testIndependent(t *testing.T, in *inbox) {
	in.accept("n1", "")
	in.accept("n2", "")
	in.accept("x", "sx")
	in.accept("y", "sy")
	got := in.take(10, nil).Taken
	slices.SortFunc(got, func(a, b idempotency.Taken) int { return slices.Compare(a.Stored.Body, b.Stored.Body) })
	in.wantBodies(got, "n1", "n2", "x", "y")
}

func testReplayDead(t *testing.T, in *inbox) {
	ctx := t.Context()
	if err := in.Replay(ctx, Key("m"), "w1"); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Replay of nothing = %v, want ErrNotFound", err)
	}
	in.accept("m", "s")
	if err := in.Replay(ctx, Key("m"), "w1"); !errors.Is(err, idempotency.ErrNotDead) {
		t.Errorf("Replay of a waiting message = %v, want ErrNotDead", err)
	}
	c := in.taken("m")
	if err := in.Replay(ctx, Key("m"), "w1"); !errors.Is(err, idempotency.ErrNotDead) {
		t.Errorf("Replay of a running message = %v, want ErrNotDead", err)
	}
	in.bury(c)
	in.ok("Replay", in.Replay(ctx, Key("m"), "w1"))
	in.ok("Replay again", in.Replay(ctx, Key("m"), "w1"))
	c = in.taken("m")
	if c.Stored.Attempts != 1 || c.Stored.Cause != "" {
		t.Errorf("stored = %+v, want its first attempt", *c.Stored)
	}
	in.bury(c)
	in.ok("late Replay", in.Replay(ctx, Key("m"), "w1"))
	in.wantTaken()
	in.ok("Replay anew", in.Replay(ctx, Key("m"), "w2"))
	in.record(in.taken("m"), "done")
	for _, id := range []string{"w2", "w3"} {
		if err := in.Replay(ctx, Key("m"), id); !errors.Is(err, idempotency.ErrNotDead) {
			t.Errorf("Replay of a record = %v, want ErrNotDead", err)
		}
	}
}

func testReplayOrder(t *testing.T, in *inbox) {
	in.accept("m1", "s")
	in.accept("m2", "s")
	c := in.taken("m1")
	in.ok("Checkpoint", in.Checkpoint(t.Context(), c, []byte("reply")))
	in.bury(c)
	in.ok("Replay", in.Replay(t.Context(), Key("m1"), "w"))
	in.record(in.taken("m2"), "done")
	if c = in.taken("m1"); string(c.Stored.Reply) != "reply" {
		t.Errorf("reply = %q, want it kept", c.Stored.Reply)
	}
}

func testDrop(t *testing.T, in *inbox) {
	ctx := t.Context()
	drop := func(id string, owners idempotency.Owners, want error) {
		t.Helper()
		if err := in.Drop(ctx, Key(id), owners); !errors.Is(err, want) {
			t.Errorf("Drop(%s) = %v, want %v", id, err, want)
		}
	}
	drop("none", nil, idempotency.ErrNotFound)
	in.accept("waiting", "")
	drop("waiting", nil, nil)
	in.accept("dead", "")
	in.bury(in.taken("dead"))
	drop("dead", nil, nil)
	in.accept("running", "")
	c := in.taken("running")
	drop("running", nil, idempotency.ErrHeld)
	drop("running", abandoned(c.Token), nil)
	wantNotOwner(t, "late Checkpoint", in.Checkpoint(ctx, c, nil))
	mustRecord(t, in, mustWin(t, in, "recorded", "r.a"), "x")
	drop("recorded", nil, idempotency.ErrHeld)
	mustWin(t, in, "claimed", "r.b")
	drop("claimed", nil, idempotency.ErrHeld)
	for _, id := range []string{"waiting", "dead", "running"} {
		mustWin(t, in, id, "r."+id)
	}
	in.wantTaken()
}

func testAcceptHeld(t *testing.T, in *inbox) {
	a := stored("s", "m")
	a.Held, a.Attempts, a.Reply, a.Cause = true, 3, []byte("reply"), "agent"
	c := in.acceptAs("m", "r1.a", a, idempotency.Won).Claim
	if c.Stored == nil || c.Stored.Attempts != 3 {
		t.Fatalf("claim = %+v, want it with its message", c)
	}
	in.acceptAs("m", "r1.a", a, idempotency.Won)
	in.accept("m2", "s")
	in.wantTaken()
	in.ok("Renew", in.Renew(t.Context(), c))
	in.b.Advance(lease + look)
	got := in.wantTaken("m")[0]
	if got.Stored.Attempts != 4 || string(got.Stored.Reply) != "reply" || got.Stored.Cause != "agent" || !got.TakenOver {
		t.Errorf("taken %+v, want what the message brought, and one attempt more", *got.Stored)
	}
	in.record(got.Claim, "done")
	late := stored("", "late")
	late.After = 200 * time.Millisecond
	in.record(in.taken("m2"), "done")
	in.acceptAs("late", "a.l", late, idempotency.Won)
	in.wantTaken()
	in.b.Advance(250 * time.Millisecond)
	in.taken("late")
}

func testSettleStored(t *testing.T, in *inbox) {
	s, ok := in.Inbox.(idempotency.Settler)
	if !ok {
		t.Fatal("no Settler")
	}
	for _, id := range []string{"m1", "m2", "m3"} {
		in.accept(id, "s")
	}
	in.taken("m1")
	mustSettle(t, s, ran("m1", "elsewhere.1"), "answer", true)
	if got := mustReserve(t, in, "m1", request("r.b"), idempotency.Recorded); string(got.Outcome) != "answer" {
		t.Errorf("outcome = %q, want what was settled", got.Outcome)
	}
	in.b.Advance(lease + look)
	in.take(0, nil)
	c := in.eventually("m2")
	mustSettle(t, s, c, "second", false)
	in.b.Advance(lease + look)
	in.eventually("m3")
}

// eventually takes until there is something: what a settled message leaves
// behind is cleared by those who look.
func (in *inbox) eventually(id string) idempotency.Claim {
	in.t.Helper()
	for range 3 {
		if got := in.take(10, nil).Taken; len(got) > 0 {
			in.wantBodies(got, id)
			return got[0].Claim
		}
		in.b.Advance(look)
	}
	in.t.Fatalf("%s is never taken", id)
	return idempotency.Claim{}
}

func testListStored(t *testing.T, in *inbox) {
	for _, id := range []string{"dead", "recorded", "running"} {
		in.accept(id, "")
		in.b.Advance(5 * time.Millisecond)
	}
	got := in.wantTaken("dead", "recorded", "running")
	in.bury(got[0].Claim)
	in.record(got[1].Claim, "x")
	in.accept("waiting", "s")
	for id, want := range map[string]idempotency.State{
		"dead": idempotency.Dead, "recorded": idempotency.Recorded, "running": idempotency.InFlight, "waiting": idempotency.Waiting,
	} {
		e := in.entry(id)
		if e.State != want || e.Key != Key(id) || (e.Stored != nil) != (want != idempotency.Recorded) {
			t.Errorf("Get(%s) = %+v, want state %d", id, e, want)
		}
		if e.Stored != nil && (e.Lease != lease || e.TTL != ttl || string(e.Stored.Body) != id) {
			t.Errorf("Get(%s) = %+v, %+v; want all of the message", id, e, e.Stored)
		}
		page, err := in.lister().List(t.Context(), idempotency.ListRequest{State: want, Limit: 10})
		if err != nil || len(page.Entries) != 1 || page.Entries[0].Key != Key(id) {
			t.Errorf("List(state %d) = %+v, %v; want %s alone", want, page, err, id)
		}
	}
	page, err := in.lister().List(t.Context(), idempotency.ListRequest{Limit: 10})
	if err != nil || len(page.Entries) != 4 {
		t.Errorf("List = %d entries, %v; want 4", len(page.Entries), err)
	}
}

func testCounts(t *testing.T, in *inbox) {
	want := func(stored, due int) {
		t.Helper()
		if n, err := in.Count(t.Context()); err != nil || n != (idempotency.Counts{Stored: stored, Due: due}) {
			t.Errorf("Count = %+v, %v; want %d stored, %d due", n, err, stored, due)
		}
	}
	want(0, 0)
	in.accept("m1", "")
	in.accept("m2", "")
	want(2, 2)
	got := in.take(10, nil).Taken
	want(2, 0)
	in.record(got[0].Claim, "x")
	in.retry(got[1].Claim, time.Hour)
	want(1, 0)
	in.ok("Drop", in.Drop(t.Context(), got[1].Key, nil))
	want(0, 0)
}

func testAwkwardBodies(t *testing.T, in *inbox) {
	key := idempotency.EncodeKey(message.Key{Platform: "{a}", Account: "|", Channel: ":%", ID: "\x00\xff"})
	a := stored("se|ssion:{x}\x00\xff", "\x00\xff|{}")
	if _, err := in.Accept(t.Context(), key, request("a.1"), a); err != nil {
		t.Fatal(err)
	}
	got := in.take(1, nil).Taken
	if len(got) != 1 || got[0].Key != key || !reflect.DeepEqual(got[0].Stored.Body, a.Body) || got[0].Stored.Session != a.Session {
		t.Fatalf("taken %+v", got)
	}
	in.record(got[0].Claim, "x")
	in.acceptAs("empty", "a.2", stored("", ""), idempotency.Won)
	in.wantTaken("")
}

func testKeep(t *testing.T, in *inbox) {
	a := stored("s", "m1")
	a.Keep = 1500 * time.Millisecond
	in.acceptAs("m1", "a.1", a, idempotency.Won)
	in.bury(in.taken("m1"))
	a.Body = []byte("m2")
	in.acceptAs("m2", "a.2", a, idempotency.Won)
	in.b.Advance(1600 * time.Millisecond)
	in.wantTaken()
	in.accept("m3", "s")
	in.eventually("m3")
	mustWin(t, in, "m1", "r.1")
	mustWin(t, in, "m2", "r.2")
}

func testInboxReopen(t *testing.T, in *inbox) {
	if in.b.Reopen == nil {
		t.Skip("nothing survives a restart of this store, as it says")
	}
	in.accept("m1", "s")
	in.accept("m2", "s")
	in.accept("dead", "")
	for _, m := range in.take(10, nil).Taken {
		if string(m.Stored.Body) == "dead" {
			in.bury(m.Claim)
			continue
		}
		in.ok("Checkpoint", in.Checkpoint(t.Context(), m.Claim, []byte("reply")))
		in.retry(m.Claim, 0)
	}
	in.Inbox = in.b.Reopen().(idempotency.Inbox)
	c := in.taken("m1")
	if string(c.Stored.Reply) != "reply" || c.Stored.Attempts != 2 {
		t.Errorf("stored = %+v after a restart", *c.Stored)
	}
	in.record(c, "done")
	in.taken("m2")
	if e := in.entry("dead"); e.State != idempotency.Dead {
		t.Errorf("entry = %+v after a restart, want it dead", e)
	}
}

func testInboxDone(t *testing.T, in *inbox) {
	in.accept("m", "")
	c := in.taken("m")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, accepted := in.Accept(ctx, Key("n"), request("a.n"), stored("", "n"))
	_, taken := in.Take(ctx, idempotency.TakeRequest{Tokens: []string{"t.x"}, Look: look})
	for what, err := range map[string]error{
		"Accept": accepted, "Take": taken,
		"Checkpoint": in.Checkpoint(ctx, c, []byte("x")),
		"Retry":      in.Retry(ctx, c, idempotency.Retry{}),
		"Bury":       in.Bury(ctx, c, "x"),
		"Replay":     in.Replay(ctx, Key("m"), "x"),
		"Drop":       in.Drop(ctx, Key("m"), nil),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want context.Canceled", what, err)
		}
	}
	if e := in.entry("m"); e.State != idempotency.InFlight || e.Stored.Reply != nil {
		t.Errorf("entry = %+v, %+v; want it untouched", e, e.Stored)
	}
	mustWin(t, in, "n", "r.n")
}
