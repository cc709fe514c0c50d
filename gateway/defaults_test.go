package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// tokens is a Store that tells the owner token of each Reserve.
type tokens struct {
	idempotency.Store
	reserved chan<- string
}

func (s tokens) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	s.reserved <- req.Token
	return s.Store.Reserve(ctx, key, req)
}

// plain is a bubble's pipeline of which only the store is configured.
func plain(t *testing.T, store func() idempotency.Store, test func(*testing.T, *replica)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		test(t, &replica{Pipeline: gateway.NewPipeline(gateway.PipelineConfig{Store: store()})})
	})
}

func inMemory() idempotency.Store { return idempotency.NewMemory(time.Now) }

func TestAPipelineOfWhichOnlyTheStoreIsConfigured(t *testing.T) {
	t.Parallel()

	t.Run("each has a replica id of its own", func(t *testing.T) {
		t.Parallel()
		reserved := make(chan string, 2)
		for range 2 {
			p := gateway.NewPipeline(gateway.PipelineConfig{Store: tokens{inMemory(), reserved}})
			mustProcess(t, &replica{Pipeline: p}, msg("m"), policy(&runner{}), message.New)
		}
		first, second := idempotency.ReplicaOf(<-reserved), idempotency.ReplicaOf(<-reserved)
		if first == "" || second == "" || first == second {
			t.Errorf("replica ids %q and %q, want two", first, second)
		}
	})

	t.Run("a failure that is logged and counted elsewhere is an error here too", func(t *testing.T) {
		plain(t, inMemory, func(t *testing.T, r *replica) {
			broken := &runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) { panic("boom") }}
			if _, err := r.Process(t.Context(), msg("m"), policy(broken)); err == nil {
				t.Error("no error")
			}
			mustProcess(t, r, msg("m"), policy(&runner{}), message.New)
		})
	})

	t.Run("a turn may take ten minutes, and the session's next one waits for it", func(t *testing.T) {
		plain(t, inMemory, func(t *testing.T, r *replica) {
			first, second := msg("1"), msg("2")
			first.Session, second.Session = "s", "s"
			start, ended := time.Now(), make(chan error)
			go func() {
				_, err := r.Process(t.Context(), first, policy(slow(time.Hour)))
				ended <- err
			}()
			synctest.Wait()
			go func() {
				_, err := r.Process(t.Context(), second, policy(&runner{}))
				ended <- err
			}()
			if err := <-ended; !errors.Is(err, message.ErrTimeout) || time.Since(start) != 10*time.Minute {
				t.Errorf("the first turn: %v after %s; want ErrTimeout after 10m", err, time.Since(start))
			}
			if err := <-ended; err != nil {
				t.Errorf("the second turn: %v", err)
			}
		})
	})

	t.Run("256 turns run at once, and another one is busy at once", func(t *testing.T) {
		plain(t, inMemory, func(t *testing.T, r *replica) {
			var wg sync.WaitGroup
			for i := range 256 {
				wg.Go(func() { mustProcess(t, r, msg(fmt.Sprint(i)), policy(slow(time.Minute)), message.New) })
			}
			synctest.Wait()
			start := time.Now()
			if _, err := r.Process(t.Context(), msg("more"), policy(&runner{})); !errors.Is(err, message.ErrBusy) || time.Since(start) != 0 {
				t.Errorf("one more: %v after %s; want ErrBusy at once", err, time.Since(start))
			}
			wg.Wait()
		})
	})

	t.Run("a reply is not kept for duplicates", func(t *testing.T) {
		plain(t, inMemory, func(t *testing.T, r *replica) {
			mustProcess(t, r, msg("m"), policy(&runner{}), message.New)
			if got := mustProcess(t, r, msg("m"), policy(&runner{}), message.Processed).Outcome; got.Reply != "" || !got.Omitted {
				t.Errorf("the duplicate got %+v, want the reply left out", got)
			}
		})
	})
}

func TestAPipelineWaitsForItsLockLongerThanALongTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &replica{Pipeline: gateway.NewPipeline(gateway.PipelineConfig{Store: inMemory(), TurnTimeout: time.Hour})}
		first, second := msg("1"), msg("2")
		first.Session, second.Session = "s", "s"
		var wg sync.WaitGroup
		wg.Go(func() { mustProcess(t, r, first, policy(slow(50*time.Minute)), message.New) })
		synctest.Wait()
		mustProcess(t, r, second, policy(&runner{}), message.New)
		wg.Wait()
	})
}
