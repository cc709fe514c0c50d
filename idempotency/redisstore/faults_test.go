package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/message"
)

const (
	lease  = 15 * time.Minute
	window = 24 * time.Hour
)

func key(id string) idempotency.Key {
	return idempotency.EncodeKey(message.Key{Platform: "hook", Channel: "room", ID: id})
}

func request(token string) idempotency.Request {
	return idempotency.Request{Token: token, Lease: lease, TTL: window}
}

func mustReserve(t *testing.T, s *redisstore.Store, id string, req idempotency.Request, want idempotency.State) idempotency.Reservation {
	t.Helper()
	r, err := s.Reserve(t.Context(), key(id), req)
	if err != nil {
		t.Fatal(err)
	}
	if r.State != want {
		t.Fatalf("Reserve(%s by %s) = state %d, want %d", id, req.Token, r.State, want)
	}
	return r
}

func mustWin(t *testing.T, s *redisstore.Store, id, token string) idempotency.Claim {
	t.Helper()
	return mustReserve(t, s, id, request(token), idempotency.Won).Claim
}

func pttl(t *testing.T, c redis.UniversalClient, key string) time.Duration {
	t.Helper()
	d, err := c.PTTL(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestB14_ManyReplicasAskAtOnceAndOneWinsEachRound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := [2]*redisstore.Store{newStore(t, newClient(t, server.Addr())), newStore(t, newClient(t, server.Addr()))}
	for round := range 100 {
		var winners atomic.Int32
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				r, err := stores[i%2].Reserve(t.Context(), key(fmt.Sprint(round)), request(fmt.Sprintf("r%d.%d", i%2, i)))
				if err != nil {
					t.Error(err)
				}
				if r.State == idempotency.Won {
					winners.Add(1)
				}
			})
		}
		wg.Wait()
		if got := winners.Load(); got != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, got)
		}
	}
}

func TestB28_AClaimInFlightLivesForItsLeaseAndARecordForItsWindow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, look := newStore(t, newClient(t, server.Addr())), server.Client()

	c := mustWin(t, s, "m", "r1.a")
	if got := pttl(t, look, "test:hookidem:"+string(c.Key)); got <= lease-time.Minute || got > lease {
		t.Errorf("PTTL in flight = %s, want the lease of %s", got, lease)
	}
	if err := s.Record(t.Context(), c, []byte("answer")); err != nil {
		t.Fatal(err)
	}
	if got := pttl(t, look, "test:hookidem:"+string(c.Key)); got <= window-time.Minute || got > window {
		t.Errorf("PTTL of the record = %s, want the window of %s", got, window)
	}

	short := request("r1.b")
	short.Lease = 200 * time.Millisecond
	mustReserve(t, s, "killed", short, idempotency.Won)
	if r := mustReserve(t, s, "killed", request("r2.c"), idempotency.InFlight); r.RetryAfter <= 0 || r.RetryAfter > short.Lease {
		t.Errorf("RetryAfter = %s, want within the holder's lease of %s", r.RetryAfter, short.Lease)
	}
	time.Sleep(short.Lease + 50*time.Millisecond)
	mustWin(t, s, "killed", "r2.d")
}

func TestB31_ALostAnswerIsAWinAndNoDuplicate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := newStore(t, newClient(t, proxy.Addr()))
	mustWin(t, s, "warm", "r1.warm")

	proxy.CutReply(string(key("m")))
	c := mustWin(t, s, "m", "r1.a")
	mustReserve(t, s, "m", request("r2.b"), idempotency.InFlight)
	if err := s.Record(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}

	t.Run("of a record, a renewal and a release too", func(t *testing.T) {
		c := mustWin(t, s, "n", "r1.c")
		proxy.CutReply(string(c.Key))
		if err := s.Renew(t.Context(), c); err != nil {
			t.Error(err)
		}
		proxy.CutReply(string(c.Key))
		if err := s.Record(t.Context(), c, []byte("once")); err != nil {
			t.Error(err)
		}
		c = mustWin(t, s, "o", "r1.d")
		proxy.CutReply(string(c.Key))
		if err := s.Release(t.Context(), c); err != nil {
			t.Error(err)
		}
	})
}

