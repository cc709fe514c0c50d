package redishistory_test

import (
	"slices"
	"testing"

	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

// A ping that is green while no turn can be kept is worse than none.
func TestPingNeedsEveryRightThatATurnNeeds(t *testing.T) {
	t.Parallel()
	for _, missing := range [][]string{{"-evalsha", "-eval"}, {"-hset"}, {"-zadd"}, {"-hgetall"}, {"-time"}, {"-hsetnx"}, {"-pexpire"}} {
		server := redistest.Start(t, slices.Concat([]string{"--user", "gw", "on", ">pw", "~*", "+@all"}, missing)...)
		h := redishistory.New(newClientOf(t, redisconf.Config{Host: server.Addr(), Username: "gw", Password: secret.New("pw")}), config())
		if _, err := h.Begin(t.Context(), "s", 1); err == nil && missing[0] != "-hsetnx" {
			t.Fatalf("a turn begins with %v", missing)
		}
		if err := h.Ping(t.Context()); err == nil {
			t.Errorf("Ping = nil with %v", missing)
		}
	}
}
