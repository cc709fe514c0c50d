package redislock_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/turnlock/redislock"
)

// scripts speaks to a server as Lockers do, one call at a time, for orders of
// calls that only a slow network makes.
type scripts struct {
	t      *testing.T
	client *redis.Client
}

func newScripts(t *testing.T) scripts { return scripts{t, redistest.Start(t).Client()} }

func (s scripts) eval(file string, keys []string, args ...any) *redis.Cmd {
	s.t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := s.client.Eval(s.t.Context(), string(source), keys, args...)
	if cmd.Err() != nil {
		s.t.Fatalf("%s: %v", file, cmd.Err())
	}
	return cmd
}

var all = []string{"lock", "queue", "replicas", "fence"}

// acquire returns the fence, 0 if the token has to wait.
func (s scripts) acquire(token string, first bool) int64 {
	s.t.Helper()
	replica, _, _ := strings.Cut(token, ".")
	may := 0
	if first {
		may = 1
	}
	return s.eval("acquire.lua", all, token, replica, 60_000, 60_000, 60_000, 0, may).Val().([]any)[0].(int64)
}

// leave gives back a place, or the lock with its fence, and returns whether it
// was the token's.
func (s scripts) leave(token string, fence int64) int64 {
	s.t.Helper()
	return s.eval("leave.lua", all, token, "wake:", "s", "", 60_000, fence).Val().(int64)
}

func (s scripts) renew(token string, fence string) int64 {
	s.t.Helper()
	return s.eval("renew.lua", []string{"lock", "fence"}, token+"|"+fence, fence, 60_000, 60_000).Val().(int64)
}

// queue returns the waiting tokens in their order.
func (s scripts) queue() string {
	return strings.Join(s.client.ZRange(s.t.Context(), "queue", 0, -1).Val(), " ")
}

