package gateway_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/message"
)

// doubtful makes every claim one that somebody else may have taken over.
func doubtful(c *gateway.PipelineConfig) {
	c.InDoubt = func(idempotency.Claim) bool { return true }
}

func TestAClaimInDoubtIsConfirmedBeforeItsRun(t *testing.T) {
	t.Run("one that somebody else has taken over does not run", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			agent := &runner{}
			m := msg("m")
			key := idempotency.EncodeKey(m.Key)
			first := slow(time.Minute)
			m.Session = "room"
			go func() {
				_, _ = r.Process(t.Context(), message.Message{Key: message.Key{ID: "first"}, Session: "room"}, policy(first))
			}()
			time.Sleep(time.Second)
			answered := make(chan message.Receipt, 1)
			go func() {
				got, err := r.Process(t.Context(), m, policy(agent))
				if err != nil {
					t.Errorf("Process = %v", err)
				}
				answered <- got
			}()
			time.Sleep(time.Second)
			steal(t, r.store, key) // while it waits for the session's lock
			if got := <-answered; got.State != message.InFlight {
				t.Errorf("state = %s, want in flight: another owner has it", got.State)
			}
			if n := agent.runs.Load(); n != 0 {
				t.Errorf("%d runs of a claim that is not ours, want none", n)
			}
			if got := r.counter(t, "gateway_stale_writes_total", "release"); got != 1 {
				t.Errorf("%v stale releases counted, want 1", got)
			}
		}, doubtful)
	})

	for policyName, want := range map[string]error{idempotency.Open: nil, idempotency.Closed: message.ErrStoreUnavailable} {
		t.Run("with "+policyName+" and a store that is away", func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *replica) {
				agent := &runner{}
				p := policy(agent)
				p.OnUnavailable = policyName
				r.store.FailOnly("renew", errors.New("connection refused"))
				_, err := r.Process(t.Context(), msg("m"), p)
				if !errors.Is(err, want) {
					t.Errorf("Process = %v, want %v", err, want)
				}
				if runs := agent.runs.Load(); (runs == 1) != (want == nil) {
					t.Errorf("%d runs", runs)
				}
				r.store.FailOnly("", nil)
				if want != nil {
					mustProcess(t, r, msg("m"), p, message.New) // it was given back
				}
			}, doubtful)
		})
	}
}

// steal gives the claim on key to another owner.
func steal(t *testing.T, s *idempotencytest.Faulty, key idempotency.Key) {
	t.Helper()
	if _, err := s.Store.(*idempotency.Memory).Settle(context.Background(), idempotency.Claim{Key: key, Token: "other.1", TTL: time.Hour}, nil); err != nil {
		t.Fatal(err)
	}
}
