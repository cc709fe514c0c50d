package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redistest"
)

// beatLife is takeover_after, long enough that no heartbeat ends by itself.
const beatLife = time.Minute

func mustBeat(t *testing.T, s *redisstore.Store, id string) []health.Replica {
	t.Helper()
	live, err := s.Beat(t.Context(), health.Replica{ID: id}, beatLife)
	if err != nil {
		t.Fatal(err)
	}
	return live
}

// taking is a request that may take over the claims of dead replicas.
func taking(token string) idempotency.Request {
	req := request(token)
	req.Owners = idempotencytest.Owners{TakeOver: true}
	return req
}

// before is a hook that is called with what is sent in each round trip.
type before func(cmds []redis.Cmder)

func (before) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f([]redis.Cmder{cmd})
		return next(ctx, cmd)
	}
}

func (f before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		f(cmds)
		return next(ctx, cmds)
	}
}

func wantNotOwner(t *testing.T, s *redisstore.Store, c idempotency.Claim) {
	t.Helper()
	for what, err := range map[string]error{
		"Renew": s.Renew(t.Context(), c), "Record": s.Record(t.Context(), c, nil), "Release": s.Release(t.Context(), c),
	} {
		if !errors.Is(err, idempotency.ErrNotOwner) {
			t.Errorf("%s by the owner before = %v, want ErrNotOwner", what, err)
		}
	}
}

func TestTheClaimOfADeadOwnerIsTakenOverOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, _ *redistest.Server, client func() redis.UniversalClient) {
		owner, s := newStore(t, client()), newStore(t, client())
		stale := mustWin(t, owner, "x{y}z", "r1.a")
		mustBeat(t, s, "r2")
		var winners atomic.Int32
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				r, err := s.Reserve(t.Context(), key("x{y}z"), taking(fmt.Sprint("r2.", i)))
				switch {
				case err != nil:
					t.Error(err)
				case r.State == idempotency.Won:
					winners.Add(1)
					if !r.TakenOver {
						t.Error("the winner is not told that it has taken over")
					}
					if err := s.Renew(t.Context(), r.Claim); err != nil {
						t.Errorf("Renew by the winner = %v", err)
					}
				}
			})
		}
		wg.Wait()
		if got := winners.Load(); got != 1 {
			t.Errorf("%d winners, want 1", got)
		}
		wantNotOwner(t, owner, stale)
		if r := mustReserve(t, s, "new", taking("r2.new"), idempotency.Won); r.TakenOver {
			t.Error("a first delivery has taken over")
		}
	})
}

func TestTheClaimOfALivingOwnerIsNotTakenOver(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, server *redistest.Server, client func() redis.UniversalClient) {
		owner, s := newStore(t, client()), newStore(t, client())
		held := mustWin(t, owner, "x{y}z", "r1.a")
		mustBeat(t, owner, "r1")
		mustBeat(t, s, "r2")
		if err := server.Client().PExpire(t.Context(), "test:hookidem:"+string(held.Key), time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if r := mustReserve(t, s, "x{y}z", taking("r2.b"), idempotency.InFlight); r.RetryAfter > time.Minute || r.RetryAfter < 40*time.Second {
			t.Errorf("RetryAfter = %s, want the minute that is left of the lease", r.RetryAfter)
		}
		if err := owner.Renew(t.Context(), held); err != nil {
			t.Error(err)
		}
		if err := owner.Leave(t.Context(), "r1"); err != nil {
			t.Fatal(err)
		}
		mustReserve(t, s, "x{y}z", taking("r2.c"), idempotency.Won)
	})
}

func TestNothingIsTakenOver(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, server *redistest.Server, client func() redis.UniversalClient) {
		admin, s := server.Client(), newStore(t, client())
		const heartbeat = "test:replica:r2"
		mustWin(t, s, "m", "r1.a")
		try := 0
		want := func(t *testing.T, state idempotency.State) {
			t.Helper()
			try++
			mustReserve(t, s, "m", taking(fmt.Sprint("r2.", try)), state)
		}
		must := func(t *testing.T, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		t.Run("before the own heartbeat is acknowledged", func(t *testing.T) {
			want(t, idempotency.InFlight)
		})
		t.Run("unless the caller may", func(t *testing.T) {
			mustBeat(t, s, "r2")
			mustReserve(t, s, "m", request("r2.not"), idempotency.InFlight)
		})
		t.Run("where the own heartbeat is not the one that was acknowledged", func(t *testing.T) {
			text, err := admin.Get(t.Context(), heartbeat).Result()
			must(t, err)
			must(t, admin.Set(t.Context(), heartbeat, text+" ", beatLife).Err())
			want(t, idempotency.InFlight)
		})
		t.Run("where the own heartbeat is gone", func(t *testing.T) {
			mustBeat(t, s, "r2")
			must(t, admin.Del(t.Context(), heartbeat).Err())
			want(t, idempotency.InFlight)
		})
		t.Run("where the own heartbeat is older than a quarter of its life", func(t *testing.T) {
			mustBeat(t, s, "r2")
			must(t, admin.PExpire(t.Context(), heartbeat, beatLife*3/4-time.Millisecond).Err())
			want(t, idempotency.InFlight)
		})
		t.Run("after the replica has left", func(t *testing.T) {
			mustBeat(t, s, "r2")
			must(t, s.Leave(t.Context(), "r2"))
			want(t, idempotency.InFlight)
		})
		t.Run("of a replica whose id is none", func(t *testing.T) {
			mustBeat(t, s, "r2")
			for i, token := range []string{"noid", ".a", "R1.a", "r-1.a", "*.a", "r1:x.a", strings.Repeat("r", 65) + ".a"} {
				id := fmt.Sprint("foreign", i)
				mustWin(t, s, id, token)
				mustReserve(t, s, id, taking("r2.b"), idempotency.InFlight)
			}
		})
		t.Run("of the caller's own runs", func(t *testing.T) {
			mustWin(t, s, "own", "r2.own")
			mustReserve(t, s, "own", taking("r2.other"), idempotency.InFlight)
		})
		t.Run("that is recorded", func(t *testing.T) {
			must(t, s.Record(t.Context(), mustWin(t, s, "done", "r1.done"), nil))
			mustReserve(t, s, "done", taking("r2.late"), idempotency.Recorded)
		})
		t.Run("and else it is", func(t *testing.T) {
			must(t, admin.PExpire(t.Context(), heartbeat, beatLife*3/4+10*time.Second).Err())
			want(t, idempotency.Won)
		})
	})
}

