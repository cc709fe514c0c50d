package redistest_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redistest"
)

func TestStub(t *testing.T) {
	t.Parallel()
	s := redistest.NewStub(t)
	old := dial(t, s.Addr())
	send(t, old, "*1\r\n$4\r\nPING\r\n")
	wantLine(t, old, "+PONG")
	s.Answer(func(r redistest.Request) string {
		switch {
		case r.Args[0] == "set" && r.Conn == 1:
			return "-READONLY " + r.Args[1]
		case r.Args[0] == "get":
			return redistest.Silence
		case r.Args[0] == "quit":
			return redistest.Hangup
		}
		return ""
	})
	send(t, old, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")
	wantLine(t, old, "-READONLY k")
	c := dial(t, s.Addr())
	send(t, c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")
	wantLine(t, c, "+OK")
	send(t, c, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
	wantSilence(t, c)
	s.Refuse("MISCONF disk", "set")
	send(t, c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")
	wantLine(t, c, "-MISCONF disk")
	send(t, c, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
	wantLine(t, c, "$-1")
	s.Answer(func(redistest.Request) string { return redistest.Hangup })
	send(t, c, "*1\r\n$4\r\nPING\r\n")
	wantEnd(t, c)
	if s.Conns() != 2 {
		t.Errorf("%d connections, want 2", s.Conns())
	}
}

func TestClusterServesItsSlots(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 2} {
		c := redistest.StartCluster(t, nodes)[0].Client()
		// The keys are in the first and the last quarter of the slots.
		for key, elsewhere := range map[string]bool{"{b}": false, "{a}": nodes > 1} {
			err := c.Get(t.Context(), key).Err()
			if _, moved := redis.IsMovedError(err); moved != elsewhere || !moved && err != redis.Nil {
				t.Errorf("of %d nodes the first says %v of %s, want moved %t", nodes, err, key, elsewhere)
			}
		}
		if err := c.MGet(t.Context(), "{a}", "{b}").Err(); !redis.HasErrorPrefix(err, "CROSSSLOT") {
			t.Errorf("two keys of different slots: %v", err)
		}
	}
}

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	old := s.Primary()
	if err := old.Client().Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := old.Client().Wait(t.Context(), 1, 0).Result(); n != 1 || err != nil {
		t.Fatalf("%d replicas have it, %v", n, err)
	}
	now := s.FailOver()
	if got, err := now.Client().Get(t.Context(), "k").Result(); now == old || got != "v" || err != nil {
		t.Errorf("the new primary has %q, %v", got, err)
	}
	if err := now.Client().Set(t.Context(), "k", "w", 0).Err(); err != nil {
		t.Errorf("the new primary takes no writes: %v", err)
	}
}
