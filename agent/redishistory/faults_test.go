package redishistory_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/historytest"
	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/internal/redistest"
)

func TestScriptsThatTheServerForgets(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client()
	h := redishistory.New(newClient(t, server.Addr()), config())
	for i, call := range []func() error{
		func() error { _, err := h.Begin(t.Context(), "s", 1); return err },
		func() error { return appendTurn(t.Context(), h, "s", 1, "m-1") },
		func() error { return h.Reset(t.Context(), "s") },
		func() error { return appendTurn(t.Context(), h, "s", 1, "m-2") },
	} {
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if err := call(); err != nil {
			t.Errorf("call %d = %v", i, err)
		}
	}
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, mustBegin(t, h, "s", 2), "m-2")
}

// The client asks again by itself when a reply is lost, so every script runs twice.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	admin, h := server.Client(), redishistory.New(newClient(t, proxy.Addr()), config())
	mustBegin(t, h, "other", 1) // and the scripts are known from now on
	mustAppend(t, h, "other", 1, "m")
	if err := h.Reset(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	lose := func(what string, call func() error) {
		t.Helper()
		before := calls(t, admin, "evalsha")
		proxy.CutReply("evalsha")
		if err := call(); err != nil {
			t.Errorf("%s = %v", what, err)
		}
		if ran := calls(t, admin, "evalsha") - before; ran != 2 {
			t.Errorf("%s ran its script %d times, want 2", what, ran)
		}
	}
	lose("Begin", func() error { _, err := h.Begin(t.Context(), "s", 1); return err })
	mustAppend(t, h, "s", 1, "m-1")
	lose("Append", func() error { return appendTurn(t.Context(), h, "s", 1, "m-2") })
	var rows []agent.Row
	lose("Begin again", func() (err error) { rows, err = h.Begin(t.Context(), "s", 2); return err })
	wantKeys(t, rows, "m-1", "m-2")
	for i := range historytest.MaxTurns { // a turn that is repeated must not push out another one
		lose("Append", func() error { return appendTurn(t.Context(), h, "s", 2, fmt.Sprint(i)) })
	}
	wantKeys(t, mustBegin(t, h, "s", 2), "0", "1", "2", "3")
	lose("Reset", func() error { return h.Reset(t.Context(), "s") })
	wantKeys(t, mustBegin(t, h, "s", 2))
}

// calls returns how often the server has carried out a command.
func calls(t *testing.T, admin *redis.Client, command string) int {
	t.Helper()
	text, err := admin.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(text, "cmdstat_"+command+":calls=")
	if !found {
		return 0
	}
	text, _, _ = strings.Cut(text, ",")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEveryKeyBeginsWithThePrefixAndExpires(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	h := redishistory.New(newClient(t, server.Addr()), config())
	mustBegin(t, h, "begun", 1)
	mustAppend(t, h, "appended", 1, "m-1", "m-2", "m-3", "m-4", "m-5")
	mustAppend(t, h, "reset", 1, "m-1")
	if err := errors.Join(h.Reset(t.Context(), "reset"), h.Ping(t.Context())); err != nil {
		t.Fatal(err)
	}
	admin := server.Client()
	keys, err := admin.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 6 {
		t.Errorf("keys = %q, want three sessions, the index and the two that the ping wrote", keys)
	}
	for _, key := range keys {
		left, err := admin.PTTL(t.Context(), key).Result()
		if err != nil || left <= 0 || left > historytest.TTL || !strings.HasPrefix(key, prefix) {
			t.Errorf("%s ends in %s, %v; want a key of %q that ends within %s", key, left, err, prefix, historytest.TTL)
		}
	}
}

func TestResetOfASessionWithoutAnEnd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin, h := server.Client(), redishistory.New(newClient(t, server.Addr()), config())
	mustBegin(t, h, "s", 2)
	key := prefix + "session:s"
	if err := errors.Join(admin.Persist(t.Context(), key).Err(), h.Reset(t.Context(), "s")); err != nil {
		t.Fatal(err)
	}
	if left := admin.PTTL(t.Context(), key).Val(); left <= 0 {
		t.Errorf("after a reset it ends in %s, want a session with an end", left)
	}
	if _, err := h.Begin(t.Context(), "s", 1); !errors.Is(err, agent.ErrStale) {
		t.Errorf("Begin with an older fence = %v, want ErrStale", err)
	}
}

