package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// proveRounds is how often Prove races its claims, each time for a new key.
const proveRounds = 10

// proveLease is longer than any round, so that no claim is taken over in one.
const proveLease = time.Minute

// Prove makes n claims of one throw-away key at once through the configured
// store, in each of ten rounds, and demands exactly one winner per round. It
// takes two to race: n is at least 2. progress is called after every round.
func (d *Doctor) Prove(ctx context.Context, n int, progress func(done, rounds int)) health.Check {
	c := health.Check{ID: CheckProve, Status: health.CheckFail}
	cfg, err := config.Load(d.Path, d.Env)
	if err != nil {
		return skipped(CheckProve, d.Path, "the configuration cannot be loaded")
	}
	c.Source = "store " + cfg.Hooks.Idempotency.StoreBackend
	store, err := d.Backends.Store(ctx, cfg)
	if err != nil {
		c.Detail, c.Hint = err.Error(), "see the checks of the store above"
		return c
	}
	winners := make(map[int]int) // rounds by their number of winners
	for round := range proveRounds {
		won, err := race(ctx, store, n)
		if err != nil {
			c.Detail = fmt.Sprintf("round %d of %d: %v", round+1, proveRounds, err)
			c.Hint = "see the checks of the store above"
			_ = store.Close() // the round's error says more
			return c
		}
		winners[won]++
		progress(round+1, proveRounds)
	}
	if err := store.Close(); err != nil {
		c.Detail = err.Error()
		return c
	}
	if winners[1] != proveRounds {
		c.Detail = fmt.Sprintf("%d of %d rounds did not have exactly one winner: rounds by winners %v", proveRounds-winners[1], proveRounds, winners)
		c.Hint = "this store does not keep the promise; report it with the store's version"
		return c
	}
	c.Status = health.CheckOK
	c.Detail = fmt.Sprintf("%d rounds of %d claims at once: one winner per round", proveRounds, n)
	return c
}

// race returns how many of n claims won a key that nobody had before.
func race(ctx context.Context, store idempotency.Store, n int) (int, error) {
	key := idempotency.EncodeKey(message.Key{Platform: "doctor", Channel: "prove", ID: rand.Text()})
	replica := idempotency.NewReplicaID()
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		won   atomic.Int32
		errs  = make(chan error, n)
	)
	for range n {
		wg.Go(func() {
			<-start
			res, err := store.Reserve(ctx, key, idempotency.Request{
				Token: idempotency.NewToken(replica), Lease: proveLease, TTL: proveLease,
			})
			if err != nil {
				errs <- err
				return
			}
			if res.State == idempotency.Won {
				won.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
		return int(won.Load()), nil
	}
}
