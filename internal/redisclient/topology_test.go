package redisclient_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redact"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	p := redistest.NewProxy(t, "")
	p.Refuse()
	return p.Addr()
}

func openCluster(t *testing.T, addrs ...string) redis.UniversalClient {
	t.Helper()
	return open(t, config(func(c *redisconf.Config) { c.Cluster, c.Prefix = &redisconf.Cluster{Addrs: addrs}, "{gw}:" }))
}

// The second node has the slot of the prefix, and the first is asked where
// that is; of the addresses one is nobody's.
func TestAClusterIsReachedByAnyOfItsNodes(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	other, own := nodes[0], nodes[1]
	if err := other.Client().Get(t.Context(), "{gw}:k").Err(); !redis.HasErrorPrefix(err, "MOVED") {
		own, other = other, own
	}
	c := openCluster(t, closedPort(t), other.Addr())
	for name, call := range calls(c) {
		if err := call(t.Context()); err != nil && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, ownPort := hostPort(t, own.Addr())
	if text, err := c.Info(t.Context(), "server").Result(); err != nil || !strings.Contains(text, fmt.Sprintf("tcp_port:%d\r\n", ownPort)) {
		t.Errorf("Info of the server = %q, %v; want that of the node with the prefix", text, err)
	}
	if at, err := c.Time(t.Context()).Result(); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("Time = %s, %v", at, err)
	}
	// By chance the right node would be asked half the times.
	for range 10 {
		keys, _, err := c.Scan(t.Context(), 0, "{gw}:*", 100).Result()
		if err != nil || len(keys) != 1 || keys[0] != "{gw}:k" {
			t.Errorf("Scan = %v, %v; want the one key", keys, err)
		}
	}
	if stats, err := own.Client().Info(t.Context(), "commandstats").Result(); err != nil || strings.Contains(stats, "cmdstat_command:") {
		t.Errorf("the server was asked what its commands do: %q, %v", stats, err)
	}
	// Such calls pass the breaker like any other.
	own.Pause()
	fail(t, calls(c)["scan"])
	own.Resume()
	recovers(t, calls(c)["info"])
}

func TestTheBreakerBeforeACluster(t *testing.T) {
	t.Parallel()
	node := redistest.StartCluster(t, 1)[0]
	c := openCluster(t, node.Addr())
	recovers(t, set(c))
	node.Pause()
	err := fail(t, calls(c)["watch"])
	if redisclient.Classify(err) != redisclient.Unreachable {
		t.Errorf("a frozen node: %v", err)
	}
	for name, call := range calls(c) {
		fail(t, set(c)) // open, and just now
		if err := call(t.Context()); !errors.Is(err, redisclient.ErrOpen) {
			t.Errorf("%s: %v, want ErrOpen", name, err)
		}
	}
	node.Resume()
	recovers(t, calls(c)["watch"])
	// Inside a transaction the commands count one by one.
	var last error
	_ = c.Watch(t.Context(), func(tx *redis.Tx) error {
		node.Pause()
		defer node.Resume()
		last = fail(t, func(ctx context.Context) error { return tx.Get(ctx, "{gw}:k").Err() })
		return last
	}, "{gw}:k")
	if redisclient.Classify(last) != redisclient.Unreachable {
		t.Errorf("in a transaction: %v, want ErrOpen of class unreachable", last)
	}
}

func TestAClusterWithoutANodeIsUnreachable(t *testing.T) {
	t.Parallel()
	c := openCluster(t, closedPort(t), closedPort(t))
	for name, call := range calls(c) {
		if err := call(t.Context()); redisclient.Classify(err) != redisclient.Unreachable {
			t.Errorf("%s: %v of class %s, want unreachable", name, err, redisclient.Classify(err))
		}
	}
}

