package redisstore_test

import (
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
)

// ownBackends makes backends that share a server, or several, and no key.
func ownBackends(client func(t *testing.T, prefix string) redis.UniversalClient) func(*testing.T) idempotencytest.Backend {
	return func(t *testing.T) idempotencytest.Backend {
		cfg := redisstore.Config{Prefix: "{" + rand.Text() + "}:", Replica: true}
		c := client(t, cfg.Prefix)
		s := used(t, open(t, c, cfg))
		return idempotencytest.Backend{
			Store:   s,
			Advance: time.Sleep,
			Reopen: func() idempotency.Store {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				return open(t, c, cfg)
			},
		}
	}
}

// used returns s on a server that is in use: the first Ping of an empty one is
// told so. What else is wrong there, the test will see.
func used(t *testing.T, s *redisstore.Store) *redisstore.Store {
	t.Helper()
	_ = s.Ping(t.Context())
	return s
}

func clusterClient(t *testing.T, nodes []*redistest.Server, prefix string) redis.UniversalClient {
	t.Helper()
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	return newClientOf(t, redisconf.Config{Cluster: &redisconf.Cluster{Addrs: addrs}, Prefix: prefix})
}

func TestStoreOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	newBackend := ownBackends(func(t *testing.T, prefix string) redis.UniversalClient { return clusterClient(t, nodes, prefix) })
	idempotencytest.Run(t, newBackend)
	idempotencytest.RunLister(t, newBackend)
	idempotencytest.RunInbox(t, newBackend)
	idempotencytest.RunSettler(t, newBackend)
}

func TestStoreBehindASentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	newBackend := ownBackends(func(t *testing.T, _ string) redis.UniversalClient { return sentinelClient(t, s) })
	idempotencytest.Run(t, newBackend)
	idempotencytest.RunLister(t, newBackend)
	idempotencytest.RunInbox(t, newBackend)
	idempotencytest.RunSettler(t, newBackend)
}

func sentinelClient(t *testing.T, s *redistest.Sentinel) redis.UniversalClient {
	t.Helper()
	return newClientOf(t, redisconf.Config{Sentinel: &redisconf.Sentinel{Master: redistest.Master, Addrs: []string{s.Addr()}}})
}

// B63: what an id holds moves no key to another slot.
func TestB63_TheFullCycleOnAClusterWithBracesInIDs(t *testing.T) {
	t.Parallel()
	const prefix = "{test}:"
	s := used(t, newStoreOf(t, clusterClient(t, redistest.StartCluster(t, 2), prefix), prefix))
	if err := errors.Join(s.Ping(t.Context()), s.CheckScripts(t.Context())); err != nil {
		t.Fatal(err)
	}
	var keys []idempotency.Key
	for _, id := range []string{"x{y}z", "{}", "{a}{b}", "}{", "plain"} {
		keys = append(keys, key(id))
		held := mustWin(t, s, id, "r.1")
		mustReserve(t, s, id, request("r.2"), idempotency.InFlight)
		if err := s.Renew(t.Context(), held); err != nil {
			t.Errorf("renew %q: %v", id, err)
		}
		if err := s.Release(t.Context(), held); err != nil {
			t.Errorf("release %q: %v", id, err)
		}
		held = mustWin(t, s, id, "r.3")
		if err := s.Record(t.Context(), held, []byte("done")); err != nil {
			t.Errorf("record %q: %v", id, err)
		}
		if r := mustReserve(t, s, id, request("r.4"), idempotency.Recorded); string(r.Outcome) != "done" {
			t.Errorf("%q is recorded with %q, want done", id, r.Outcome)
		}
		if e, err := s.Get(t.Context(), key(id)); err != nil || e.State != idempotency.Recorded {
			t.Errorf("get %q = %+v, %v", id, e, err)
		}
	}
	slices.Sort(keys)
	// Were SCAN to ask any node, half the lists would be empty.
	for range 10 {
		if got, _ := mustList(t, s, idempotency.ListRequest{Limit: 10}); !slices.Equal(got, keys) {
			t.Errorf("listed %v, want %v", got, keys)
		}
	}
}

// The client finds the new primary by itself, and what has been replicated is
// still known.
func TestTheStoreFollowsASentinelsFailover(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	s := newStore(t, sentinelClient(t, sentinel))
	held := mustWin(t, s, "before", "r.1")
	if err := s.Record(t.Context(), held, []byte("done")); err != nil {
		t.Fatal(err)
	}
	if n, err := sentinel.Primary().Client().Wait(t.Context(), 1, 0).Result(); n != 1 || err != nil {
		t.Fatalf("%d replicas have it, %v", n, err)
	}
	sentinel.FailOver()
	end, tick := time.NewTimer(10*time.Second), time.NewTicker(20*time.Millisecond)
	defer end.Stop()
	defer tick.Stop()
	for err := s.Ping(t.Context()); err != nil; err = s.Ping(t.Context()) {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("10s after the failover: %v", err)
		}
	}
	mustReserve(t, s, "before", request("r.2"), idempotency.Recorded)
	held = mustWin(t, s, "after", "r.3")
	if err := s.Record(t.Context(), held, nil); err != nil {
		t.Errorf("record after the failover: %v", err)
	}
}
