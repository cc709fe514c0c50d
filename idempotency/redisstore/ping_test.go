package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redistest"
)

// wantEmptied pings until the server works, and checks what that Ping says;
// the one after it says nothing.
func wantEmptied(t *testing.T, s *redisstore.Store, want bool) {
	t.Helper()
	if err := s.Ping(t.Context()); errors.Is(err, idempotency.ErrEmptied) != want || !want && err != nil {
		t.Errorf("Ping = %v, want emptied %t", err, want)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("the Ping after it = %v, want nil", err)
	}
}

func TestPingTellsOnceThatTheServerWasEmptied(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	c := newClient(t, redisServer.Addr())
	a, b := newStoreOf(t, c, "test:"), newStoreOf(t, c, "test:")
	wantEmptied(t, a, true) // it cannot know better
	wantEmptied(t, b, false)
	for range 2 { // each with another epoch
		if err := c.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		wantEmptied(t, a, true)
		wantEmptied(t, b, true)
	}
	redisServer.Restart()
	wantEmptied(t, b, true)
	wantEmptied(t, a, true)
	wantEmptied(t, newStoreOf(t, c, "test:"), false)
	if err := redisServer.Client().PExpire(t.Context(), "test:epoch", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	wantEmptied(t, a, false)
	if got := pttl(t, c, "test:epoch"); got < 29*24*time.Hour {
		t.Errorf("the epoch lives for %s after a Ping, want 30 days", got)
	}
}

func TestPingKnowsAServerThatKeptItsDataOverARestart(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t, "--appendonly", "yes")
	s := newStore(t, newClient(t, redisServer.Addr()))
	redisServer.Restart()
	wantEmptied(t, s, false)
}

func TestPingsAtOnceTellOfOneLossOnce(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s := newStore(t, c)
	for range 20 {
		if err := c.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		var told atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if errors.Is(s.Ping(t.Context()), idempotency.ErrEmptied) {
					told.Add(1)
				}
			})
		}
		wg.Wait()
		if got := told.Load(); got != 1 {
			t.Fatalf("%d calls told of the loss, want 1", got)
		}
	}
}

func TestPingTellsOfALossAfterALostAnswer(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	t.Run("that the client makes up for", func(t *testing.T) {
		t.Parallel()
		proxy := redistest.NewProxy(t, redisServer.Addr())
		s := newStoreOf(t, newClient(t, proxy.Addr()), "one:")
		proxy.CutReply("one:epoch")
		wantEmptied(t, s, true)
	})
	t.Run("that was an error", func(t *testing.T) {
		t.Parallel()
		proxy := redistest.NewProxy(t, redisServer.Addr())
		s := newStoreOf(t, newClient(t, proxy.Addr()), "two:")
		proxy.Drop(true)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := s.Ping(ctx); err == nil || errors.Is(err, idempotency.ErrEmptied) {
			t.Fatalf("Ping = %v, want that no answer came", err)
		}
		proxy.Drop(false)
		wantEmptied(t, s, true)
	})
}

func TestPingFailsWithAnyOfItsCommands(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	for _, refused := range []string{"set test:hookidem:ping", "get test:hookidem:ping", "set test:epoch", "get test:epoch", "pexpire test:epoch"} {
		s := newStore(t, newClient(t, m.Addr()))
		m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			refuse := strings.HasPrefix(strings.ToLower(cmd)+" "+strings.Join(args, " "), refused)
			if refuse {
				c.WriteError("MISCONF Redis is configured to save, but cannot")
			}
			return refuse
		})
		err := s.Ping(t.Context())
		if redisclient.Classify(err) != redisclient.Misconf || errors.Is(err, idempotency.ErrEmptied) {
			t.Errorf("Ping where %q is refused = %v, want MISCONF", refused, err)
		}
		m.Server().SetPreHook(nil)
		wantEmptied(t, s, false)
	}
}

// A gateway that starts later has to find the epoch missing.
func TestAPingForALookLeavesNoEpoch(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	look := open(t, newClient(t, server.Addr()), redisstore.Config{Prefix: "test:"})
	for range 2 {
		if err := look.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := server.Client().Exists(t.Context(), "test:epoch").Result(); n != 0 || err != nil {
		t.Errorf("a look has made an epoch (%d, %v)", n, err)
	}
}
