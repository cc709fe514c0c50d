package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// proveRounds is how often Prove races its claims, each time for a new key.
const proveRounds = 10

// proveLease is longer than any round, so that no claim is taken over in one.
const proveLease = time.Minute

// proveTimeout bounds one claim of a round, in which many are made at once.
const proveTimeout = 10 * time.Second

// attempt makes one claim of a round's key, the nth of its round.
type attempt func(ctx context.Context, key string, n int) (won bool, replica string, err error)

// Prove makes n claims of one throw-away key at once, in each of ten rounds,
// and demands exactly one winner per round: through the configured store, or,
// if URLs are given, through the gateways that answer there, in turns. It takes
// two to race: n is at least 2. progress is called after every round.
func (d *Doctor) Prove(ctx context.Context, n int, progress func(done, rounds int)) health.Check {
	cfg, err := config.Load(d.Path, d.Env)
	if len(d.URLs) > 0 {
		token := secret.String{}
		if err == nil {
			token = cfg.Gateway.AuthToken
		}
		c := health.Check{ID: CheckProve, Source: strings.Join(d.URLs, " "), Hint: "see the check of the gateway above"}
		return prove(ctx, c, n, d.through(token), progress)
	}
	if err != nil {
		return skipped(CheckProve, d.Path, "the configuration cannot be loaded")
	}
	c := health.Check{ID: CheckProve, Source: "store " + cfg.Hooks.Idempotency.StoreBackend, Hint: "see the checks of the store above"}
	store, err := d.Backends.Store(ctx, cfg)
	if err != nil {
		c.Status, c.Detail = health.CheckFail, err.Error()
		return c
	}
	c = prove(ctx, c, n, inStore(store), progress)
	if err := store.Close(); err != nil && c.Status == health.CheckOK {
		c.Status, c.Detail = health.CheckFail, err.Error()
	}
	return c
}

// through makes claims through running gateways.
func (d *Doctor) through(token secret.String) attempt {
	return func(ctx context.Context, key string, n int) (bool, string, error) {
		url := d.URLs[n%len(d.URLs)]
		won, replica, err := d.Backends.Prove(ctx, url, token, key)
		if err != nil {
			err = fmt.Errorf("%s: %w", url, err)
		}
		return won, replica, err
	}
}

// inStore makes claims as one replica.
func inStore(store idempotency.Store) attempt {
	replica := idempotency.NewReplicaID()
	return func(ctx context.Context, key string, _ int) (bool, string, error) {
		ctx, cancel := context.WithTimeout(ctx, proveTimeout)
		defer cancel()
		res, err := store.Reserve(ctx, idempotency.EncodeKey(message.Key{Platform: "doctor", Channel: "prove", ID: key}), idempotency.Request{
			Token: idempotency.NewToken(replica), Lease: proveLease, TTL: proveLease,
		})
		return res.State == idempotency.Won, replica, err
	}
}

// prove runs the rounds. c brings the hint for a round that cannot be made.
func prove(ctx context.Context, c health.Check, n int, try attempt, progress func(done, rounds int)) health.Check {
	c.Status = health.CheckFail
	winners, replicas := make(map[int]int), make(map[string]bool) // rounds by their number of winners
	for round := range proveRounds {
		won, err := race(ctx, n, try, replicas)
		if err != nil {
			c.Detail = fmt.Sprintf("round %d of %d: %v", round+1, proveRounds, err)
			return c
		}
		winners[won]++
		progress(round+1, proveRounds)
	}
	if winners[1] != proveRounds {
		c.Detail = fmt.Sprintf("%d of %d rounds did not have exactly one winner: rounds by winners %v, %s took part", proveRounds-winners[1], proveRounds, winners, plural(len(replicas), "replica"))
		c.Hint = "replicas that do not share a store each have a winner: give them one Redis. One store with two winners does not keep the promise; report it with its version"
		return c
	}
	c.Status, c.Hint = health.CheckOK, ""
	c.Detail = fmt.Sprintf("%d rounds of %d claims at once by %s: one winner per round", proveRounds, n, plural(len(replicas), "replica"))
	return c
}

// race returns how many of n claims won a key that nobody had before, and adds
// the replicas that made them.
func race(ctx context.Context, n int, try attempt, replicas map[string]bool) (won int, err error) {
	key := rand.Text()
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		mu    sync.Mutex // guards won, err and replicas
	)
	for i := range n {
		wg.Go(func() {
			<-start
			first, replica, failure := try(ctx, key, i)
			mu.Lock()
			defer mu.Unlock()
			if failure != nil {
				err = failure
				return
			}
			replicas[replica] = true
			if first {
				won++
			}
		})
	}
	close(start)
	wg.Wait()
	return won, err
}
