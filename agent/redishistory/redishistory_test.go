package redishistory_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/historytest"
	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

const prefix = "test:"

func config() redishistory.Config {
	return redishistory.Config{Prefix: prefix, MaxTurns: historytest.MaxTurns, TTL: historytest.TTL}
}

func TestHistoryOnMiniredis(t *testing.T) {
	t.Parallel()
	historytest.Run(t, func(t *testing.T) historytest.Backend {
		m := newFake(t)
		b := backend(newClient(t, m.Addr()), config())
		b.Advance = m.advance
		return b
	})
}

func TestHistoryOnRedis(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	historytest.Run(t, func(*testing.T) historytest.Backend { return backend(c, ownConfig(historytest.TTL)) })
	t.Run("what ends", func(t *testing.T) {
		const ttl = 1200 * time.Millisecond
		historytest.RunExpiry(t, ttl, func(*testing.T) historytest.Backend {
			b := backend(c, ownConfig(ttl))
			b.Advance = time.Sleep // the server's time is the only one that counts
			return b
		})
	})
}

func TestHistoryOnACluster(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, node := range redistest.StartCluster(t, 2) {
		addrs = append(addrs, node.Addr())
	}
	historytest.Run(t, func(t *testing.T) historytest.Backend {
		cfg := ownConfig(historytest.TTL)
		return backend(newClientOf(t, redisconf.Config{Cluster: &redisconf.Cluster{Addrs: addrs}, Prefix: cfg.Prefix}), cfg)
	})
}

// ownConfig makes histories that share a server and no key.
func ownConfig(ttl time.Duration) redishistory.Config {
	return redishistory.Config{Prefix: "{" + rand.Text() + "}:", MaxTurns: historytest.MaxTurns, TTL: ttl}
}

func backend(c redis.UniversalClient, cfg redishistory.Config) historytest.Backend {
	h := redishistory.New(c, cfg)
	return historytest.Backend{History: h, Sessions: h, Reopen: func() (agent.History, agent.Sessions) {
		h := redishistory.New(c, cfg)
		return h, h
	}}
}

// fake is a server whose time moves only when told.
type fake struct {
	*miniredis.Miniredis
	now time.Time
}

func newFake(t *testing.T) *fake {
	m := &fake{miniredis.RunT(t), time.Now()}
	m.SetTime(m.now)
	m.ClockTTL(true)
	return m
}

func (m *fake) advance(d time.Duration) {
	m.now = m.now.Add(d)
	m.SetTime(m.now)
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

func mustBegin(t testing.TB, h agent.History, session string, fence uint64) []agent.Row {
	t.Helper()
	rows, err := h.Begin(t.Context(), session, fence)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func appendTurn(ctx context.Context, h agent.History, session string, fence uint64, key string) error {
	return h.Append(ctx, session, fence,
		agent.Row{Role: agent.User, Text: "asks " + key, Key: key}, agent.Row{Role: agent.Assistant, Text: "answers " + key, Key: key})
}

func mustAppend(t testing.TB, h agent.History, session string, fence uint64, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := appendTurn(t.Context(), h, session, fence, key); err != nil {
			t.Fatal(err)
		}
	}
}

// wantKeys checks that rows are the whole turns of the keys, in this order.
func wantKeys(t *testing.T, rows []agent.Row, keys ...string) {
	t.Helper()
	var got []string
	for _, row := range rows {
		got = append(got, row.Text)
	}
	var want []string
	for _, key := range keys {
		want = append(want, "asks "+key, "answers "+key)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("rows = %q, want %q", got, want)
	}
}

func mustList(t *testing.T, h *redishistory.History, limit int) (names []string, more bool) {
	t.Helper()
	list, more, err := h.List(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		names = append(names, s.ID)
	}
	return names, more
}

func TestPing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	h := redishistory.New(newClient(t, server.Addr()), config())
	for range 2 {
		if err := h.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if names, _ := mustList(t, h, 10); len(names) != 0 {
		t.Errorf("a ping left the sessions %q", names)
	}
	if err := server.Client().Do(t.Context(), "config", "set", "maxmemory", "1", "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	if err := h.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Ping of a server that can only be read = %v, want its words", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Ping on a done context = %v", err)
	}
}
