package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

var errRefused = errors.New("connection refused")

func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// outage is a Failover over three stores in memory, the first two of which can
// be made to fail.
type outage struct {
	*idempotency.Failover
	redis, sqlite *idempotencytest.Faulty
	health        *health.Registry
	slips, opens  atomic.Int32
	uncarried     atomic.Int32
	redisMayOpen  atomic.Bool
}

func newOutage(t *testing.T, policy string, first string, now func() time.Time) *outage {
	o := &outage{
		redis:  &idempotencytest.Faulty{Store: idempotency.NewMemory(now)},
		sqlite: &idempotencytest.Faulty{Store: idempotency.NewMemory(now)},
		health: health.NewRegistry(slog.New(slog.NewTextHandler(io.Discard, nil))),
	}
	o.redisMayOpen.Store(true)
	open := func(s idempotency.Store) func(context.Context) (idempotency.Store, error) {
		return func(context.Context) (idempotency.Store, error) { return s, nil }
	}
	unreachable := func(error) string { return "unreachable" }
	tiers := []idempotency.Tier{
		{Name: idempotency.BackendRedis, Classify: unreachable, Timeout: 300 * time.Millisecond, Open: func(context.Context) (idempotency.Store, error) {
			if !o.redisMayOpen.Load() {
				return nil, errRefused
			}
			return named{o.redis, idempotency.BackendRedis}, nil
		}},
		{Name: idempotency.BackendSQLite, Classify: unreachable, Open: open(named{o.sqlite, idempotency.BackendSQLite})},
		{Name: idempotency.BackendMemory, Classify: unreachable, Open: open(idempotency.NewMemory(now))},
	}
	if first == idempotency.BackendSQLite {
		tiers = tiers[1:]
	}
	o.Failover = idempotency.NewFailover(idempotency.FailoverConfig{
		Tiers: tiers, OnUnavailable: policy, Health: o.health, Log: logger(t), Now: now, ProbeEvery: time.Second,
		Events: idempotency.Events{FailOpen: func() { o.opens.Add(1) }, Slipped: func() { o.slips.Add(1) }, Uncarried: func() { o.uncarried.Add(1) }},
	})
	return o
}

// named gives a memory store the name of the backend that it stands for.
type named struct {
	*idempotencytest.Faulty
	name string
}

func (n named) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	res, err := n.Faulty.Reserve(ctx, key, req)
	if res.State == idempotency.Won {
		res.Claim.Backend = n.name
	}
	return res, err
}

// owner returns the degraded owner of the claims, or the zero Owner.
func (o *outage) owner() health.Owner {
	for _, owner := range o.health.Owners() {
		if owner.ID == "durability:idempotency" {
			return owner
		}
	}
	return health.Owner{}
}

// inOutage runs test inside a synctest bubble, with the probing under way.
func inOutage(t *testing.T, policy, first string, test func(*testing.T, *outage)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t, policy, first, time.Now)
		o.Start(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx) }()
		test(t, o)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
		if err := o.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
}

// probed waits until a full round of probing has passed.
func probed() { time.Sleep(1500 * time.Millisecond) }

func mustMeet(t *testing.T, s idempotency.Store, id, token string, want idempotency.State) idempotency.Reservation {
	t.Helper()
	res, err := s.Reserve(t.Context(), idempotencytest.Key(id), idempotency.Request{Token: token, Lease: time.Minute, TTL: time.Hour})
	if err != nil || res.State != want {
		t.Fatalf("Reserve(%s by %s) = state %d, %v; want state %d", id, token, res.State, err, want)
	}
	return res
}

func TestFailoverKeepsTheStoreContract(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]bool{"configured store": false, "store behind it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotencytest.Run(t, func(t *testing.T) idempotencytest.Backend {
				c := idempotencytest.NewClock()
				o := newOutage(t, idempotency.Open, idempotency.BackendRedis, c.Now)
				if away {
					o.redis.Fail(errRefused)
				}
				o.Start(t.Context())
				return idempotencytest.Backend{Store: o, Advance: c.Advance}
			})
		})
	}
}

