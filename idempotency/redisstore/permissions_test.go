package redisstore_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/idempotency"
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

// The permissions that the documentation names: with scripts, and without.
func TestTheLeastPermissionsSuffice(t *testing.T) {
	t.Parallel()
	common := []string{"on", ">pw", "~test:*", "+set", "+get", "+pttl", "+getrange", "+pexpire", "+del"}
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
			if refused := s.Scripting() != nil; refused != (name == "without scripts") {
				t.Errorf("Scripting = %v", s.Scripting())
			}
		})
	}
}
