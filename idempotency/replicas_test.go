package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

const (
	takeoverAfter = 30 * time.Second
	beatEvery     = takeoverAfter / 6
)

// server stands for a Redis that several replicas share: claims, and
// heartbeats that run out.
type server struct {
	*idempotency.Memory
	emptied atomic.Bool // the next Ping says so

	mu    sync.Mutex
	beats map[string]beat
}

type beat struct {
	replica health.Replica
	until   time.Time
}

func newServer() *server {
	return &server{Memory: idempotency.NewMemory(time.Now), beats: make(map[string]beat)}
}

func (s *server) Beat(ctx context.Context, own health.Replica, ttl time.Duration) ([]health.Replica, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats[own.ID] = beat{own, time.Now().Add(ttl)}
	var all []health.Replica
	for _, b := range s.beats {
		if time.Now().Before(b.until) {
			all = append(all, b.replica)
		}
	}
	return all, ctx.Err()
}

func (s *server) Leave(_ context.Context, replica string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.beats, replica)
	return nil
}

func (s *server) Ping(ctx context.Context) error {
	if s.emptied.Swap(false) {
		return idempotency.ErrEmptied
	}
	return s.Memory.Ping(ctx)
}

// link is one replica's way to the server, which can be cut, and its ear for
// what a Reserve is told about owners.
type link struct {
	*idempotencytest.Faulty
	owners atomic.Pointer[idempotency.Owners]
}

func (l *link) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	if req.Owners != nil {
		l.owners.Store(&req.Owners)
	}
	res, err := l.Faulty.Reserve(ctx, key, req)
	if res.State == idempotency.Won {
		res.Claim.Backend = idempotency.BackendRedis
	}
	return res, err
}

// replica is a Failover with heartbeats over a shared server and a local store.
type replica struct {
	*idempotency.Failover
	id    string
	redis *link
	local *idempotencytest.Faulty
	*health.Registry
	slips, takeovers atomic.Int32
}

func newReplica(t *testing.T, id string, s *server, local idempotency.Store) *replica {
	r := &replica{
		id: id, redis: &link{Faulty: &idempotencytest.Faulty{Store: s}}, local: &idempotencytest.Faulty{Store: local},
		Registry: health.NewRegistry(slog.New(slog.NewTextHandler(io.Discard, nil))),
	}
	r.Enter(health.Ready)
	class := func(error) string { return "unreachable" }
	r.Failover = idempotency.NewFailover(idempotency.FailoverConfig{
		Tiers: []idempotency.Tier{
			{Name: idempotency.BackendRedis, Classify: class, Timeout: 300 * time.Millisecond, Heartbeats: true,
				Open: func(context.Context) (idempotency.Store, error) { return r.redis, nil }},
			{Name: idempotency.BackendSQLite, Classify: class,
				Open: func(context.Context) (idempotency.Store, error) {
					return named{r.local, idempotency.BackendSQLite}, nil
				}},
		},
		OnUnavailable: idempotency.Open, Replica: id, Health: r.Registry, Log: logger(t), Now: time.Now, ProbeEvery: time.Second,
		Events:        idempotency.Events{Slipped: func() { r.slips.Add(1) }, TakenOver: func() { r.takeovers.Add(1) }},
		TakeoverAfter: takeoverAfter,
		Self: func() health.Replica {
			return health.Replica{ID: id, Unsettled: r.Backlog()}
		},
	})
	return r
}

// run starts the replica; the end of the test stops it.
func (r *replica) run(t *testing.T) *replica {
	t.Helper()
	r.Start(t.Context())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, r.Close()); err != nil {
			t.Errorf("%s: %v", r.id, err)
		}
	})
	return r
}

func (r *replica) mayTakeOver(t *testing.T) bool {
	t.Helper()
	res := mustMeet(t, r, "probe", r.id+".probe", idempotency.Won)
	if err := r.Release(t.Context(), res.Claim); err != nil {
		t.Fatal(err)
	}
	return (*r.redis.owners.Load()).MayTakeOver()
}

func (r *replica) degraded() bool { return len(r.Owners()) > 0 }

func memory() idempotency.Store { return idempotency.NewMemory(time.Now) }

// inBubble runs test with two replicas on one server.
func inBubble(t *testing.T, test func(t *testing.T, s *server, a, b *replica)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		test(t, s, newReplica(t, "a", s, memory()).run(t), newReplica(t, "b", s, memory()).run(t))
	})
}