func TestFailover(t *testing.T) {
	t.Parallel()
	const redis, sqlite = idempotency.BackendRedis, idempotency.BackendSQLite

	t.Run("Redis missing at start: the local store serves and the owner is cold", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o := newOutage(t, idempotency.Open, redis, time.Now)
			o.redisMayOpen.Store(false)
			o.Start(t.Context())
			want := health.Owner{Kind: "gateway", ID: "durability:idempotency", State: "cold", Class: "unreachable",
				Reason: "redis idempotency backend not available (running per-replica)"}
			got := o.owner()
			if got.RetryHint == "" {
				t.Error("owner has no hint what to do next")
			}
			got.RetryHint = ""
			if got != want {
				t.Errorf("owner = %+v, want %+v", got, want)
			}
			if c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim; c.Backend != sqlite || o.Backend() != sqlite {
				t.Errorf("claim made in %s while serving from %s, want %s", c.Backend, o.Backend(), sqlite)
			}
			mustMeet(t, o, "m", "r1.b", idempotency.InFlight)
			if n := o.opens.Load(); n != 1 {
				t.Errorf("%d fail-open admissions counted, want 1", n)
			}
		})
	})

	t.Run("Redis lost while running: the owner is stale, and gone after recovery", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			if got := o.owner(); got != (health.Owner{}) {
				t.Fatalf("degraded before any fault: %+v", got)
			}
			o.redis.Fail(errRefused)
			mustMeet(t, o, "m", "r1.a", idempotency.Won)
			if got := o.owner(); got.State != "stale" || got.Reason != "redis idempotency backend unreachable at runtime (dedup best-effort until it recovers)" {
				t.Errorf("owner = %+v", got)
			}
			o.redis.Fail(nil)
			probed()
			if got := o.owner(); got != (health.Owner{}) || o.Backend() != redis {
				t.Errorf("after recovery: serving from %s, owner %+v", o.Backend(), got)
			}
		})
	})

	t.Run("a lost store is noticed by the probe without any message", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			probed()
			if o.owner() == (health.Owner{}) {
				t.Error("health is green with the configured store away")
			}
		})
	})

	t.Run("closed: claims are refused and nothing is claimed elsewhere", func(t *testing.T) {
		inOutage(t, idempotency.Closed, redis, func(t *testing.T, o *outage) {
			o.redis.FailAfter(errRefused)
			before := o.sqlite.Calls()
			for _, token := range []string{"r1.a", "r1.b"} {
				_, err := o.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: token, Lease: time.Hour, TTL: time.Hour})
				if !errors.Is(err, idempotency.ErrUnavailable) {
					t.Fatalf("Reserve = %v, want ErrUnavailable", err)
				}
			}
			if o.Backend() != "none" || o.sqlite.Calls() != before || o.owner() == (health.Owner{}) {
				t.Errorf("serving from %q, %d local calls, owner %+v", o.Backend(), o.sqlite.Calls()-before, o.owner())
			}
			o.redis.Fail(nil)
			probed()
			mustMeet(t, o, "m", "r1.c", idempotency.Won) // the claim whose answer was lost is gone
		})
	})

	t.Run("SQLite configured and unusable: memory serves, with its reason", func(t *testing.T) {
		inOutage(t, idempotency.Open, sqlite, func(t *testing.T, o *outage) {
			o.sqlite.Fail(errors.New("disk I/O error"))
			mustMeet(t, o, "m", "r1.a", idempotency.Won)
			got := o.owner()
			if got.State != "cold" || got.Reason != "durable idempotency store unavailable (running in-memory)" || o.Backend() != "memory" {
				t.Errorf("serving from %s, owner %+v", o.Backend(), got)
			}
		})
	})

	t.Run("both stores away: memory serves, and the owner names the weakest", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.sqlite.Fail(errRefused)
			o.redis.Fail(errRefused)
			mustMeet(t, o, "m", "r1.a", idempotency.Won)
			mustMeet(t, o, "m", "r1.b", idempotency.InFlight)
			if got := o.owner(); got.Reason != "durable idempotency store unavailable (running in-memory)" {
				t.Errorf("owner = %+v", got)
			}
			o.sqlite.Fail(nil)
			probed()
			if got := o.owner(); got.State != "stale" || o.Backend() != sqlite {
				t.Errorf("with SQLite back: serving from %s, owner %+v", o.Backend(), got)
			}
			mustMeet(t, o, "m", "r1.c", idempotency.InFlight)
		})
	})

	t.Run("what was recorded during an outage is known after it", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			if err := o.Record(t.Context(), c, []byte("answer")); err != nil {
				t.Fatal(err)
			}
			o.redis.Fail(nil)
			probed()
			if res := mustMeet(t, o.redis, "m", "r2.b", idempotency.Recorded); string(res.Outcome) != "answer" {
				t.Errorf("outcome in Redis = %q", res.Outcome)
			}
		})
	})

	t.Run("a run that outlasts the outage is in flight in Redis and records there", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			o.redis.Fail(nil)
			probed()
			mustMeet(t, o, "m", "r2.b", idempotency.InFlight)
			if err := o.Renew(t.Context(), c); err != nil {
				t.Errorf("Renew = %v", err)
			}
			if err := o.Record(t.Context(), c, nil); err != nil {
				t.Errorf("Record = %v", err)
			}
			mustMeet(t, o.redis, "m", "r2.c", idempotency.Recorded)
		})
	})

	t.Run("a record that Redis cannot take is kept locally and carried back", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			o.redis.Fail(errRefused)
			if err := o.Record(t.Context(), c, []byte("answer")); err != nil {
				t.Fatalf("Record during the outage = %v", err)
			}
			mustMeet(t, o, "m", "r1.b", idempotency.Recorded)
			o.redis.Fail(nil)
			probed()
			mustMeet(t, o.redis, "m", "r2.c", idempotency.Recorded)
		})
	})

	t.Run("a release that Redis cannot take is made when it is back", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			o.redis.Fail(errRefused)
			if err := o.Release(t.Context(), c); err == nil {
				t.Fatal("Release succeeded without its store")
			}
			o.redis.Fail(nil)
			probed()
			mustMeet(t, o.redis, "m", "r2.b", idempotency.Won)
		})
	})

	t.Run("a reservation whose answer was lost leaves no phantom", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.FailAfter(errRefused)
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			if err := o.Release(t.Context(), c); err != nil { // the local run failed
				t.Fatal(err)
			}
			o.redis.Fail(nil)
			probed()
			mustMeet(t, o.redis, "m", "r2.b", idempotency.Won)
		})
	})

	t.Run("the same message run on both sides of the outage is counted as slipped", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			c := mustMeet(t, o, "m", "r1.a", idempotency.Won).Claim
			if err := o.Record(t.Context(), c, nil); err != nil {
				t.Fatal(err)
			}
			o.redis.Fail(nil)
			other := mustMeet(t, o.redis, "m", "r2.b", idempotency.Won).Claim
			if err := o.redis.Record(t.Context(), other, nil); err != nil {
				t.Fatal(err)
			}
			probed()
			if n := o.slips.Load(); n != 1 || o.Backend() != redis {
				t.Errorf("%d slipped duplicates, serving from %s; want 1 and redis", n, o.Backend())
			}
		})
	})

	t.Run("while Redis is down no claim waits for it", func(t *testing.T) {
		inOutage(t, idempotency.Open, redis, func(t *testing.T, o *outage) {
			o.redis.Fail(errRefused)
			mustMeet(t, o, "first", "r1.a", idempotency.Won)
			before := o.redis.Calls()
			for _, id := range []string{"a", "b", "c"} {
				mustMeet(t, o, id, "r1."+id, idempotency.Won)
			}
			if n := o.redis.Calls() - before; n != 0 {
				t.Errorf("%d calls to a store that is down, want none", n)
			}
		})
	})
}

