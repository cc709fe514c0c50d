package redishistory_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/agent/historytest"
	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/internal/redistest"
)

func TestTheIndexLosesWhatIsOver(t *testing.T) {
	t.Parallel()
	m := newFake(t)
	h := redishistory.New(newClient(t, m.Addr()), config())
	const sessions = 50
	for i := range sessions {
		mustBegin(t, h, fmt.Sprint("old", i), 1)
	}
	m.advance(historytest.TTL / 2)
	mustBegin(t, h, "live", 1)
	m.advance(historytest.TTL / 2)
	const live = 2
	before := sessions + live
	for turns := 0; before > live; turns++ {
		mustBegin(t, h, "now", 1)
		members, err := m.ZMembers(prefix + "sessions")
		if err != nil {
			t.Fatal(err)
		}
		if lost := before - len(members); lost <= 0 || lost > 20 {
			t.Fatalf("turn %d took %d sessions off the index, want a few", turns, lost)
		}
		before = len(members)
	}
	if names, more := mustList(t, h, 10); fmt.Sprint(names) != "[now live]" || more {
		t.Errorf("List = %q, more %t", names, more)
	}
}

func TestListPassesOverSessionsThatWereEvicted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	h := redishistory.New(newClient(t, server.Addr()), config())
	for i := range 6 {
		mustBegin(t, h, fmt.Sprint(i), 1)
	}
	for _, evicted := range []string{"5", "4", "1"} {
		if err := server.Client().Del(t.Context(), prefix+"session:"+evicted).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range map[int]string{1: "[3] true", 2: "[3 2] true", 3: "[3 2 0] false", 10: "[3 2 0] false"} {
		names, more := mustList(t, h, limit)
		if got := fmt.Sprint(names, " ", more); got != want {
			t.Errorf("List(%d) = %s, want %s", limit, got, want)
		}
	}
}

func TestListLooksAtNoSessionWhoseTimeIsOver(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin, h := server.Client(), redishistory.New(newClient(t, server.Addr()), config())
	used := time.Now().Add(-2 * historytest.TTL).UnixMicro()
	for _, old := range []string{"a", "b", "c"} { // which no turn has taken off the index yet
		if err := admin.ZAdd(t.Context(), prefix+"sessions", redis.Z{Score: float64(used), Member: old}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if names, more := mustList(t, h, 10); len(names) != 0 || more {
		t.Errorf("List = %q, more %t", names, more)
	}
	if n := calls(t, admin, "hmget"); n != 0 {
		t.Errorf("%d sessions were looked at, want none", n)
	}
}

func TestListInPages(t *testing.T) {
	t.Parallel()
	h := redishistory.New(newClient(t, redistest.Start(t).Addr()), config())
	const sessions = 1100 // of which one page has 500
	for i := range sessions {
		mustBegin(t, h, fmt.Sprint(i), 1)
	}
	names, more := mustList(t, h, sessions-1)
	if len(names) != sessions-1 || !more {
		t.Fatalf("%d sessions, more %t; want %d and more", len(names), more, sessions-1)
	}
	for i, name := range names {
		if want := fmt.Sprint(sessions - 1 - i); name != want {
			t.Fatalf("session %d is %s, want %s", i, name, want)
		}
	}
}