func TestAReplicaKnowsItsMessagesAcrossTheEdgeOfAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		done := mustMeet(t, a, "done", "a.1", idempotency.Won).Claim
		if err := a.Record(t.Context(), done, []byte("answer")); err != nil {
			t.Fatal(err)
		}
		running := mustMeet(t, a, "running", "a.2", idempotency.Won).Claim
		time.Sleep(50 * time.Second)
		if err := a.Renew(t.Context(), running); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // past the first lease
		a.redis.Fail(errRefused)
		if res := mustMeet(t, a, "done", "a.3", idempotency.Recorded); string(res.Outcome) != "answer" {
			t.Errorf("outcome = %q", res.Outcome)
		}
		if res := mustMeet(t, a, "running", "a.4", idempotency.InFlight); res.RetryAfter <= 0 {
			t.Errorf("RetryAfter = %s", res.RetryAfter)
		}
		if err := a.Release(t.Context(), running); err == nil {
			t.Error("Release in a store that is away succeeded")
		}
		mustMeet(t, a, "running", "a.5", idempotency.Won)
	})
}

func TestWhatAnEarlierProcessLeftIsSettledBeforeTheFirstClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, file := newServer(), memory()
		mustRecordIn(t, file, "m", "dead.1", "answer")
		b := newReplica(t, "b", s, file)
		b.redis.FailOnly("settle", errRefused)
		b.run(t)
		if b.Backend() == idempotency.BackendRedis || !b.degraded() || b.Backlog() != 1 {
			t.Errorf("claims go to %s with owners %+v and a backlog of %d before the records of the last outage are in Redis", b.Backend(), b.Owners(), b.Backlog())
		}
		b.redis.FailOnly("", nil)
		probed()
		if b.Backend() != idempotency.BackendRedis || b.degraded() || b.Backlog() != 0 {
			t.Errorf("claims go to %s with owners %+v and a backlog of %d", b.Backend(), b.Owners(), b.Backlog())
		}
		if res := mustMeet(t, s, "m", "c.1", idempotency.Recorded); string(res.Outcome) != "answer" {
			t.Errorf("outcome = %q", res.Outcome)
		}
	})
}

func mustRecordIn(t *testing.T, s idempotency.Store, id, token, outcome string) {
	t.Helper()
	if err := s.Record(t.Context(), mustMeet(t, s, id, token, idempotency.Won).Claim, []byte(outcome)); err != nil {
		t.Fatal(err)
	}
}

func TestALocalStoreThatComesBackWithRecordsIsSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, file := newServer(), memory()
		mustRecordIn(t, file, "m", "dead.1", "answer")
		a := newReplica(t, "a", s, file)
		a.local.Fail(errors.New("database is locked"))
		a.run(t)
		if a.Backend() != idempotency.BackendRedis {
			t.Fatalf("claims go to %s: a broken local store keeps Redis away", a.Backend())
		}
		a.local.Fail(nil)
		probed()
		probed()
		mustMeet(t, s, "m", "b.1", idempotency.Recorded)
		if a.degraded() {
			t.Errorf("owners %+v after everything is settled", a.Owners())
		}
	})
}

func TestASettledRecordReplacesAForeignClaimAndIsASlip(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.redis.Fail(errRefused)
		mustRecordIn(t, a, "m", "a.1", "ours")
		foreign := mustMeet(t, b, "m", "b.1", idempotency.Won).Claim
		mustRecordIn(t, a, "n", "a.2", "ours")
		mustRecordIn(t, b, "n", "b.2", "theirs")
		a.redis.Fail(nil)
		probed()
		if res := mustMeet(t, s, "m", "c.1", idempotency.Recorded); string(res.Outcome) != "ours" {
			t.Errorf("outcome = %q, want that of the run that is finished", res.Outcome)
		}
		if err := b.Record(t.Context(), foreign, []byte("late")); !errors.Is(err, idempotency.ErrNotOwner) {
			t.Errorf("the replaced claim's Record = %v, want ErrNotOwner", err)
		}
		if res := mustMeet(t, s, "n", "c.2", idempotency.Recorded); string(res.Outcome) != "theirs" {
			t.Errorf("outcome = %q, want the record that was first in Redis", res.Outcome)
		}
		if n := a.slips.Load(); n != 2 {
			t.Errorf("%d slips counted, want 2", n)
		}
	})
}

