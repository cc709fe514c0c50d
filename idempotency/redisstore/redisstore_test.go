package redisstore_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

func TestStoreOnMiniredis(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Backend {
		m := miniredis.RunT(t)
		return backend(t, newClient(t, m.Addr()), m.FastForward)
	})
}

func TestStoreOnRedis(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Backend {
		return backend(t, newClient(t, redistest.Start(t).Addr()), time.Sleep)
	})
}

// A server before version 7 does not know SET with NX and GET together.
func TestStoreOnAnOldServer(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Backend {
		m := miniredis.RunT(t)
		refuseNXWithGET(m)
		return backend(t, newClient(t, m.Addr()), m.FastForward)
	})
}

// B59: the user may do everything but run scripts.
func TestB59_StoreWithoutScripts(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Backend {
		return backend(t, userClient(t, redistest.Start(t, scriptlessUser...)), time.Sleep)
	})
}

var scriptlessUser = []string{"--user", "gw", "on", ">pw", "~test:*", "+@all", "-@scripting"}

// userClient returns a client of the user gw.
func userClient(t *testing.T, s *redistest.Server) *redis.Client {
	t.Helper()
	return newClientOf(t, redisconf.Config{Host: s.Addr(), Username: "gw", Password: secret.New("pw")})
}

func refuseNXWithGET(m *miniredis.Miniredis) {
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		has := func(word string) bool {
			return slices.ContainsFunc(args, func(arg string) bool { return strings.EqualFold(arg, word) })
		}
		refuse := strings.EqualFold(cmd, "set") && has("nx") && has("get")
		if refuse {
			c.WriteError("ERR syntax error")
		}
		return refuse
	})
}

func backend(t *testing.T, c *redis.Client, advance func(time.Duration)) idempotencytest.Backend {
	t.Helper()
	s := newStore(t, c)
	return idempotencytest.Backend{
		Store: s, Advance: advance,
		Reopen: func() idempotency.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return newStore(t, c)
		},
	}
}

// newClient returns a client of the server at addr: host:port, or the path of
// a unix socket.
func newClient(t testing.TB, addr string) *redis.Client {
	t.Helper()
	url := "redis://" + addr
	if strings.HasPrefix(addr, "/") {
		url = "unix://" + addr
	}
	return newClientOf(t, redisconf.Config{URL: secret.New(url)})
}

func newClientOf(t testing.TB, cfg redisconf.Config) *redis.Client {
	t.Helper()
	c, err := redisclient.New(cfg, redisclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func newStore(t testing.TB, c redis.UniversalClient) *redisstore.Store {
	t.Helper()
	return newStoreOf(t, c, "test:")
}

func newStoreOf(t testing.TB, c redis.UniversalClient, prefix string) *redisstore.Store {
	t.Helper()
	s := redisstore.New(c, redisstore.Config{Prefix: prefix})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