func TestFewerTurnsThanBefore(t *testing.T) {
	t.Parallel()
	c, cfg := newClient(t, redistest.Start(t).Addr()), config()
	mustAppend(t, redishistory.New(c, cfg), "s", 1, "m-1", "m-2", "m-3", "m-4")
	cfg.MaxTurns = 2
	h := redishistory.New(c, cfg)
	mustAppend(t, h, "s", 1, "m-5")
	wantKeys(t, mustBegin(t, h, "s", 1), "m-4", "m-5")
	fields, err := c.HLen(t.Context(), prefix+"session:s").Result()
	if want := int64(5 + 2*2); err != nil || fields != want {
		t.Errorf("%d fields are left, %v; want %d", fields, err, want)
	}
}

func TestAFenceThatScriptsCannotCompare(t *testing.T) {
	t.Parallel()
	h := redishistory.New(newClient(t, newFake(t).Addr()), config())
	if _, err := h.Begin(t.Context(), "s", 1<<53+1); err == nil || errors.Is(err, agent.ErrStale) {
		t.Errorf("Begin = %v, want an error", err)
	}
	if names, _ := mustList(t, h, 1); len(names) != 0 {
		t.Errorf("sessions = %q, want none", names)
	}
}

func TestForeignKeys(t *testing.T) {
	t.Parallel()
	const secretText = "what nobody may read"
	server := redistest.Start(t)
	admin := server.Client()
	for name, test := range map[string]struct {
		write  func(key string) redis.Cmder
		usable bool // for Reset
	}{
		"a text where the session would be": {func(key string) redis.Cmder {
			return admin.Set(t.Context(), key, secretText, time.Hour)
		}, false},
		"a hash of something else": {func(key string) redis.Cmder {
			return admin.HSet(t.Context(), key, secretText, secretText)
		}, false},
		"a hash whose numbers are none": {func(key string) redis.Cmder {
			return admin.HSet(t.Context(), key, "fence", secretText, "created", secretText, "used", secretText, "first", secretText, "next", secretText)
		}, false},
		"a turn that is no JSON": {func(key string) redis.Cmder {
			return admin.HSet(t.Context(), key, "fence", "0", "created", "1", "used", "1", "first", "1", "next", "2", "at:1", "m", "turn:m", secretText)
		}, true},
		"a turn of somebody else": {func(key string) redis.Cmder {
			return admin.HSet(t.Context(), key, "fence", "0", "created", "1", "used", "1", "first", "1", "next", "2", "at:1", "m",
				"turn:m", `[{"role":"user","key":"other","text":"`+secretText+`"},{"role":"assistant","key":"other"}]`)
		}, true},
		"a turn with a time that is none": {func(key string) redis.Cmder {
			return admin.HSet(t.Context(), key, "fence", "0", "created", "1", "used", "1", "first", "1", "next", "2", "at:1", "m",
				"turn:m", `[{"role":"user","key":"m","time":"`+secretText+`"},{"role":"assistant","key":"m"}]`)
		}, true},
		"more turns than there can be": {func(key string) redis.Cmder {
			return admin.HSet(t.Context(), key, "fence", "0", "created", "1", "used", "1", "first", "0", "next", "9007199254740992")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := ownConfig(historytest.TTL)
			h := redishistory.New(newClient(t, server.Addr()), cfg)
			key := cfg.Prefix + "session:s"
			if err := test.write(key).Err(); err != nil {
				t.Fatal(err)
			}
			errs := make(map[string]error)
			_, _, errs["Show"] = h.Show(t.Context(), "s")
			_, errs["Begin"] = h.Begin(t.Context(), "s", 1)
			if !test.usable {
				errs["Append"] = appendTurn(t.Context(), h, "s", 1, "m-1")
				errs["Reset"] = h.Reset(t.Context(), "s")
			} else if err := appendTurn(t.Context(), h, "s", 1, "m-1"); err != nil { // it reads no other turn
				t.Errorf("Append = %v", err)
			}
			for what, err := range errs {
				if err == nil || errors.Is(err, agent.ErrNoSession) || errors.Is(err, agent.ErrStale) {
					t.Errorf("%s = %v, want an error that is no answer", what, err)
				} else if text := err.Error(); strings.Contains(text, secretText) || !strings.Contains(text, `session "s"`) || !strings.Contains(text, "hash of the session") {
					t.Errorf("%s = %q, want it to name the session and its hash, not what is in it", what, text)
				}
			}
			if !test.usable {
				return
			}
			if err := h.Reset(t.Context(), "s"); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, h, "s", 1, "m")
			wantKeys(t, mustBegin(t, h, "s", 1), "m")
			if left := admin.PTTL(t.Context(), key).Val(); left <= 0 {
				t.Errorf("after a reset the session ends in %s, want an end", left)
			}
		})
	}
	t.Run("a text where the index would be", func(t *testing.T) {
		t.Parallel()
		cfg := ownConfig(historytest.TTL)
		h := redishistory.New(newClient(t, server.Addr()), cfg)
		if err := admin.Set(t.Context(), cfg.Prefix+"sessions", secretText, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		_, beginErr := h.Begin(t.Context(), "s", 1)
		_, _, listErr := h.List(t.Context(), 1)
		for _, err := range []error{beginErr, listErr} {
			if err == nil || strings.Contains(err.Error(), secretText) || !strings.Contains(err.Error(), "index of sessions") {
				t.Errorf("%v, want an error that names the index", err)
			}
		}
		if _, _, err := h.Show(t.Context(), "s"); !errors.Is(err, agent.ErrNoSession) {
			t.Errorf("Show = %v, want that the refused turn has made no session", err)
		}
	})
	t.Run("a text where a listed session would be", func(t *testing.T) {
		t.Parallel()
		cfg := ownConfig(historytest.TTL)
		h := redishistory.New(newClient(t, server.Addr()), cfg)
		mustBegin(t, h, "s", 1)
		if err := admin.Set(t.Context(), cfg.Prefix+"session:s", secretText, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.List(t.Context(), 1); err == nil || strings.Contains(err.Error(), secretText) || !strings.Contains(err.Error(), `session "s"`) {
			t.Errorf("List = %v, want an error that names the session", err)
		}
	})
}

func TestAServerThatIsAway(t *testing.T) {
	t.Parallel()
	server := redistest.StartTCP(t)
	h := redishistory.New(newClient(t, server.Addr()), config())
	mustAppend(t, h, "s", 1, "m-1")
	server.Stop()
	errs := map[string]error{"Append": appendTurn(t.Context(), h, "s", 1, "m-2"), "Reset": h.Reset(t.Context(), "s"), "Ping": h.Ping(t.Context())}
	_, errs["Begin"] = h.Begin(t.Context(), "s", 1)
	_, _, errs["List"] = h.List(t.Context(), 1)
	_, _, errs["Show"] = h.Show(t.Context(), "s")
	for what, err := range errs {
		if err == nil || errors.Is(err, agent.ErrNoSession) || errors.Is(err, agent.ErrStale) || strings.Contains(err.Error(), server.Addr()) || strings.Contains(err.Error(), "asks") {
			t.Errorf("%s = %v, want an error without address and text that is no answer", what, err)
		}
	}
}
