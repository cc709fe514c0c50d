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
	newBackend := func(t *testing.T) idempotencytest.Backend { return fakeBackend(t, miniredis.RunT(t)) }
	idempotencytest.Run(t, newBackend)
	idempotencytest.RunLister(t, newBackend)
	idempotencytest.RunInbox(t, newBackend)
	idempotencytest.RunSettler(t, newBackend)
}

func TestStoreOnRedis(t *testing.T) {
	t.Parallel()
	newBackend := func(t *testing.T) idempotencytest.Backend {
		return backend(t, newClient(t, redistest.Start(t).Addr()))
	}
	idempotencytest.Run(t, newBackend)
	idempotencytest.RunLister(t, newBackend)
	idempotencytest.RunInbox(t, newBackend)
	idempotencytest.RunSettler(t, newBackend)
}

// A server before version 7 does not know SET with NX and GET together.
func TestStoreOnAnOldServer(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Backend {
		m := miniredis.RunT(t)
		refuseNXWithGET(m)
		return fakeBackend(t, m)
	})
}

// B59: the user may do everything but run scripts.
func TestB59_StoreWithoutScripts(t *testing.T) {
	t.Parallel()
	newBackend := func(t *testing.T) idempotencytest.Backend {
		return backend(t, userClient(t, redistest.Start(t, scriptlessUser...)))
	}
	idempotencytest.Run(t, newBackend)
	idempotencytest.RunSettler(t, newBackend)
}

// eachWay runs test with the scripts, and by WATCH and MULTI.
func eachWay(t *testing.T, test func(t *testing.T, server *redistest.Server, client func() redis.UniversalClient)) {
	t.Run("by scripts", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		test(t, server, func() redis.UniversalClient { return newClient(t, server.Addr()) })
	})
	t.Run("by WATCH and MULTI", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, scriptlessUser...)
		test(t, server, func() redis.UniversalClient { return userClient(t, server) })
	})
}

var scriptlessUser = []string{"--user", "gw", "on", ">pw", "~test:*", "+@all", "-@scripting"}

// userClient returns a client of the user gw.
func userClient(t *testing.T, s *redistest.Server) redis.UniversalClient {
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

// fakeBackend moves the server's time and the store's clock together.
func fakeBackend(t *testing.T, m *miniredis.Miniredis) idempotencytest.Backend {
	t.Helper()
	c := idempotencytest.NewClock()
	m.SetTime(c.Now())
	b := backendAt(t, newClient(t, m.Addr()), c.Now)
	b.OnePage = true
	b.Advance = func(d time.Duration) {
		m.FastForward(d)
		c.Advance(d)
		m.SetTime(c.Now())
	}
	return b
}

// backend is one on a real server, whose time passes by itself.
func backend(t *testing.T, c redis.UniversalClient) idempotencytest.Backend {
	t.Helper()
	b := backendAt(t, c, time.Now)
	b.Advance = time.Sleep
	return b
}

func backendAt(t *testing.T, c redis.UniversalClient, now func() time.Time) idempotencytest.Backend {
	t.Helper()
	s := newStoreAt(t, c, now)
	return idempotencytest.Backend{
		Store: s,
		Reopen: func() idempotency.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return newStoreAt(t, c, now)
		},
	}
}

// newClient returns a client of the server at addr: host:port, or the path of
// a unix socket.
func newClient(t testing.TB, addr string) redis.UniversalClient {
	t.Helper()
	url := "redis://" + addr
	if strings.HasPrefix(addr, "/") {
		url = "unix://" + addr
	}
	return newClientOf(t, redisconf.Config{URL: secret.New(url)})
}

func newClientOf(t testing.TB, cfg redisconf.Config) redis.UniversalClient {
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

// newStore returns a store on a server that is in use: the first Ping of an
// empty one is told so. What else is wrong there, the test will see.
func newStore(t testing.TB, c redis.UniversalClient) *redisstore.Store {
	t.Helper()
	return newStoreAt(t, c, time.Now)
}

func newStoreOf(t testing.TB, c redis.UniversalClient, prefix string) *redisstore.Store {
	t.Helper()
	return open(t, c, redisstore.Config{Prefix: prefix, Replica: true})
}

func newStoreAt(t testing.TB, c redis.UniversalClient, now func() time.Time) *redisstore.Store {
	t.Helper()
	s := open(t, c, redisstore.Config{Prefix: "test:", Now: now, Replica: true})
	_ = s.Ping(t.Context())
	return s
}

func open(t testing.TB, c redis.UniversalClient, cfg redisstore.Config) *redisstore.Store {
	t.Helper()
	s := redisstore.New(c, cfg)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
