package gateway_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("running turns finish, new deliveries are refused without a claim", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := slow(10 * time.Second)
			go func() { mustProcess(t, r, msg("m"), policy(agent), message.New) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			drained := make(chan error)
			go func() { drained <- r.Drain(ctx) }()
			synctest.Wait()
			calls := r.store.Calls()
			if _, err := r.Process(t.Context(), msg("late"), policy(agent)); !errors.Is(err, message.ErrDraining) || r.store.Calls() != calls {
				t.Errorf("late delivery = %v with %d store calls, want ErrDraining and none", err, r.store.Calls()-calls)
			}
			if err := <-drained; err != nil {
				t.Errorf("Drain = %v", err)
			}
			assertState(t, r.store, "m", idempotency.Recorded)
		})
	})

	t.Run("a turn over the drain's time is stopped and its claim is free at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			var err error
			go func() { _, err = r.Process(t.Context(), msg("m"), policy(slow(time.Hour))) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			start := time.Now()
			if err := r.Drain(ctx); err != nil {
				t.Errorf("Drain = %v", err)
			}
			if took := time.Since(start); took != 15*time.Second {
				t.Errorf("drain took %s, want its 15s", took)
			}
			synctest.Wait()
			if !errors.Is(err, message.ErrDraining) {
				t.Errorf("the stopped delivery got %v, want ErrDraining", err)
			}
			assertState(t, r.store, "m", idempotency.Won)
		})
	})

	t.Run("a waiting duplicate does not hold up the drain", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			p := policy(slow(time.Second))
			p.OnDuplicate, p.WaitTimeout = message.Wait, time.Hour
			key := idempotency.EncodeKey(msg("m").Key)
			if _, err := r.store.Reserve(t.Context(), key, idempotency.Request{Token: "other.owner", Lease: time.Hour, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
			go func() { mustProcess(t, r, msg("m"), p, message.InFlight) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			start := time.Now()
			if err := r.Drain(ctx); err != nil || time.Since(start) != 0 {
				t.Errorf("Drain = %v after %s, want at once", err, time.Since(start))
			}
		})
	})

	t.Run("a run that ignores its end is reported", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			stuck := make(chan struct{})
			agent := &runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) {
				<-stuck
				return message.Outcome{}, nil
			}}
			go func() { _, _ = r.Process(t.Context(), msg("m"), policy(agent)) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := r.Drain(ctx); err == nil {
				t.Error("Drain = nil although a run goes on")
			}
			close(stuck)
		})
	})
}

func assertState(t *testing.T, s idempotency.Store, id string, want idempotency.State) {
	t.Helper()
	res, err := s.Reserve(t.Context(), idempotency.EncodeKey(msg(id).Key), idempotency.Request{Token: "observer", Lease: time.Second, TTL: time.Second})
	if err != nil || res.State != want {
		t.Errorf("%s is in state %d, %v; want %d", id, res.State, err, want)
	}
}
