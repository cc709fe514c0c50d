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

// racers is how many claims of one key are made at once in a round of Prove.
const racers = 16

// Prove races claims for the same throw-away key through the configured store,
// round after round, and demands exactly one winner in each. progress is
// called after every round.
func (d *Doctor) Prove(ctx context.Context, rounds int, progress func(done int)) health.Check {
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
	for round := range rounds {
		n, err := raceOnce(ctx, store)
		if err != nil {
			c.Detail = fmt.Sprintf("round %d of %d: %v", round+1, rounds, err)
			c.Hint = "see the checks of the store above"
			_ = store.Close() // the round's error says more
			return c
		}
		winners[n]++
		progress(round + 1)
	}
	if err := store.Close(); err != nil {
		c.Detail = err.Error()
		return c
	}
	if winners[1] != rounds {
		c.Detail = fmt.Sprintf("%d of %d rounds did not have exactly one winner: rounds by winners %v", rounds-winners[1], rounds, winners)
		c.Hint = "this store does not keep the promise; report it with the store's version"
		return c
	}
	c.Status = health.CheckOK
	c.Detail = fmt.Sprintf("%d rounds of %d claims at once: one winner per round", rounds, racers)
	return c
}

// raceOnce returns how many of the racers won a key that nobody had before.
func raceOnce(ctx context.Context, store idempotency.Store) (int, error) {
	key := idempotency.EncodeKey(message.Key{Platform: "doctor", Channel: "prove", ID: rand.Text()})
	replica := idempotency.NewReplicaID()
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		won   atomic.Int32
		errs  = make(chan error, racers)
	)
	for range racers {
		wg.Go(func() {
			<-start
			res, err := store.Reserve(ctx, key, idempotency.Request{
				Token: idempotency.NewToken(replica), Lease: 10 * time.Second, TTL: 10 * time.Second,
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
