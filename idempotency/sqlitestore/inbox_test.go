package sqlitestore_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

func acceptance(session, body string) idempotency.Acceptance {
	return idempotency.Acceptance{Stored: idempotency.Stored{
		Session: session, Body: []byte(body), OrderWait: time.Minute, Keep: 24 * time.Hour,
	}}
}

// mustAccept stores message id, whose body is its id.
func mustAccept(t testing.TB, s *sqlitestore.Store, id, session string) {
	t.Helper()
	got, err := s.Accept(t.Context(), idempotencytest.Key(id), request("acceptor."+id), acceptance(session, id))
	if err != nil || got.State != idempotency.Won {
		t.Fatalf("Accept(%s) = state %d, %v", id, got.State, err)
	}
}

// mustTake takes with room for one, looking again after a millisecond.
func mustTake(t testing.TB, s *sqlitestore.Store, token string, owners idempotency.Owners) []idempotency.Taken {
	t.Helper()
	got, err := s.Take(t.Context(), idempotency.TakeRequest{Tokens: []string{token}, Look: time.Millisecond, Owners: owners})
	if err != nil {
		t.Fatal(err)
	}
	return got.Taken
}

// wantTaken takes the one message that there is to take.
func wantTaken(t *testing.T, s *sqlitestore.Store, token, id string, owners idempotency.Owners) idempotency.Taken {
	t.Helper()
	got := mustTake(t, s, token, owners)
	if len(got) != 1 || got[0].Key != idempotencytest.Key(id) || string(got[0].Stored.Body) != id {
		t.Fatalf("taken by %s: %+v, want %s", token, got, id)
	}
	return got[0]
}