func TestB51_KeysWithColonsAndBracesStayApartOnTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newStoreOf(t, newClient(t, server.Addr()), "test:")
	keys := []message.Key{
		{Channel: "a:b", ID: "c"}, {Channel: "a", ID: "b:c"}, {Channel: "a"}, {ID: "a"}, {Channel: "{x}", ID: "y"},
		{Channel: "x", ID: "{y}"}, {ID: "a|b"}, {ID: "a%7Cb"}, {ID: "a\x00b"}, {ID: "ab"}, {ID: strings.Repeat("x", 600)}, {ID: strings.Repeat("x", 601)},
	}
	for i, k := range keys {
		r, err := s.Reserve(t.Context(), idempotency.EncodeKey(k), request(fmt.Sprintf("r1.%d", i)))
		if err != nil || r.State != idempotency.Won {
			t.Errorf("Reserve(%+v) = state %d, %v; want its own claim", k, r.State, err)
		}
	}
	stored, err := server.Client().Keys(t.Context(), "test:hookidem:*").Result()
	if err != nil || len(stored) != len(keys) {
		t.Errorf("%d keys on the server, %v; want %d", len(stored), err, len(keys))
	}
}

func TestB62_AServerThatForgetsItsScriptsIsGivenThemAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, admin := newStore(t, newClient(t, server.Addr())), server.Client()
	flush := func() {
		t.Helper()
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("one caller", func(t *testing.T) {
		c := mustWin(t, s, "m", "r1.a")
		for range 2 {
			flush()
			if err := s.Renew(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
		flush()
		if err := s.Record(t.Context(), c, []byte("once")); err != nil {
			t.Error(err)
		}
		mustReserve(t, s, "m", request("r2.b"), idempotency.Recorded)
		c = mustWin(t, s, "n", "r1.c")
		flush()
		if err := s.Release(t.Context(), c); err != nil {
			t.Error(err)
		}
		flush()
		if slipped, err := s.Settle(t.Context(), c, []byte("once")); slipped || err != nil {
			t.Errorf("Settle = slipped %t, %v", slipped, err)
		}
		mustWin(t, s, "o", "r3.d")
		mustBeat(t, s, "r1")
		flush()
		mustReserve(t, s, "o", taking("r1.e"), idempotency.Won)
	})
	t.Run("many callers in shared round trips", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				id := fmt.Sprint("shared", i)
				r, err := s.Reserve(t.Context(), key(id), request("r1."+id))
				if err != nil || r.State != idempotency.Won {
					t.Errorf("Reserve(%s) = state %d, %v", id, r.State, err)
					return
				}
				for range 20 {
					if err := s.Renew(t.Context(), r.Claim); err != nil {
						t.Error(err)
					}
				}
				if err := s.Record(t.Context(), r.Claim, nil); err != nil {
					t.Error(err)
				}
			})
		}
		for range 20 {
			flush()
		}
		wg.Wait()
	})
}

func TestB65_ASlowServerCostsAClaimItsBudgetAndNoMore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const budget, slack = 200 * time.Millisecond, 800 * time.Millisecond
	claim := func(t *testing.T, s *redisstore.Store, id string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), budget)
		defer cancel()
		start := time.Now()
		_, err := s.Reserve(ctx, key(id), request("r1."+id))
		if took := time.Since(start); err == nil || took > budget+slack {
			t.Errorf("Reserve = %v after %s, want an error after %s", err, took, budget)
		}
	}
	for _, c := range []struct {
		name    string
		callers int
		warm    bool
	}{
		{"one caller whose connection is being made", 1, false},
		{"one caller on an open connection", 1, true},
		{"many callers in shared round trips", 20, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, server.Addr())
			s := newStoreOf(t, newClient(t, proxy.Addr()), "test:")
			if c.warm {
				mustWin(t, s, t.Name(), "r1.warm")
			}
			proxy.Delay(2 * time.Second)
			var wg sync.WaitGroup
			for i := range c.callers {
				wg.Go(func() { claim(t, s, fmt.Sprint(t.Name(), i)) })
			}
			wg.Wait()
			proxy.Delay(0)
		})
	}
}

