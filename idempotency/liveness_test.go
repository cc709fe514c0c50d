package idempotency_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

func TestNothingIsClaimedInRedisBeforeAnAcknowledgedHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := newReplica(t, "a", s, memory())
		a.redis.FailOnly("beat", errRefused)
		a.run(t)
		probed()
		if a.Backend() != idempotency.BackendSQLite || !a.degraded() {
			t.Fatalf("claims go to %s with owners %+v, want the local store and a degraded owner", a.Backend(), a.Owners())
		}
		a.redis.FailOnly("", nil)
		probed()
		if a.Backend() != idempotency.BackendRedis || a.degraded() {
			t.Errorf("claims go to %s with owners %+v, want redis", a.Backend(), a.Owners())
		}
	})
}

func TestAReplicaWhoseHeartbeatIsOldBeatsBeforeItClaims(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		a.redis.FailOnly("beat", errRefused)
		time.Sleep(takeoverAfter * 2 / 3)
		mustMeet(t, a, "young", "a.1", idempotency.Won)
		if got := a.Backend(); got != idempotency.BackendRedis {
			t.Fatalf("claims go to %s while the last heartbeat is young", got)
		}
		time.Sleep(beatEvery)
		res := mustMeet(t, a, "old", "a.2", idempotency.Won)
		if res.Claim.Backend != idempotency.BackendSQLite {
			t.Errorf("claimed in %s without a heartbeat that others see", res.Claim.Backend)
		}
	})
}

func TestNothingIsTakenOverUntilEverybodyCouldHaveBeaten(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		wait := func(d time.Duration, want bool, why string) {
			t.Helper()
			time.Sleep(d)
			if got := a.mayTakeOver(t); got != want {
				t.Errorf("%s: may take over = %t, want %t", why, got, want)
			}
		}
		wait(0, false, "just started")
		wait(takeoverAfter-time.Second, false, "before the first heartbeat is takeover_after old")
		wait(2*time.Second, true, "after it")

		a.redis.Fail(errRefused)
		time.Sleep(2 * time.Second)
		a.redis.Fail(nil)
		probed()
		wait(0, false, "after an outage")
		wait(takeoverAfter-3*time.Second, false, "takeover_after is not over since")
		wait(5*time.Second, true, "and now it is")
	})
}

func TestAHeartbeatThatFailedForLongBeginsTheWaitAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		time.Sleep(2 * takeoverAfter)
		if !a.mayTakeOver(t) {
			t.Error("does not take over although it has listened for long")
		}
		a.redis.FailOnly("beat", errRefused)
		time.Sleep(takeoverAfter)
		a.redis.FailOnly("", nil)
		if (*a.redis.owners.Load()).MayTakeOver() {
			t.Error("takes over although it cannot make itself heard")
		}
		if a.mayTakeOver(t) {
			t.Error("takes over from replicas that it has not listened to")
		}
	})
}

func TestAClaimIsInDoubtWhenItMayHaveBeenTakenOver(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		res, err := a.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{Token: "a.1", Lease: time.Hour, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c := res.Claim
		doubt := func(want bool, why string) {
			t.Helper()
			if got := a.InDoubt(c); got != want {
				t.Errorf("%s: in doubt = %t, want %t", why, got, want)
			}
		}
		time.Sleep(10 * time.Minute)
		doubt(false, "heartbeats were acknowledged all the time")
		a.redis.FailOnly("beat", errRefused)
		time.Sleep(takeoverAfter*2/3 + beatEvery)
		doubt(true, "none was for two thirds of its life")
		a.redis.FailOnly("", nil)
		time.Sleep(2 * beatEvery)
		doubt(true, "a later heartbeat alone does not say who has the claim")
		c.Confirmed = time.Now()
		if err := a.Renew(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		doubt(false, "confirmed since")
		time.Sleep(10 * time.Minute)
		c.Lease, c.Confirmed = time.Minute, time.Now().Add(-39*time.Second)
		doubt(false, "less than two thirds of the lease are over")
		c.Confirmed = time.Now().Add(-41 * time.Second)
		doubt(true, "more than two thirds are")
	})
}

func TestARenewalAfterAPauseBeatsFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, _ *replica) {
		c := mustMeet(t, a, "m", "a.1", idempotency.Won).Claim
		a.redis.FailOnly("beat", errRefused)
		time.Sleep(takeoverAfter + time.Second)
		if err := a.Renew(t.Context(), c); err == nil {
			t.Error("a claim was confirmed although others see no heartbeat")
		}
	})
}

func TestLeaveEndsTheHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		if err := a.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * beatEvery)
		all, err := s.Beat(t.Context(), health.Replica{ID: "c"}, time.Second)
		if ids := fmt.Sprint(slices.ContainsFunc(all, func(r health.Replica) bool { return r.ID == "a" })); err != nil || ids != "false" {
			t.Errorf("replicas %+v, %v; want a gone", all, err)
		}
		_ = b
	})
}

func TestOwnClaimsThatNoRunHoldsAreTakenAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, b *replica) {
		a.redis.FailOnlyAfter("reserve", errors.New("connection reset"))
		_, err := a.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{
			Token: "a.lost", Lease: time.Hour, TTL: time.Hour, OnUnavailable: idempotency.Closed,
		})
		if !errors.Is(err, idempotency.ErrUnavailable) {
			t.Fatalf("Reserve = %v, want ErrUnavailable", err)
		}
		owners := *a.redis.owners.Load()
		if !owners.Abandoned("a.lost") || owners.Abandoned("b.lost") {
			t.Error("want our own token abandoned, and nobody else's")
		}
		a.redis.FailOnly("", nil)
		probed()
		c := mustMeet(t, a, "m", "a.next", idempotency.Won).Claim
		if owners.Abandoned("a.next") {
			t.Error("a token that is held counts as abandoned")
		}
		if err := a.Record(t.Context(), c, nil); err != nil {
			t.Fatal(err)
		}
		mustMeet(t, b, "m", "b.1", idempotency.Recorded)
	})
}

func TestATokenThatIsBeingReservedIsNotAbandoned(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		mustMeet(t, a, "other", "a.0", idempotency.Won)
		a.redis.Slow(200 * time.Millisecond)
		won := make(chan struct{})
		go func() {
			defer close(won)
			mustMeet(t, a, "m", "a.1", idempotency.Won)
		}()
		time.Sleep(100 * time.Millisecond)
		if (*a.redis.owners.Load()).Abandoned("a.1") {
			t.Error("another delivery may take it over before it is won")
		}
		<-won
	})
}

func TestAReserveThatIsCarriedOutLateIsReleasedLater(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, a, b *replica) {
		a.redis.Fail(errRefused)
		_, err := a.Reserve(t.Context(), idempotencytest.Key("m"), idempotency.Request{
			Token: "a.late", Lease: time.Hour, TTL: time.Hour, OnUnavailable: idempotency.Closed,
		})
		if !errors.Is(err, idempotency.ErrUnavailable) {
			t.Fatalf("Reserve = %v, want ErrUnavailable", err)
		}
		a.redis.Fail(nil)
		probed()
		if a.degraded() || a.Backend() != idempotency.BackendRedis {
			t.Fatalf("the second confirmation holds the recovery up: %+v", a.Owners())
		}
		// Only now the server carries out what it was sent.
		mustMeet(t, s, "m", "a.late", idempotency.Won)
		mustMeet(t, b, "m", "b.1", idempotency.InFlight)
		time.Sleep(takeoverAfter + time.Second)
		mustMeet(t, b, "m", "b.2", idempotency.Won)
	})
}

// Such as the claim of a look, or of a run that was recorded nowhere.
func TestATokenThatIsNeverSettledIsHeldForItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *server, a, _ *replica) {
		mustMeet(t, a, "m", "a.1", idempotency.Won)
		time.Sleep(59 * time.Second)
		if (*a.redis.owners.Load()).Abandoned("a.1") {
			t.Error("abandoned before its lease is over")
		}
		time.Sleep(3 * time.Second)
		if !(*a.redis.owners.Load()).Abandoned("a.1") {
			t.Error("held after its lease: what is never settled is kept for ever")
		}
	})
}
