package redishistory_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

// What the documentation names as the smallest rights of a user, and what the
// history needs beside them.
var (
	documented = strings.Fields("-@all +auth +hello +select +info +set +get +getrange +mget +exists +pttl +pexpire +del" +
		" +sadd +srem +srandmember +evalsha +eval +watch +unwatch +multi +exec")
	needed = strings.Fields("+time +hget +hset +hsetnx +hincrby +hdel +hmget +hgetall +zadd +zcount +zremrangebyrank +zrevrangebyscore")
)

func TestTheLeastPermissionsSuffice(t *testing.T) {
	t.Parallel()
	if err := errors.Join(useAll(t, needed)...); err != nil {
		t.Error(err)
	}
	for _, right := range needed {
		t.Run("and none without "+right, func(t *testing.T) {
			t.Parallel()
			less := slices.DeleteFunc(slices.Clone(needed), func(r string) bool { return r == right })
			refused := "'" + right[1:] + "'"
			err := errors.Join(useAll(t, less)...)
			if err == nil {
				t.Fatalf("all calls succeed without %s", right)
			}
			if text := err.Error(); strings.Contains(text, "gw") || !strings.Contains(text, refused) && !strings.Contains(text, "can't run this command") {
				t.Errorf("errors = %q, want the server's words without the user", text)
			}
		})
	}
}

// useAll makes every call as a user with the documented rights and more.
func useAll(t *testing.T, more []string) []error {
	t.Helper()
	server := redistest.Start(t, slices.Concat([]string{"--user", "gw", "on", ">pw", "~" + prefix + "*", "resetchannels"}, documented, more)...)
	c := newClientOf(t, redisconf.Config{Host: server.Addr(), Username: "gw", Password: secret.New("pw")})
	h := redishistory.New(c, config())
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	// A session whose time is over, so that there is something to trim.
	if err := server.Client().Do(t.Context(), "zadd", prefix+"sessions", "1", "old").Err(); err != nil {
		t.Fatal(err)
	}
	note(h.Ping(t.Context()))
	_, err := h.Begin(t.Context(), "s", 1)
	note(err)
	for _, key := range []string{"m-1", "m-2", "m-3", "m-4", "m-5"} {
		note(appendTurn(t.Context(), h, "s", 1, key))
	}
	_, _, err = h.List(t.Context(), 1)
	note(err)
	_, _, err = h.Show(t.Context(), "s")
	note(err)
	note(h.Reset(t.Context(), "s"))
	return errs
}
