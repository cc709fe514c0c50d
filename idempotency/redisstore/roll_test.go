package redisstore_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redistest"
)

func ids(replicas []health.Replica) []string {
	var ids []string
	for _, r := range replicas {
		ids = append(ids, r.ID)
	}
	return ids
}

func TestRoll(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) string{
		"on redis":     func(t *testing.T) string { return redistest.Start(t).Addr() },
		"on miniredis": func(t *testing.T) string { return miniredis.RunT(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, start(t))
			testRoll(t, c)
		})
	}
}

func testRoll(t *testing.T, c redis.UniversalClient) {
	a, b := newStore(t, c), newStore(t, c)
	own := health.Replica{
		ID: "ra", Version: "v1", Started: time.Unix(1, 0).UTC(), Seen: time.Unix(2, 3).UTC(), KeyFormat: idempotency.KeyFormat, Config: "c0ffee",
		Backends: map[string]string{"idempotency": "sqlite"}, Degraded: []string{"gateway/durability:idempotency"}, Unsettled: 7,
	}
	live, err := a.Beat(t.Context(), own, beatLife)
	if err != nil || !reflect.DeepEqual(live, []health.Replica{own}) {
		t.Fatalf("Beat of the first = %+v, %v; want itself", live, err)
	}
	if live := mustBeat(t, b, "rb"); len(live) != 2 || !reflect.DeepEqual(live[0], own) || live[1].ID != "rb" {
		t.Errorf("Beat of the second = %+v, want what the first one said, and itself", live)
	}
	if got := pttl(t, c, "test:replica:ra"); got <= beatLife/2 || got > beatLife {
		t.Errorf("a heartbeat lives for %s, want %s", got, beatLife)
	}

	for _, err := range []error{
		c.SAdd(t.Context(), "test:replicas", "odd", "dead").Err(),
		c.Set(t.Context(), "test:replica:odd", `{"replica":7,"version":"v9"}`, beatLife).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if live := mustBeat(t, b, "rb"); len(live) != 3 || !reflect.DeepEqual(live[0], health.Replica{ID: "odd"}) {
		t.Errorf("Beat = %+v, want of the unreadable heartbeat the id, and no dead replica", live)
	}
	if listed, err := c.SIsMember(t.Context(), "test:replicas", "dead").Result(); listed || err != nil {
		t.Errorf("the dead replica is listed: %t, %v", listed, err)
	}

	if err := a.Leave(t.Context(), "ra"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Exists(t.Context(), "test:replica:ra").Result(); n != 0 || err != nil {
		t.Errorf("%d heartbeats after Leave, %v", n, err)
	}
	if got, want := ids(mustBeat(t, b, "rb")), []string{"odd", "rb"}; !reflect.DeepEqual(got, want) {
		t.Errorf("replicas after Leave: %v, want %v", got, want)
	}
}

func TestABeatLooksAtABoundedNumberOfReplicas(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s := newStore(t, c)
	var dead []any
	for i := range 1500 {
		dead = append(dead, fmt.Sprint("dead", i))
	}
	if err := c.SAdd(t.Context(), "test:replicas", dead...).Err(); err != nil {
		t.Fatal(err)
	}
	for _, atLeast := range []int64{501, 1} {
		if got := ids(mustBeat(t, s, "r1")); !reflect.DeepEqual(got, []string{"r1"}) {
			t.Errorf("replicas: %v, want r1", got)
		}
		if n, err := c.SCard(t.Context(), "test:replicas").Result(); n < atLeast || n > atLeast+1 || err != nil {
			t.Errorf("%d replicas are listed, %v; want %d", n, err, atLeast)
		}
	}
}

func TestABeatTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	c, trips := newClient(t, redistest.Start(t).Addr()), 0
	s := newStore(t, c)
	mustBeat(t, newStore(t, c), "r1")
	mustBeat(t, s, "r2")
	c.AddHook(before(func([]redis.Cmder) { trips++ }))
	if live := mustBeat(t, s, "r2"); len(live) != 2 || trips != 2 {
		t.Errorf("%d replicas in %d round trips, want 2 in 2", len(live), trips)
	}
}

// Otherwise one that a frozen server had not carried out yet could pass for the
// one that it acknowledged before.
func TestNoTwoHeartbeatsAreAlike(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s, texts := newStore(t, c), make(map[string]bool)
	for range 3 {
		mustBeat(t, s, "r1")
		text, err := c.Get(t.Context(), "test:replica:r1").Result()
		if err != nil || texts[text] {
			t.Errorf("the heartbeat is %s again, %v", text, err)
		}
		texts[text] = true
	}
}

func TestAHeartbeatIsAcknowledgedAlthoughTheListIsBroken(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s := newStore(t, c)
	mustWin(t, s, "m", "r1.a")
	if err := c.Set(t.Context(), "test:replicas", "no list", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if live, err := s.Beat(t.Context(), health.Replica{ID: "r2"}, beatLife); err == nil {
		t.Errorf("Beat = %v, want an error about the list", live)
	}
	mustReserve(t, s, "m", taking("r2.b"), idempotency.Won)
}