func TestARunThatGoesOnIsSettledWhenItEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.redis.Fail(errRefused)
		lost, kept := mustMeet(t, a, "lost", "a.1", idempotency.Won).Claim, mustMeet(t, a, "kept", "a.2", idempotency.Won).Claim
		foreign := mustMeet(t, b, "lost", "b.1", idempotency.Won).Claim
		a.redis.Fail(nil)
		probed()
		if a.Backend() != idempotency.BackendRedis || a.slips.Load() != 1 {
			t.Errorf("claims go to %s after %d slips, want redis after one", a.Backend(), a.slips.Load())
		}
		mustMeet(t, s, "kept", "c.1", idempotency.InFlight)
		if n := a.Backlog(); n != 1 {
			t.Errorf("backlog = %d, want the run whose message somebody else has", n)
		}
		a.redis.FailOnly("beat", errRefused)
		time.Sleep(takeoverAfter*2/3 + beatEvery)
		if kept.Confirmed = time.Now(); !a.InDoubt(withOldConfirmation(kept)) {
			t.Error("a claim that moved into Redis is not in doubt by Redis's rules")
		}
		a.redis.FailOnly("", nil)
		probed()
		for _, c := range []idempotency.Claim{lost, kept} {
			if err := a.Renew(t.Context(), c); err != nil {
				t.Errorf("Renew(%s) = %v", c.Key, err)
			}
			if err := a.Record(t.Context(), c, []byte("ours")); err != nil {
				t.Errorf("Record(%s) = %v", c.Key, err)
			}
			if res := mustMeet(t, s, idOf(c), "c.2", idempotency.Recorded); string(res.Outcome) != "ours" {
				t.Errorf("outcome of %s = %q", c.Key, res.Outcome)
			}
		}
		if err := b.Renew(t.Context(), foreign); !errors.Is(err, idempotency.ErrNotOwner) {
			t.Errorf("Renew of the run that lost = %v, want ErrNotOwner", err)
		}
		if n, left := a.slips.Load(), a.Backlog(); n != 1 || left != 0 {
			t.Errorf("%d slips and a backlog of %d, want the one counted once and nothing left", n, left)
		}
	})
}

func withOldConfirmation(c idempotency.Claim) idempotency.Claim {
	c.Confirmed, c.Lease = time.Now().Add(-takeoverAfter), time.Hour
	return c
}

func idOf(c idempotency.Claim) string { return string(c.Key[len("test::room:"):]) }

func TestEveryReplicaIsDegradedWhileALivingOneHasMessagesToSettle(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		if _, err := s.Beat(t.Context(), health.Replica{ID: "c", Unsettled: 3}, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(beatEvery + time.Second)
		for _, r := range []*replica{a, b} {
			owners := r.Owners()
			if len(owners) != 1 || owners[0].State != health.Stale || owners[0].Class != "unsettled" || r.Backend() != idempotency.BackendRedis {
				t.Errorf("%s: owners %+v while another replica has messages of its own, want it degraded, on redis", r.id, owners)
			}
		}
		time.Sleep(10*time.Second + beatEvery)
		if a.degraded() || b.degraded() {
			t.Errorf("owners %+v, %+v after that replica is gone", a.Owners(), b.Owners())
		}
	})
}

func TestTheHeartbeatSaysHowManyMessagesAreToBeSettled(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.redis.Fail(errRefused)
		mustRecordIn(t, a, "done", "a.1", "")
		mustMeet(t, a, "running", "a.2", idempotency.Won)
		if n := a.Backlog(); n != 2 {
			t.Errorf("backlog = %d, want the record and the claim", n)
		}
		a.redis.FailOnly("settle", errRefused)
		time.Sleep(beatEvery + time.Second)
		if !b.degraded() {
			t.Error("the other replica is green while this one cannot settle")
		}
		a.redis.FailOnly("", nil)
		probed()
		s.mu.Lock()
		said := s.beats["a"].replica.Unsettled
		s.mu.Unlock()
		if said != 0 {
			t.Errorf("the others are told of %d messages after all are settled", said)
		}
		time.Sleep(beatEvery + time.Second)
		if n := a.Backlog(); n != 0 || a.degraded() || b.degraded() {
			t.Errorf("backlog = %d, owners %+v and %+v after recovery", n, a.Owners(), b.Owners())
		}
	})
}

