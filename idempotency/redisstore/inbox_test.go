package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redistest"
)

// look is a Look so short that no test waits for one.
const look = time.Millisecond

func oneMessage(session, body string) idempotency.Acceptance {
	return idempotency.Acceptance{Stored: idempotency.Stored{Session: session, Body: []byte(body), OrderWait: time.Minute, Keep: time.Hour}}
}

func mustAccept(t *testing.T, s *redisstore.Store, id, session string) {
	t.Helper()
	mustAcceptAs(t, s, id, oneMessage(session, id))
}

func mustAcceptAs(t *testing.T, s *redisstore.Store, id string, m idempotency.Acceptance) {
	t.Helper()
	res, err := s.Accept(t.Context(), key(id), request("r1."+id), m)
	if err != nil || res.State != idempotency.Won {
		t.Fatalf("Accept(%s) = state %d, %v", id, res.State, err)
	}
}

// mustTake takes with n tokens of a replica.
func mustTake(t *testing.T, s *redisstore.Store, replica string, n int, owners idempotency.Owners) idempotency.Taking {
	t.Helper()
	req := idempotency.TakeRequest{Look: look, Owners: owners}
	for range n {
		req.Tokens = append(req.Tokens, idempotency.NewToken(replica))
	}
	taking, err := s.Take(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return taking
}

// mustTakeOne takes the one message that there is to take.
func mustTakeOne(t *testing.T, s *redisstore.Store, replica, id string) idempotency.Taken {
	t.Helper()
	taken := mustTake(t, s, replica, 3, nil).Taken
	if len(taken) != 1 || taken[0].Key != key(id) {
		t.Fatalf("taken %+v, want %s", taken, id)
	}
	return taken[0]
}

func numberOf(t *testing.T, c redis.UniversalClient, id, session string) float64 {
	t.Helper()
	number, err := c.ZScore(t.Context(), "test:hookqueue:"+session, string(key(id))).Result()
	if err != nil {
		t.Fatal(err)
	}
	return number
}

func TestALostAnswerOfAcceptIsAWinWithTheSameNumber(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy, admin := redistest.NewProxy(t, server.Addr()), server.Client()
	s := newStore(t, newClient(t, proxy.Addr()))
	if err := s.CheckInbox(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.CutReply(string(key("m")))
	mustAccept(t, s, "m", "s")
	number := numberOf(t, admin, "m", "s")
	mustAccept(t, s, "n", "s")
	mustAccept(t, s, "m", "s")
	if got := numberOf(t, admin, "m", "s"); got != number {
		t.Errorf("number %f after a repeated Accept, want %f", got, number)
	}
	if got := numberOf(t, admin, "n", "s"); got <= number {
		t.Errorf("number %f of the later message, want more than %f", got, number)
	}
	proxy.CutReply(string(key("m")))
	if got := mustTakeOne(t, s, "r2", "m"); got.Stored.Attempts != 1 || got.TakenOver {
		t.Errorf("taken %+v after a lost answer, want the first attempt", got)
	}
}

// A clock that was set back changes no order.
func TestNumbersRiseThoughTheClockGoesBack(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newStore(t, newClient(t, m.Addr()))
	now := time.Now()
	for i := range 3 {
		m.SetTime(now.Add(-time.Duration(i) * time.Second))
		mustAccept(t, s, fmt.Sprint("m", i), "s")
	}
	m.SetTime(now)
	for i := range 3 {
		c := mustTakeOne(t, s, "r1", fmt.Sprint("m", i))
		if err := s.Record(t.Context(), c.Claim, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStoredMessagesSurviveAServerThatForgetsItsScripts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, admin := newStore(t, newClient(t, server.Addr())), server.Client()
	flush := func() {
		t.Helper()
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do := func(what string, call func() error) {
		t.Helper()
		flush()
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx := t.Context()
	mustAccept(t, s, "m", "s")
	flush()
	mustAccept(t, s, "n", "")
	flush()
	taken := mustTake(t, s, "r1", 5, nil).Taken
	if len(taken) != 2 {
		t.Fatalf("%d taken, want 2", len(taken))
	}
	c := taken[0].Claim
	do("renew", func() error { return s.Renew(ctx, c) })
	do("checkpoint", func() error { return s.Checkpoint(ctx, c, []byte("x")) })
	do("bury", func() error { return s.Bury(ctx, c, "x") })
	do("replay", func() error { return s.Replay(ctx, c.Key, "w") })
	do("drop", func() error { return s.Drop(ctx, c.Key, nil) })
	do("retry", func() error { return s.Retry(ctx, taken[1].Claim, idempotency.Retry{}) })
	flush()
	c = mustTakeOne(t, s, "r1", "n").Claim
	do("record", func() error { return s.Record(ctx, c, nil) })
	do("count", func() error {
		if n, err := s.Count(ctx); n.Stored != 0 || err != nil {
			return fmt.Errorf("%+v stored, %w", n, err)
		}
		return nil
	})
}

func TestEveryKeyOfAStoredMessageExpires(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, look := newStore(t, newClient(t, server.Addr())), server.Client()
	ctx := t.Context()
	for _, id := range []string{"run", "dead", "done", "retried", "dropped", "replayed", "released", "settled", "behind"} {
		mustAccept(t, s, id, "s."+strings.TrimSuffix(id, "ind"))
	}
	mustAccept(t, s, "plain", "")
	mustAccept(t, s, "second", "s.run")
	claims := make(map[string]idempotency.Claim)
	for _, m := range mustTake(t, s, "r1", 20, nil).Taken {
		claims[string(m.Stored.Body)] = m.Claim
	}
	_, settled := s.Settle(ctx, idempotency.Claim{Key: key("settled"), Token: "r9.x", TTL: window}, nil)
	for _, err := range []error{
		settled, s.Renew(ctx, claims["run"]), s.Checkpoint(ctx, claims["run"], []byte("x")), s.Bury(ctx, claims["dead"], "x"),
		s.Record(ctx, claims["done"], nil), s.Retry(ctx, claims["retried"], idempotency.Retry{After: time.Hour}),
		s.Bury(ctx, claims["replayed"], "x"), s.Replay(ctx, key("replayed"), "w"), s.Release(ctx, claims["released"]),
		s.Retry(ctx, claims["dropped"], idempotency.Retry{}), s.Drop(ctx, key("dropped"), nil), s.CheckInbox(ctx),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	keys, err := look.Keys(ctx, "*").Result()
	if err != nil || len(keys) < 20 {
		t.Fatalf("keys = %q, %v; want all of 9 messages", keys, err)
	}
	for _, k := range keys {
		if !strings.HasPrefix(k, "test:") || pttl(t, look, k) <= 0 {
			t.Errorf("key %s lives for %s; want the prefix and a time", k, pttl(t, look, k))
		}
	}
	if got := pttl(t, look, "test:hookmsg"); got < time.Hour {
		t.Errorf("the index lives for %s, less than its messages", got)
	}
}

// An index that has long been there is not cut short by a message that is kept
// for less.
func TestTheIndexOutlivesEveryMessage(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s := newStore(t, c)
	short := oneMessage("s", "short")
	short.Keep = time.Second
	mustAccept(t, s, "long", "s")
	mustAcceptAs(t, s, "short", short)
	for _, k := range []string{"test:hookmsg", "test:hookqueue:s"} {
		if got := pttl(t, c, k); got < time.Hour {
			t.Errorf("%s lives for %s, want the hour of the first message", k, got)
		}
	}
}

func TestAHeadWhoseTimeIsOverBlocksNobody(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	clock := idempotencytest.NewClock()
	m.SetTime(clock.Now())
	s := newStoreAt(t, newClient(t, m.Addr()), clock.Now)
	short := oneMessage("s", "short")
	short.Keep = time.Second
	for i := range 40 { // more than one Take has rounds for
		mustAcceptAs(t, s, fmt.Sprint("short", i), short)
	}
	c := mustTakeOne(t, s, "r1", "short0").Claim
	if err := s.Retry(t.Context(), c, idempotency.Retry{After: time.Hour}); err != nil {
		t.Fatal(err)
	}
	mustAccept(t, s, "long", "s")
	m.FastForward(2 * time.Second)
	clock.Advance(2 * time.Second)
	m.SetTime(clock.Now())
	// One that had the key before leaves nothing behind.
	mustAcceptAs(t, s, "short1", short)
	var taken []idempotency.Taken
	for range 5 {
		taken = append(taken, mustTake(t, s, "r1", 2, nil).Taken...)
	}
	if len(taken) != 1 || taken[0].Key != key("long") {
		t.Fatalf("taken %+v, want what is not over", taken)
	}
	if err := s.Record(t.Context(), taken[0].Claim, nil); err != nil {
		t.Fatal(err)
	}
	mustTakeOne(t, s, "r1", "short1")
	if n, err := s.Count(t.Context()); n.Stored != 1 || err != nil {
		t.Errorf("Count = %+v, %v; want the one that is left", n, err)
	}
}

func TestTwoReplicasTakeEachOfAThousandMessagesOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const messages = 1000
	var stores [2]*redisstore.Store
	for i := range stores {
		stores[i] = newStore(t, newClient(t, server.Addr()))
		mustBeat(t, stores[i], fmt.Sprint("r", i))
	}
	for i := range messages {
		mustAccept(t, stores[0], fmt.Sprint(i), fmt.Sprint("s", i%2*i))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	times := make(map[idempotency.Key]int)
	for i, s := range stores {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for len(times) < messages && t.Context().Err() == nil && !t.Failed() {
				mu.Unlock()
				taken := mustTake(t, s, fmt.Sprint("r", i), 20, idempotencytest.Owners{TakeOver: true}).Taken
				for _, m := range taken {
					if err := s.Record(t.Context(), m.Claim, nil); err != nil {
						t.Error(err)
					}
				}
				mu.Lock()
				for _, m := range taken {
					times[m.Key]++
				}
			}
		})
	}
	wg.Wait()
	for k, n := range times {
		if n != 1 {
			t.Errorf("%s was taken %d times", k, n)
		}
	}
}

func TestAMessageOfADeadReplicaIsTakenOver(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	owner, s, admin := newStore(t, newClient(t, server.Addr())), newStore(t, newClient(t, server.Addr())), server.Client()
	owners := idempotencytest.Owners{TakeOver: true}
	mustBeat(t, owner, "r1")
	mustAccept(t, s, "m", "s")
	stale := mustTakeOne(t, owner, "r1", "m").Claim
	none := func(why string, owners idempotency.Owners) {
		t.Helper()
		time.Sleep(2 * look)
		if got := mustTake(t, s, "r2", 3, owners); len(got.Taken) > 0 {
			t.Fatalf("taken %+v although %s", got, why)
		}
		if err := s.Drop(t.Context(), key("m"), owners); !errors.Is(err, idempotency.ErrHeld) {
			t.Fatalf("Drop = %v although %s, want ErrHeld", err, why)
		}
	}
	none("the caller has no heartbeat", owners)
	mustBeat(t, s, "r2")
	none("the owner lives", owners)
	if err := admin.Del(t.Context(), "test:replica:r1").Err(); err != nil {
		t.Fatal(err)
	}
	none("the caller may not", nil)
	if err := admin.PExpire(t.Context(), "test:replica:r2", beatLife/2).Err(); err != nil {
		t.Fatal(err)
	}
	none("the caller's heartbeat is stale", owners)
	mustBeat(t, s, "r2")
	time.Sleep(2 * look)
	got := mustTake(t, s, "r2", 3, owners).Taken
	if len(got) != 1 || !got[0].TakenOver || got[0].Stored.Attempts != 2 {
		t.Fatalf("taken %+v, want the dead replica's message", got)
	}
	wantNotOwner(t, owner, stale)
	if err := s.Record(t.Context(), got[0].Claim, nil); err != nil {
		t.Error(err)
	}
}

// A claim that comes out of a journal does not know of its message.
func TestAClaimThatDoesNotKnowItsMessageIsSettledWithIt(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s := newStore(t, c)
	for what, call := range map[string]func(idempotency.Claim) error{
		"record":  func(c idempotency.Claim) error { return s.Record(t.Context(), c, nil) },
		"release": func(c idempotency.Claim) error { return s.Release(t.Context(), c) },
		"bury":    func(c idempotency.Claim) error { return s.Bury(t.Context(), c, "x") },
		"settle": func(c idempotency.Claim) error {
			slipped, err := s.Settle(t.Context(), c, nil)
			if slipped {
				t.Error("its own message slipped")
			}
			return err
		},
	} {
		mustAccept(t, s, what, what)
		mustAccept(t, s, what+".next", what)
		held := mustTakeOne(t, s, "r1", what).Claim
		held.Stored = nil
		if err := errors.Join(s.Renew(t.Context(), held), call(held)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		mustTakeOne(t, s, "r1", what+".next")
	}
}

func TestAPlainClaimTakesOneCommandPerCall(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s := newStore(t, c)
	if err := s.CheckScripts(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent := 0
	c.AddHook(before(func(cmds []redis.Cmder) { sent += len(cmds) }))
	held := mustWin(t, s, "m", "r1.a")
	for _, err := range []error{s.Renew(t.Context(), held), s.Record(t.Context(), held, nil), s.Release(t.Context(), mustWin(t, s, "n", "r1.b"))} {
		if err != nil {
			t.Error(err)
		}
	}
	if sent != 5 {
		t.Errorf("%d commands for 5 calls", sent)
	}
}

func TestStoredMessagesNeedScripts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, scriptlessUser...)
	whole, s := newStore(t, newClient(t, server.Addr())), newStore(t, userClient(t, server))
	mustAccept(t, whole, "m", "s")
	held := mustTakeOne(t, whole, "r1", "m").Claim
	_, accepted := s.Accept(t.Context(), key("n"), request("r1.n"), oneMessage("", "n"))
	_, taken := s.Take(t.Context(), idempotency.TakeRequest{Tokens: []string{"r1.t"}})
	_, counted := s.Count(t.Context())
	unaware := held
	unaware.Stored = nil
	_, settled := s.Settle(t.Context(), unaware, nil)
	for what, err := range map[string]error{
		"Accept": accepted, "Take": taken, "Count": counted, "Settle": settled, "Drop": s.Drop(t.Context(), key("m"), nil),
		"Record": s.Record(t.Context(), held, nil), "Record unaware": s.Record(t.Context(), unaware, nil),
		"Renew unaware": s.Renew(t.Context(), unaware), "Release unaware": s.Release(t.Context(), unaware),
		"Replay": s.Replay(t.Context(), key("m"), "w"), "CheckInbox": s.CheckInbox(t.Context()),
	} {
		if err == nil || !strings.Contains(err.Error(), "stored messages need scripts") {
			t.Errorf("%s = %v, want that it needs scripts", what, err)
		}
	}
	if r := mustReserve(t, s, "m", request("r2.b"), idempotency.InFlight); !r.Stored {
		t.Error("a stored message is met as another claim")
	}
	if err := whole.Record(t.Context(), held, nil); err != nil {
		t.Errorf("the claim was changed: %v", err)
	}
}