func TestB134TroubleIsLoggedOnceForEachChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		auth, refused := errors.New("WRONGPASS"), errors.New("refused")
		redis := &idempotencytest.Faulty{Store: idempotency.NewMemory(time.Now)}
		class := func(err error) string {
			if errors.Is(err, auth) {
				return "auth"
			}
			return "unreachable"
		}
		f := idempotency.NewFailover(idempotency.FailoverConfig{
			Tiers: []idempotency.Tier{
				{Name: idempotency.BackendRedis, Classify: class, Lasting: func(class string) bool { return class == "auth" },
					Open: func(context.Context) (idempotency.Store, error) { return redis, nil }},
				{Name: idempotency.BackendMemory, Classify: class,
					Open: func(context.Context) (idempotency.Store, error) { return idempotency.NewMemory(time.Now), nil }},
			},
			OnUnavailable: idempotency.Open, Health: health.NewRegistry(slog.New(slog.NewTextHandler(&log, nil))),
			Log: slog.New(slog.DiscardHandler), Now: time.Now, ProbeEvery: time.Second,
		})
		f.Start(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		for _, fault := range []error{refused, auth} {
			redis.Fail(fault)
			for i := range 100 {
				mustMeet(t, f, fmt.Sprint(fault, i), fmt.Sprint("r1.", fault, i), idempotency.Won)
			}
			time.Sleep(5 * time.Second)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		text := log.String()
		if warnings, errs := strings.Count(text, "level=WARN"), strings.Count(text, "level=ERROR"); warnings != 1 || errs != 1 {
			t.Errorf("%d warnings and %d errors, want one each: what heals by itself, then what needs a person:\n%s", warnings, errs, text)
		}
	})
}

func TestTheOwnersHintIsThatOfItsClass(t *testing.T) {
	inOutage(t, idempotency.Open, idempotency.BackendRedis, func(t *testing.T, o *outage) {
		o.redis.Fail(errRefused)
		mustMeet(t, o, "m", "r1.a", idempotency.Won)
		if hint := o.owner().RetryHint; !strings.HasPrefix(hint, health.RedisHint("unreachable")) {
			t.Errorf("hint = %q", hint)
		}
	})
}
