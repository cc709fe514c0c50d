package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redistest"
)

func TestListPassesOverWhatIsNoMessage(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Start(t).Addr())
	s := newStore(t, c)
	ctx := t.Context()
	for _, err := range []error{
		c.Set(ctx, "test:hookidem:a:b:c:text", "no claim", 0).Err(),
		c.LPush(ctx, "test:hookidem:a:b:c:list", "x").Err(),
		c.Set(ctx, "test:other", "x", 0).Err(),
		c.Set(ctx, "stage:hookidem:a:b:c:d", "x", 0).Err(),
		s.Ping(ctx), s.CheckScripts(ctx),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Reserve(ctx, "a:b:c:mine", idempotency.Request{Token: "r.1", Lease: time.Minute, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(ctx, idempotency.ListRequest{Limit: 10})
	if err != nil || len(page.Entries) != 1 || page.Entries[0].Key != "a:b:c:mine" || page.Next != "" {
		t.Errorf("List = %+v, %v, want the one message", page, err)
	}
	for _, key := range []idempotency.Key{"a:b:c:text", "a:b:c:list"} {
		if e, err := s.Get(ctx, key); !errors.Is(err, idempotency.ErrForeign) {
			t.Errorf("Get(%s) = %+v, %v, want ErrForeign", key, e, err)
		}
	}
	if _, err := s.List(ctx, idempotency.ListRequest{Limit: 10, After: "x"}); err == nil {
		t.Error("a page behind nothing was listed")
	}
}

// mustList returns the keys of a whole list, and the number of its pages.
func mustList(t *testing.T, s *redisstore.Store, req idempotency.ListRequest) (keys []idempotency.Key, pages int) {
	t.Helper()
	for {
		page, err := s.List(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			keys = append(keys, e.Key)
		}
		if pages++; page.Next == "" {
			slices.Sort(keys)
			return slices.Compact(keys), pages
		}
		req.After = page.Next
	}
}

func TestListGoesOnWhereThePageBeforeEnded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr()))
	var all []idempotency.Key
	pipe := server.Client().Pipeline()
	for i := range 3000 {
		all = append(all, idempotency.Key(fmt.Sprintf("a:b:c:%04d", i)))
		pipe.Set(t.Context(), "test:hookidem:"+string(all[i]), "Rr.1|"+strings.Repeat("0", 32)+"|x", time.Minute)
		pipe.Set(t.Context(), fmt.Sprintf("other:%d", i), "x", time.Minute)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustWin(t, s, "running", "r.2")
	for _, limit := range []int{1, 100, 5000} {
		keys, pages := mustList(t, s, idempotency.ListRequest{State: idempotency.Recorded, Limit: limit})
		if !slices.Equal(keys, all) || pages > 1 != (limit < len(all)) {
			t.Errorf("by %d: %d keys on %d pages, want all %d", limit, len(keys), pages, len(all))
		}
	}
	if keys, pages := mustList(t, s, idempotency.ListRequest{State: idempotency.InFlight, Limit: 1}); len(keys) != 1 || pages > 2 {
		t.Errorf("in flight: %v on %d pages, want the one", keys, pages)
	}
}

// A prefix stands for itself: what its characters would match is another
// environment.
func TestListTakesThePrefixLiterally(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"redis": redistest.Start(t).Addr(), "miniredis": miniredis.RunT(t).Addr()} {
		c := newClient(t, addr)
		for prefix, other := range map[string]string{"a*b:": "axxb:", "a?c:": "axc:", "a[d]:": "ad:", `a\e:`: "ae:"} {
			s := newStoreOf(t, c, prefix)
			mustWin(t, s, "mine", "r.1")
			mustWin(t, newStoreOf(t, c, other), "theirs", "r.2")
			if keys, _ := mustList(t, s, idempotency.ListRequest{Limit: 10}); !slices.Equal(keys, []idempotency.Key{key("mine")}) {
				t.Errorf("on %s under %q: %v, want what is under it", name, prefix, keys)
			}
		}
	}
}

func TestListPassesOverWhatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newStore(t, newClient(t, m.Addr()))
	mustWin(t, s, "stays", "r.1")
	mustWin(t, s, "ends", "r.2")
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		switch ends := "test:hookidem:" + string(key("ends")); {
		case strings.EqualFold(cmd, "scan"):
			c.WriteLen(2)
			c.WriteBulk("0")
			c.WriteStrings([]string{"test:hookidem:a:b:c:ended", ends, "test:hookidem:" + string(key("stays"))})
		case strings.EqualFold(cmd, "pttl") && args[0] == ends:
			c.WriteInt(-2)
		default:
			return false
		}
		return true
	})
	if keys, _ := mustList(t, s, idempotency.ListRequest{Limit: 10}); !slices.Equal(keys, []idempotency.Key{key("stays")}) {
		t.Errorf("listed %v, want the one that stays", keys)
	}
	if e, err := s.Get(t.Context(), key("ends")); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("Get = %+v, %v, want ErrNotFound", e, err)
	}
}

// A server that holds much else answers many times with nothing.
func TestListEndsThoughNothingIsFound(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newStore(t, newClient(t, m.Addr()))
	var cursors, counts []string // the hook's, in turn
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if !strings.EqualFold(cmd, "scan") {
			return false
		}
		cursors, counts = append(cursors, args[0]), append(counts, args[len(args)-1])
		c.WriteLen(2)
		c.WriteBulk("7")
		c.WriteLen(0)
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	page, err := s.List(ctx, idempotency.ListRequest{Limit: 30, After: "5"})
	if err != nil || len(page.Entries) != 0 || page.Next != "7" {
		t.Fatalf("List = %+v, %v, want an empty page and how to go on", page, err)
	}
	if cursors[0] != "5" || cursors[1] != "7" {
		t.Errorf("it began at %s and went on at %s, want 5 and 7", cursors[0], cursors[1])
	}
	if first, last := counts[0], counts[len(counts)-1]; first != "30" || last != "1000" {
		t.Errorf("it asked for %s keys and at last for %s, want 30 and 1000", first, last)
	}
}

// The permissions that the documentation names for looking.
func TestLookingNeedsFewPermissions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--user", "gw", "on", ">pw", "~test:*", "+scan", "+get", "+pttl")
	mustWin(t, newStore(t, newClient(t, server.Addr())), "m", "r.1")
	s := newStore(t, userClient(t, server))
	if keys, _ := mustList(t, s, idempotency.ListRequest{Limit: 10}); len(keys) != 1 {
		t.Errorf("listed %v, want the one", keys)
	}
	if e, err := s.Get(t.Context(), key("m")); err != nil || e.Token != "r.1" {
		t.Errorf("Get = %+v, %v", e, err)
	}
}