// B63: a client of one server gets MOVED or CROSSSLOT, and says what to do.
func TestB63_AClientOfOneServerSaysThatItIsAClusters(t *testing.T) {
	t.Parallel()
	const remedy = "name it in gateway.push.redis.cluster"
	c := openAt(t, redistest.StartCluster(t, 2)[0].Addr())
	_, moved := c.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Get(t.Context(), "{a}").Err() })
	for word, err := range map[string]error{"MOVED": moved, "CROSSSLOT": c.MGet(t.Context(), "{a}", "{b}").Err()} {
		text := redact.Error(err).Error()
		if !redis.HasErrorPrefix(err, word) || redisclient.Classify(err) != redisclient.Other || !strings.Contains(text, remedy) || strings.Contains(text, "127.0.0.1") {
			t.Errorf("%v of class %s, want %s and %q, without an address", err, redisclient.Classify(err), word, remedy)
		}
	}
}

// Of every kind, a client is bounded in the same ways.
func TestEveryKindOfClientIsBounded(t *testing.T) {
	t.Parallel()
	type bounds struct {
		dial, read, write, life, idle time.Duration
		byContext                     bool
		protocol, pool                int
	}
	of := func(c redis.UniversalClient) bounds {
		if c, ok := c.(*redis.Client); ok {
			o := c.Options()
			return bounds{o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ConnMaxLifetime, o.ConnMaxIdleTime, o.ContextTimeoutEnabled, o.Protocol, o.PoolSize}
		}
		o := c.(interface{ Options() *redis.ClusterOptions }).Options()
		return bounds{o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ConnMaxLifetime, o.ConnMaxIdleTime, o.ContextTimeoutEnabled, o.Protocol, o.PoolSize}
	}
	want := bounds{dial: time.Second, read: 3 * time.Second, write: 2 * time.Second, life: 30 * time.Minute, idle: 4 * time.Minute, byContext: true, protocol: 2, pool: 7}
	for kind, cfg := range map[string]redisconf.Config{
		"one server": {Host: "h"},
		"Sentinel":   {Sentinel: &redisconf.Sentinel{Master: "main", Addrs: []string{"s1:26379"}}},
		"cluster":    {Cluster: &redisconf.Cluster{Addrs: []string{"c1:6379"}}, Prefix: "{gw}:"},
	} {
		c, err := redisclient.New(cfg, redisclient.Options{ReadTimeout: want.read, PoolSize: want.pool})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := of(c); got != want {
			t.Errorf("%s: bounded by %+v, want %+v", kind, got, want)
		}
	}
}

func openSentinel(t *testing.T, master string, addrs ...string) redis.UniversalClient {
	t.Helper()
	return open(t, config(func(c *redisconf.Config) {
		c.Sentinel, c.DB = &redisconf.Sentinel{Master: master, Addrs: addrs}, 3
		c.Username, c.Password = "gw", secret.New("pw")
	}))
}

func TestAClientBehindASentinelFollowsTheFailover(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, "--user", "gw", "on", ">pw", "~*", "+@all")
	c := openSentinel(t, redistest.Master, closedPort(t), s.Addr())
	recovers(t, set(c))
	if info, err := c.Do(t.Context(), "client", "info").Text(); !strings.Contains(info, " db=3 ") || !strings.Contains(info, " user=gw ") {
		t.Errorf("connected to %q, %v; want database 3 as gw", info, err)
	}
	s.FailOver()
	for _, call := range calls(c) {
		recovers(t, func(ctx context.Context) error {
			if err := call(ctx); !redis.HasErrorPrefix(err, "NOSCRIPT") {
				return err
			}
			return nil
		})
	}
}

func TestAPrimaryThatNoSentinelKnowsIsUnreachable(t *testing.T) {
	t.Parallel()
	stub := redistest.NewStub(t)
	stub.Answer(func(r redistest.Request) string {
		if r.Args[0] == "sentinel" {
			return "*-1"
		}
		return ""
	})
	for name, addrs := range map[string][]string{"no such primary": {stub.Addr()}, "no Sentinel": {closedPort(t)}, "neither": {stub.Addr(), closedPort(t)}} {
		c := openSentinel(t, "other", addrs...)
		err := set(c)(t.Context())
		if redisclient.Classify(err) != redisclient.Unreachable || errors.Is(err, redisclient.ErrOpen) {
			t.Errorf("%s: %v of class %s, want unreachable", name, err, redisclient.Classify(err))
		}
		if err := fail(t, set(c)); redisclient.Classify(err) != redisclient.Unreachable {
			t.Errorf("%s, with the breaker open: %v", name, err)
		}
	}
}