func TestTwoStoresOnOneFileTakeEachMessageOnceAndInOrder(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	stores := []*sqlitestore.Store{mustOpen(t, config(t, path)), mustOpen(t, config(t, path))}
	const sessions, each = 5, 20
	for i := range sessions * each {
		mustAccept(t, stores[i%2], fmt.Sprint(i), fmt.Sprint("session ", i%sessions))
	}
	var mu sync.Mutex
	var order []string // of all sessions
	var wg sync.WaitGroup
	for taker := range 4 {
		wg.Go(func() {
			s := stores[taker%2]
			for n := 0; ; n++ {
				mu.Lock()
				enough := len(order) >= sessions*each
				mu.Unlock()
				if enough || n == 10_000 {
					return
				}
				got, err := s.Take(t.Context(), idempotency.TakeRequest{Tokens: []string{fmt.Sprintf("r%d.%d", taker, n)}, Look: time.Second})
				if err != nil {
					t.Error(err)
					return
				}
				for _, m := range got.Taken {
					mu.Lock()
					order = append(order, string(m.Stored.Body))
					mu.Unlock()
					if err := s.Record(t.Context(), m.Claim, nil); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	last := make(map[int]int) // by session
	for _, body := range order {
		var i int
		if _, err := fmt.Sscan(body, &i); err != nil {
			t.Fatal(err)
		}
		if n, later := last[i%sessions]; later && n >= i {
			t.Errorf("%d was taken after %d of its session", i, n)
		}
		last[i%sessions] = i
	}
	if len(order) != sessions*each {
		t.Errorf("%d messages were taken, want each of %d once", len(order), sessions*each)
	}
}

func TestTheMessageOfACrashedOwnerIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	tell, kill := writer(t, path)
	s := replica(t, path, "live")
	mustAccept(t, s, "m", "s")
	mustAccept(t, s, "next", "s")
	tell("take")
	leave := idempotencytest.Owners{TakeOver: true}
	wantNone := func(why string, s *sqlitestore.Store, owners idempotency.Owners) {
		t.Helper()
		time.Sleep(2 * time.Millisecond) // so that the file's clock says to look again
		if got := mustTake(t, s, "live.none", owners); len(got) != 0 {
			t.Fatalf("taken although %s: %+v", why, got)
		}
	}
	wantNone("the owner lives", s, leave)
	kill()
	wantNone("there is no leave", s, nil)
	time.Sleep(2 * time.Millisecond)
	got := wantTaken(t, s, "live.taker", "m", leave)
	if !got.TakenOver || got.Stored.Attempts != 2 {
		t.Errorf("taken %+v, want the second attempt, taken over", got)
	}
	mustRecord(t, s, got.Claim, "")
	wantTaken(t, s, "live.next", "next", nil)
}

// The better store decides about claims of the outage, but a message that only
// this file has is not its to forget.
func TestAShadowKeepsTheStoredMessagesOfDeadProcesses(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now, cfg.Shadow, cfg.Replica = c.Now, true, "first"
	first, err := sqlitestore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	mustAccept(t, first, "m", "")
	wantTaken(t, first, "first.taker", "m", nil)
	mustReserve(t, first, "claim", "first.claim", idempotency.Won)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Replica = "second"
	second := mustOpen(t, cfg)
	mustReserve(t, second, "claim", "second.claim", idempotency.Won)
	c.Advance(time.Second)
	got := wantTaken(t, second, "second.taker", "m", idempotencytest.Owners{TakeOver: true})
	if !got.TakenOver {
		t.Error("the message counts as never taken before")
	}
	mustRecord(t, second, got.Claim, "answer")
	wantBacklog(t, second, 1)
}

func TestPruningForgetsMessagesAndMovesTheirSessionsOn(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now, cfg.NoUpkeep = c.Now, true
	s := mustOpen(t, cfg)
	short := acceptance("s", "short")
	short.Keep = time.Minute
	for _, id := range []string{"first", "second"} {
		if _, err := s.Accept(t.Context(), idempotencytest.Key(id), request("a."+id), short); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Copy(t.Context(), idempotencytest.Key("copy"), request("a.copy"), short.Stored); err != nil {
		t.Fatal(err)
	}
	mustAccept(t, s, "third", "s")
	c.Advance(2 * time.Minute)
	if n, err := s.Prune(t.Context()); n != 3 || err != nil {
		t.Errorf("pruned %d rows, %v; want those of three messages", n, err)
	}
	db := mustOpenSQL(t, cfg.Path)
	for _, table := range []string{"claims", "messages"} {
		if n := mustCount(t, db, "SELECT count(*) FROM "+table); n != 1 {
			t.Errorf("%d rows are left in %s, want one", n, table)
		}
	}
	wantTaken(t, s, "r.taker", "third", nil)
}

// What is not pruned yet is found by those who come across it.
func TestAMessageWhoseTimeIsOverIsInNobodysWay(t *testing.T) {
	t.Parallel()
	for name, come := range map[string]func(t *testing.T, s *sqlitestore.Store, key idempotency.Key){
		"reserve": func(t *testing.T, s *sqlitestore.Store, _ idempotency.Key) {
			mustReserve(t, s, "m", "r.late", idempotency.Won)
		},
		"accept": func(t *testing.T, s *sqlitestore.Store, _ idempotency.Key) { mustAccept(t, s, "m", "s") },
		"copy": func(t *testing.T, s *sqlitestore.Store, key idempotency.Key) {
			if err := s.Copy(t.Context(), key, request("r.copy"), acceptance("s", "m").Stored); err != nil {
				t.Error(err)
			}
		},
		"settle": func(t *testing.T, s *sqlitestore.Store, key idempotency.Key) {
			if slipped, err := s.Settle(t.Context(), idempotency.Claim{Key: key, Token: "r.late", TTL: time.Hour}, nil); slipped || err != nil {
				t.Errorf("Settle = %t, %v", slipped, err)
			}
		},
		"record": func(t *testing.T, s *sqlitestore.Store, key idempotency.Key) {
			mustRecord(t, s, idempotency.Claim{Key: key, Token: "r.late", TTL: time.Hour, Confirmed: time.Now()}, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := idempotencytest.NewClock()
			cfg := config(t, tempPath(t))
			cfg.Now, cfg.NoUpkeep = c.Now, true
			s := mustOpen(t, cfg)
			short := acceptance("s", "m")
			short.Keep, short.After = time.Minute, time.Hour
			key := idempotencytest.Key("m")
			if _, err := s.Accept(t.Context(), key, request("a.m"), short); err != nil {
				t.Fatal(err)
			}
			mustAccept(t, s, "behind", "s")
			c.Advance(2 * time.Minute)
			come(t, s, key)
			wantTaken(t, s, "r.taker", "behind", nil)
			if n := mustCount(t, mustOpenSQL(t, cfg.Path), "SELECT count(*) FROM messages m LEFT JOIN claims c USING (number) WHERE c.id IS NOT m.id"); n != 0 {
				t.Errorf("%d messages are left without a claim", n)
			}
		})
	}
}

func TestB78_a_message_that_a_full_disk_has_no_room_for(t *testing.T) {
	t.Parallel()
	path := tempPath(t)
	s := mustOpen(t, config(t, path))
	mustAccept(t, s, "small", "s")
	if err := s.LimitPages(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	key := idempotencytest.Key("large")
	_, err := s.Accept(t.Context(), key, request("a.large"), acceptance("s", string(make([]byte, 200<<10))))
	if class := sqlitedb.Classify(err); class != "full" {
		t.Errorf("Accept = class %q, %v", class, err)
	}
	if _, err := s.Get(t.Context(), key); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Get = %v, want that nothing was stored", err)
	}
	db := mustOpenSQL(t, path)
	for _, table := range []string{"claims", "messages"} {
		if n := mustCount(t, db, "SELECT count(*) FROM "+table); n != 1 {
			t.Errorf("%d rows in %s, want the small message's", n, table)
		}
	}
	mustAccept(t, s, "large", "s") // with a body that there is room for
	mustRecord(t, s, wantTaken(t, s, "r.a", "small", nil).Claim, "")
	wantTaken(t, s, "r.b", "large", nil)
}

func TestAnEmptyReplyIsAReply(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, config(t, tempPath(t)))
	mustAccept(t, s, "m", "")
	claim := wantTaken(t, s, "r.a", "m", nil).Claim
	for _, reply := range [][]byte{{}, nil} {
		if err := s.Checkpoint(t.Context(), claim, reply); err != nil {
			t.Fatal(err)
		}
		e, err := s.Get(t.Context(), claim.Key)
		if err != nil || (e.Stored.Reply == nil) != (reply == nil) {
			t.Errorf("reply = %#v, %v; want %#v", e.Stored.Reply, err, reply)
		}
		if err := s.Retry(t.Context(), claim, idempotency.Retry{}); err != nil {
			t.Fatal(err)
		}
		claim = wantTaken(t, s, fmt.Sprintf("r.%t", reply == nil), "m", nil).Claim
		if (claim.Stored.Reply == nil) != (reply == nil) {
			t.Errorf("taken with reply %#v, want %#v", claim.Stored.Reply, reply)
		}
	}
}

// One Take looks at a bounded number of messages, and the ones after it at the
// rest.
func TestManyRunningMessagesKeepNoneWaiting(t *testing.T) {
	t.Parallel()
	c := idempotencytest.NewClock()
	cfg := config(t, tempPath(t))
	cfg.Now = c.Now
	s := mustOpen(t, cfg)
	const many = 600
	var wg sync.WaitGroup
	for i := range many {
		held := acceptance("", "held")
		held.Held = true
		wg.Go(func() {
			if _, err := s.Accept(t.Context(), idempotencytest.Key(fmt.Sprint(i)), request(fmt.Sprintf("r.%d", i)), held); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c.Advance(time.Millisecond)
	mustAccept(t, s, "m", "")
	takes := 0
	for len(mustTake(t, s, "r.taker", nil)) == 0 {
		if takes++; takes > many {
			t.Fatal("the waiting message is never taken")
		}
	}
	if takes == 0 || takes > 3 {
		t.Errorf("taken after %d Takes, want a few", takes)
	}
}