func TestALostAnswerOfATakeoverIsAWin(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := newStore(t, newClient(t, proxy.Addr()))
	if err := s.CheckScripts(t.Context()); err != nil { // the server has them all now
		t.Fatal(err)
	}
	mustWin(t, s, "m", "r1.a")
	mustBeat(t, s, "r2")
	proxy.CutReply("Cr1.a|")
	if r := mustReserve(t, s, "m", taking("r2.b"), idempotency.Won); !r.TakenOver {
		t.Error("the winner is not told that it has taken over")
	}
}

func TestAnOwnerThatComesBackDuringATakeoverKeepsItsClaim(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, scriptlessUser...)
	owner, c := newStore(t, userClient(t, server)), userClient(t, server)
	s := newStore(t, c)
	held := mustWin(t, owner, "x{y}z", "r1.a")
	mustBeat(t, s, "r2")
	came := false
	c.AddHook(before(func(cmds []redis.Cmder) {
		// The last look before the write, when the owner's heartbeat was absent.
		if cmd := cmds[0]; !came && cmd.Name() == "pttl" && cmd.Args()[1] == "test:replica:r2" {
			came = true
			mustBeat(t, owner, "r1")
		}
	}))
	mustReserve(t, s, "x{y}z", taking("r2.b"), idempotency.InFlight)
	if err := owner.Renew(t.Context(), held); err != nil || !came {
		t.Errorf("Renew by the owner = %v; came back %t", err, came)
	}
}

// A server that freezes with a takeover under way lets every heartbeat run out
// and carries it out when it thaws, before any replica can write another.
func TestAFrozenServerTakesNoClaimFromALivingOwner(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, server *redistest.Server, client func() redis.UniversalClient) {
		const life = 600 * time.Millisecond
		owner := newStore(t, client())
		c := client()
		s := newStore(t, c)
		_ = s.CheckScripts(t.Context()) // so that what is sent next is no script that is refused
		reached, frozen := make(chan struct{}), make(chan struct{})
		var once sync.Once
		c.AddHook(before(func(cmds []redis.Cmder) {
			if cmd := cmds[0]; cmd.Name() == "evalsha" && cmd.Args()[2] == 3 || cmd.Name() == "exists" {
				once.Do(func() { close(reached); <-frozen })
			}
		}))
		held := mustWin(t, owner, "x{y}z", "r1.a")
		for id, s := range map[string]*redisstore.Store{"r1": owner, "r2": s} {
			if _, err := s.Beat(t.Context(), health.Replica{ID: id}, life); err != nil {
				t.Fatal(err)
			}
		}
		answer := make(chan error, 1)
		go func() {
			r, err := s.Reserve(t.Context(), key("x{y}z"), taking("r2.b"))
			if r.State == idempotency.Won {
				err = errors.Join(err, errors.New("the claim was taken over"))
			}
			answer <- err
		}()
		<-reached
		server.Pause()
		close(frozen)
		time.Sleep(life + 100*time.Millisecond) // of the server's time
		server.Resume()
		if err := <-answer; err != nil {
			t.Error(err)
		}
		if n, err := server.Client().Exists(t.Context(), "test:replica:r1").Result(); n != 0 || err != nil {
			t.Errorf("%d heartbeats of the owner, %v; want that it has run out", n, err)
		}
		if err := owner.Renew(t.Context(), held); err != nil {
			t.Errorf("Renew by the living owner = %v", err)
		}
	})
}

func TestSettleLeavesWhatIsNoClaim(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, server *redistest.Server, client func() redis.UniversalClient) {
		s, admin, at := newStore(t, client()), server.Client(), "test:hookidem:"+string(key("x{y}z"))
		if err := admin.Set(t.Context(), at, "theirs", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		_, err := s.Settle(t.Context(), idempotency.Claim{Key: key("x{y}z"), Token: "r1.a", TTL: window}, []byte("ours"))
		if !errors.Is(err, idempotency.ErrForeign) {
			t.Errorf("Settle = %v, want ErrForeign", err)
		}
		if text, err := admin.Get(t.Context(), at).Result(); text != "theirs" || err != nil {
			t.Errorf("the key holds %q, %v", text, err)
		}
	})
}