func TestScripts(t *testing.T) {
	t.Parallel()
	t.Run("an acquisition whose answer was lost is answered again alike", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		fence := s.acquire("a.1", true)
		if again := s.acquire("a.1", true); fence == 0 || again != fence {
			t.Errorf("fence %d, then %d; want the same", fence, again)
		}
		if got := s.queue(); got != "" {
			t.Errorf("the holder waits for itself: %s", got)
		}
	})

	t.Run("a fence exceeds the one before although the clock was set back", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		const ahead = 9007199254730000
		s.client.Set(t.Context(), "fence", ahead, time.Minute)
		if got := s.acquire("a.1", true); got != ahead+1 {
			t.Errorf("fence %d, want %d", got, int64(ahead+1))
		}
	})

	t.Run("of two waiters of a replica the first takes the front place and the other the one behind", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("h.1", true)
		s.acquire("a.second", false) // which came to the server first
		s.acquire("b.1", true)
		s.acquire("a.first", true)
		s.leave("h.1", 0)
		if s.acquire("a.first", true) == 0 {
			t.Fatal("the front place of the replica was not taken")
		}
		if got := s.queue(); got != "b.1 a.second" {
			t.Errorf("queue %q, want b.1 before a.second", got)
		}
	})

	t.Run("a waiter that is not the first of its replica does not take a free lock", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		for range 2 { // without a place, and with the front one
			if s.acquire("a.2", false) != 0 {
				t.Error("it was taken")
			}
		}
		if s.acquire("a.1", true) == 0 {
			t.Error("the first of the replica did not get it")
		}
	})

	t.Run("a newcomer does not pass those who wait for a lock that is free just now", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("h.1", true)
		s.acquire("a.1", true)
		s.leave("h.1", 0)
		if s.acquire("b.1", true) != 0 {
			t.Error("it passed")
		}
		if s.acquire("a.1", true) == 0 {
			t.Error("who waited did not get it")
		}
	})

	t.Run("the last place stays the last although the clock was set back", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("h.1", true)
		s.acquire("a.1", true)
		s.client.ZAdd(t.Context(), "queue", redis.Z{Score: 9007199254730000, Member: "a.1"})
		s.acquire("b.1", true)
		if got := s.queue(); got != "a.1 b.1" {
			t.Errorf("queue %q, want the order of arrival", got)
		}
	})

	t.Run("a renewal that comes after the release takes no lock back", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("a.1", true)
		fence := s.client.Get(t.Context(), "fence").Val()
		s.leave("a.1", 0)
		if s.renew("a.1", fence) != 0 || s.client.Exists(t.Context(), "lock").Val() != 0 {
			t.Error("the lock is held again by a turn that is over")
		}
	})

	t.Run("a renewal brings back a lock that the server lost, unless another turn has had it since", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("a.1", true)
		fence := s.client.Get(t.Context(), "fence").Val()
		s.client.Del(t.Context(), "lock")
		if s.renew("a.1", fence) != 1 {
			t.Error("not renewed although nobody has had it")
		}
		s.client.Del(t.Context(), "lock", "fence")
		if s.renew("a.1", fence) != 1 || s.client.PTTL(t.Context(), "fence").Val() <= 0 {
			t.Error("not renewed after the server lost everything")
		}
		s.client.Del(t.Context(), "lock")
		s.acquire("b.1", true)
		s.client.Del(t.Context(), "lock")
		if s.renew("a.1", fence) != 0 {
			t.Error("renewed although another turn has had the lock")
		}
	})

	t.Run("a lock is given back once, and the same call repeated says so too", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		fence := s.acquire("a.1", true)
		if first, again := s.leave("a.1", fence), s.leave("a.1", fence); first != 1 || again != 1 {
			t.Errorf("answers %d and %d, want 1 twice", first, again)
		}
		s.acquire("b.1", true)
		if s.leave("a.1", fence) != 0 {
			t.Error("another's lock was given back")
		}
	})

	t.Run("a lock that had expired is not renewed after it was given back", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		fence := s.acquire("a.1", true)
		text := s.client.Get(t.Context(), "fence").Val()
		s.client.Del(t.Context(), "lock")
		if s.leave("a.1", fence) != 0 {
			t.Error("an expired lock was given back as if it were held")
		}
		if s.renew("a.1", text) != 0 {
			t.Error("a turn that is over holds the lock again")
		}
	})

	t.Run("a replica with a shorter life does not cut the places of others short", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("h.1", true)
		s.acquire("a.1", true)
		s.eval("acquire.lua", all, "b.1", "b", 60_000, 10, 60_000, 0, 1)
		for _, key := range []string{"queue", "replicas"} {
			if left := s.client.PTTL(t.Context(), key).Val(); left < time.Minute {
				t.Errorf("%s lives for another %s", key, left)
			}
		}
	})

	t.Run("a dead waiter from before the clock was set back is passed after one life more", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("h.1", true)
		s.acquire("dead.1", true)
		s.client.HSet(t.Context(), "replicas", "dead", time.Now().Add(24*time.Hour).UnixMilli())
		s.acquire("a.1", true)
		s.leave("h.1", 0)
		s.acquire("a.1", true)
		until, err := s.client.HGet(t.Context(), "replicas", "dead").Int64()
		if err != nil || time.UnixMilli(until).After(time.Now().Add(2*time.Minute)) {
			t.Errorf("it counts until %s, %v", time.UnixMilli(until), err)
		}
	})

	t.Run("places that nobody asks for any more are passed, and their list ends with the last", func(t *testing.T) {
		t.Parallel()
		s := newScripts(t)
		s.acquire("h.1", true)
		s.acquire("dead.1", true)
		s.client.HSet(t.Context(), "replicas", "dead", 1)
		s.acquire("a.1", true)
		s.leave("h.1", 0)
		if s.acquire("a.1", true) == 0 {
			t.Error("a dead waiter is in the way")
		}
		s.leave("a.1", 0)
		if n := s.client.Exists(t.Context(), "lock", "queue").Val(); n != 0 {
			t.Errorf("%d keys are left of a lock that nobody wants", n)
		}
	})
}

func TestWaitersAreForgotten(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := newReplica(t, s.Addr(), "a", func(c *redislock.Config) { c.MaxWait = 50 * time.Millisecond })
	lease := mustAcquire(t, a, "s")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = a.Acquire(ctx, "s")         // ended before it began
	_, _ = a.Acquire(t.Context(), "s") // gives up
	lease.Release()
	mustAcquire(t, a, "s").Release()
	if n := a.Waiting(); n != 0 {
		t.Errorf("%d waiters are remembered, want none", n)
	}
	if n := s.Client().Exists(t.Context(), prefix+"turnqueue:s").Val(); n != 0 {
		t.Error("the server remembers one")
	}
}