func TestAnEmptiedRedisGetsBackWhatTheReplicasKnow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, file := newServer(), memory()
		a := newReplica(t, "a", s, file).run(t)
		a.redis.Fail(errRefused)
		mustRecordIn(t, a, "outage", "a.1", "outage")
		a.redis.Fail(nil)
		probed()
		mustRecordIn(t, a, "before", "a.2", "before")
		running := mustMeet(t, a, "running", "a.3", idempotency.Won).Claim

		empty := newServer()
		empty.emptied.Store(true)
		a.redis.Faulty.Replace(empty)
		time.Sleep(1100 * time.Millisecond)
		for _, id := range []string{"outage", "before"} {
			if res := mustMeet(t, empty, id, "b.1", idempotency.Recorded); string(res.Outcome) != id {
				t.Errorf("outcome of %s = %q", id, res.Outcome)
			}
		}
		mustMeet(t, empty, "running", "b.2", idempotency.InFlight)
		if err := a.Record(t.Context(), running, nil); err != nil {
			t.Errorf("Record of the claim that was brought back = %v", err)
		}
		if a.degraded() {
			t.Errorf("owners %+v", a.Owners())
		}

		// A later process brings back what its file has, also what was
		// carried already.
		again := newServer()
		again.emptied.Store(true)
		newReplica(t, "b", again, file).run(t)
		mustMeet(t, again, "outage", "c.1", idempotency.Recorded)
	})
}

func TestAPolicyOfTheRequestDecides(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		a.redis.Fail(errRefused)
		for policy, want := range map[string]error{idempotency.Open: nil, "": nil, idempotency.Closed: idempotency.ErrUnavailable} {
			_, err := a.Reserve(t.Context(), idempotencytest.Key("m"+policy), idempotency.Request{Token: "a." + policy, Lease: time.Minute, TTL: time.Minute, OnUnavailable: policy})
			if !errors.Is(err, want) {
				t.Errorf("policy %q: Reserve = %v, want %v", policy, err, want)
			}
		}
	})
}

func TestASingleLateAnswerCostsOneProbe(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		a.redis.FailOnlyAfter("reserve", errors.New("i/o timeout"))
		mustMeet(t, a, "m", "a.1", idempotency.Won)
		a.redis.FailOnly("", nil)
		synctest.Wait()
		if a.Backend() != idempotency.BackendRedis || a.degraded() {
			t.Errorf("claims go to %s with owners %+v before any time has passed", a.Backend(), a.Owners())
		}
	})
}

func TestARecordIsNotReleasedBeforeItIsSettled(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, b *replica) {
		a.redis.FailAfter(errors.New("connection reset"))
		c := mustMeet(t, a, "m", "a.1", idempotency.Won).Claim // in Redis too, without an answer
		a.redis.Fail(errRefused)
		if err := a.Record(t.Context(), c, []byte("answer")); err != nil {
			t.Fatal(err)
		}
		a.redis.FailOnly("settle", errRefused)
		time.Sleep(5 * time.Second)
		mustMeet(t, b, "m", "b.1", idempotency.InFlight)
		a.redis.FailOnly("", nil)
		probed()
		mustMeet(t, b, "m", "b.2", idempotency.Recorded)
	})
}

func TestARunThatIsRecordedNowhereIsNotAbandoned(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		c := mustMeet(t, a, "m", "a.1", idempotency.Won).Claim
		a.redis.FailOnly("record", errRefused)
		a.local.Fail(errors.New("disk I/O error"))
		if err := a.Record(t.Context(), c, nil); err == nil {
			t.Fatal("Record succeeded without a store")
		}
		a.redis.FailOnly("", nil)
		a.local.Fail(nil)
		probed()
		mustMeet(t, a, "m", "a.2", idempotency.InFlight)
	})
}

func TestWhatAReplicaRemembersIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		const n = 70 // mebibytes
		for i := range n {
			id := fmt.Sprint(i)
			mustRecordIn(t, a, id, "a."+id, strings.Repeat("x", 1<<20))
		}
		a.redis.Fail(errRefused)
		mustMeet(t, a, fmt.Sprint(n-1), "a.y", idempotency.Recorded)
		mustMeet(t, a, "0", "a.x", idempotency.Won)
	})
}