func TestB72_EnvironmentsOnOneServerKeepApart(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	prod, stage := newStoreOf(t, c, "prod:"), newStoreOf(t, c, "stage:")
	mustWin(t, prod, "m", "r1.a")
	mustWin(t, stage, "m", "r2.b")
	mustReserve(t, prod, "m", request("r1.c"), idempotency.InFlight)
}

func TestB73_EveryKeyExpires(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		store func(*testing.T) (*redisstore.Store, redis.UniversalClient)
	}{
		{"by scripts", func(t *testing.T) (*redisstore.Store, redis.UniversalClient) {
			server := redistest.Start(t)
			return newStore(t, newClient(t, server.Addr())), server.Client()
		}},
		{"by WATCH and MULTI", func(t *testing.T) (*redisstore.Store, redis.UniversalClient) {
			server := redistest.Start(t, scriptlessUser...)
			return newStore(t, userClient(t, server)), server.Client()
		}},
		{"on an old server", func(t *testing.T) (*redisstore.Store, redis.UniversalClient) {
			m := miniredis.RunT(t)
			refuseNXWithGET(m)
			c := newClient(t, m.Addr())
			return newStore(t, c), c
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, look := c.store(t)
			_ = s.CheckScripts(t.Context()) // refused in one case; its key counts in all
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustWin(t, s, "held", "r1.a")
			renewed := mustWin(t, s, "renewed", "r1.b")
			done := mustWin(t, s, "done", "r1.c")
			late := mustWin(t, s, "late", "r1.d")
			if err := look.Del(t.Context(), "test:hookidem:"+string(late.Key)).Err(); err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{
				s.Renew(t.Context(), renewed), s.Record(t.Context(), done, []byte("x")), s.Record(t.Context(), late, []byte("y")),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			mustReserve(t, s, "held", request("r2.e"), idempotency.InFlight)
			mustReserve(t, s, "done", request("r2.f"), idempotency.Recorded)
			mustBeat(t, s, "r1")
			if _, err := s.Settle(t.Context(), idempotency.Claim{Key: key("settled"), Token: "r1.g", TTL: window}, nil); err != nil {
				t.Fatal(err)
			}
			mustWin(t, s, "dead", "r3.h")
			mustReserve(t, s, "dead", taking("r1.i"), idempotency.Won)
			keys, err := look.Keys(t.Context(), "*").Result()
			if err != nil || len(keys) < 11 {
				t.Fatalf("keys = %q, %v; want 6 claims, the ping, the check, the epoch and 2 of the replicas", keys, err)
			}
			for _, k := range keys {
				if !strings.HasPrefix(k, "test:") || pttl(t, look, k) <= 0 {
					t.Errorf("key %s lives for %s; want the prefix and a time", k, pttl(t, look, k))
				}
			}
		})
	}
}

func TestPingFailsWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, admin := newStore(t, newClient(t, server.Addr())), server.Client()
	if err := admin.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("Ping of a replica = %v, want READONLY", err)
	}
	_, err := s.Reserve(t.Context(), key("m"), request("r1.a"))
	if err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("Reserve on a replica = %v, want READONLY", err)
	}
	if err := admin.Do(t.Context(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping of the master again = %v", err)
	}
}

func TestAForeignValueUnderAKeyIsAnError(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr()))
	for i, text := range []string{"", "1", "C", "C|", "Cr1.a|00", "X" + "r1.a|00000000000000000000000000000000|", "Cr1.a|zz000000000000000000000000000000|"} {
		id := fmt.Sprint(i)
		if err := server.Client().Set(t.Context(), "test:hookidem:"+string(key(id)), text, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		r, err := s.Reserve(t.Context(), key(id), request("r1.a"))
		if err == nil {
			t.Errorf("Reserve over %q = state %d, want an error", text, r.State)
		}
	}
}
