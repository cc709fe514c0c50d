package redisstore_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/internal/redistest"
)

func TestB59_ScriptsThatAreRefusedAreReported(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, scriptlessUser...)

	t.Run("once a settlement met the refusal", func(t *testing.T) {
		t.Parallel()
		s := newStore(t, userClient(t, server))
		c := mustWin(t, s, "m", "r1.a")
		if err := s.Scripting(); err != nil {
			t.Errorf("Scripting before any script = %v, want nil", err)
		}
		if err := s.Record(t.Context(), c, []byte("answer")); err != nil {
			t.Fatal(err)
		}
		if err := s.Scripting(); err == nil || !strings.Contains(err.Error(), "evalsha") {
			t.Errorf("Scripting = %v, want the server's words about evalsha", err)
		}
	})
	t.Run("by the check, which also sees the permission come back", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, scriptlessUser...)
		s := newStore(t, userClient(t, server))
		if err := s.CheckScripts(t.Context()); err == nil || !strings.Contains(err.Error(), "evalsha") {
			t.Errorf("CheckScripts = %v, want the server's words about evalsha", err)
		}
		if s.Scripting() == nil {
			t.Error("Scripting = nil after the check was refused")
		}
		if err := server.Client().Do(t.Context(), "acl", "setuser", "gw", "+@scripting").Err(); err != nil {
			t.Fatal(err)
		}
		if err := s.CheckScripts(t.Context()); err != nil {
			t.Errorf("CheckScripts = %v after the permission was given", err)
		}
		if err := s.Scripting(); err != nil {
			t.Errorf("Scripting = %v after the permission was given", err)
		}
	})
	t.Run("by the check, which runs every one", func(t *testing.T) {
		t.Parallel()
		c, ran := newClient(t, redistest.Start(t).Addr()), make(map[any]bool)
		c.AddHook(before(func(cmds []redis.Cmder) {
			if cmd := cmds[0]; cmd.Name() == "eval" {
				ran[cmd.Args()[1]] = true
			}
		}))
		s := newStore(t, c)
		if err := errors.Join(s.CheckScripts(t.Context()), s.CheckInbox(t.Context())); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob("*.lua")
		parts := []string{"index.lua", "message.lua", "held.lua", "owner.lua"} // stand before others
		if err != nil || len(files) == 0 || len(ran) != len(files)-len(parts) {
			t.Errorf("the check ran %d scripts of %q, %v", len(ran), files, err)
		}
	})
	t.Run("by the check, where one may not do what it does", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, "--user", "gw", "on", ">pw", "~test:*", "+@all", "-exists")
		s := newStore(t, userClient(t, server))
		if err := s.CheckScripts(t.Context()); err == nil || !strings.Contains(err.Error(), "reclaim") || s.Scripting() != nil {
			t.Errorf("CheckScripts = %v, Scripting = %v; want the script that needs EXISTS", err, s.Scripting())
		}
	})
	t.Run("not where a script fails for another reason", func(t *testing.T) {
		t.Parallel()
		s := newStore(t, newClient(t, server.Addr()))
		if err := server.Client().LPush(t.Context(), "test:hookidem:"+string(key("list")), "x").Err(); err != nil {
			t.Fatal(err)
		}
		err := s.Renew(t.Context(), idempotency.Claim{Key: key("list"), Token: "r1.a", Lease: lease})
		if err == nil || errors.Is(err, idempotency.ErrNotOwner) || s.Scripting() != nil {
			t.Errorf("Renew of a list = %v, Scripting = %v; want an error that is no answer, and scripts", err, s.Scripting())
		}
	})
}

func TestTheLeastPermissionsSufficeForStoredMessages(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--user", "gw", "on", ">pw", "~test:*", "+set", "+get", "+pttl", "+getrange", "+pexpire", "+del",
		"+exists", "+evalsha", "+eval", "+time", "+hget", "+hset", "+hincrby", "+hmget", "+hgetall", "+zadd", "+zscore", "+zrange", "+zrem", "+zcount",
		"+sadd", "+srandmember", "+mget")
	s := newStore(t, userClient(t, server))
	ctx := t.Context()
	if err := errors.Join(s.CheckScripts(ctx), s.CheckInbox(ctx)); err != nil {
		t.Fatal(err)
	}
	mustBeat(t, s, "r1")
	mustAccept(t, s, "m", "s")
	late := oneMessage("s", "n")
	late.OrderWait = 0
	mustAcceptAs(t, s, "n", late)
	if err := s.Retry(ctx, mustTakeOne(t, s, "r2", "m").Claim, idempotency.Retry{After: time.Hour}); err != nil {
		t.Fatal(err)
	}
	got := mustTake(t, s, "r2", 3, idempotencytest.Owners{TakeOver: true})
	if len(got.Taken) != 1 || len(got.Buried) != 1 {
		t.Fatalf("taken %+v, want the second message in place of the first", got)
	}
	if err := errors.Join(s.Replay(ctx, key("m"), "w"), s.Drop(ctx, key("n"), idempotencytest.Owners{TakeOver: true})); err != nil {
		t.Error(err)
	}
	if e, err := s.Get(ctx, key("m")); err != nil || e.Stored == nil {
		t.Errorf("Get = %+v, %v", e, err)
	}
}

// The permissions that the documentation names: with scripts, and without.
func TestTheLeastPermissionsSuffice(t *testing.T) {
	t.Parallel()
	common := []string{
		"on", ">pw", "~test:*", "+set", "+get", "+pttl", "+getrange", "+pexpire", "+del",
		"+exists", "+mget", "+sadd", "+srem", "+srandmember",
	}
	for name, more := range map[string][]string{
		"with scripts":    {"+evalsha", "+eval"},
		"without scripts": {"+watch", "+unwatch", "+multi", "+exec"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, slices.Concat([]string{"--user", "gw"}, common, more)...)
			s := newStore(t, userClient(t, server))
			if err := s.Ping(t.Context()); err != nil {
				t.Error(err)
			}
			c := mustWin(t, s, "m", "r1.a")
			mustReserve(t, s, "m", request("r2.b"), idempotency.InFlight)
			for _, err := range []error{
				s.Renew(t.Context(), c), s.Record(t.Context(), c, []byte("x")), s.Release(t.Context(), mustWin(t, s, "n", "r1.c")),
			} {
				if err != nil {
					t.Error(err)
				}
			}
			if _, err := s.Settle(t.Context(), c, []byte("y")); err != nil {
				t.Error(err)
			}
			mustWin(t, s, "o", "r3.d")
			mustBeat(t, s, "r4")
			if err := server.Client().Del(t.Context(), "test:replica:r4").Err(); err != nil {
				t.Fatal(err)
			}
			mustBeat(t, s, "r1")
			if got := mustReserve(t, s, "o", taking("r1.e"), idempotency.Won); !got.TakenOver {
				t.Error("the claim of a dead owner was won without being taken over")
			}
			if err := s.Leave(t.Context(), "r1"); err != nil {
				t.Error(err)
			}
			if err := s.CheckScripts(t.Context()); (err == nil) != (name == "with scripts") {
				t.Errorf("CheckScripts = %v", err)
			}
			if refused := s.Scripting() != nil; refused != (name == "without scripts") {
				t.Errorf("Scripting = %v", s.Scripting())
			}
		})
	}
}
