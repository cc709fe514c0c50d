package sqlitestore_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

// pair is the store under test beside the one in memory, on one clock. The two
// have to answer alike whatever happens.
type pair struct {
	t      *testing.T
	rng    *rand.Rand
	clock  *idempotencytest.Clock
	stores [2]idempotency.Inbox
	claims map[idempotency.Key][2]idempotency.Claim // that were taken last
	steps  int
}

const modelKeys = 12

func TestInboxAnswersAsTheOneInMemory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			c := idempotencytest.NewClock()
			cfg := config(t, tempPath(t))
			cfg.Now, cfg.NoUpkeep = c.Now, true
			p := &pair{
				t: t, rng: rand.New(rand.NewPCG(seed, 1)), clock: c, claims: make(map[idempotency.Key][2]idempotency.Claim),
				stores: [2]idempotency.Inbox{idempotency.NewMemory(c.Now), mustOpen(t, cfg)},
			}
			for p.steps = range 1500 {
				p.step()
			}
		})
	}
}

// both asks both stores and wants the same answer.
func (p *pair) both(what string, ask func(s idempotency.Inbox, i int) string) {
	p.t.Helper()
	want, got := ask(p.stores[0], 0), ask(p.stores[1], 1)
	if got != want {
		p.t.Fatalf("step %d: %s = %s, want %s", p.steps, what, got, want)
	}
}

// answer tells the answers apart that a caller tells apart.
func answer(err error) string {
	for err != nil {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err.Error()
		}
		err = inner.Unwrap()
	}
	return "yes"
}

func (p *pair) step() {
	key := idempotencytest.Key(fmt.Sprint(p.rng.IntN(modelKeys)))
	token := fmt.Sprintf("r.%d", p.steps)
	switch n := p.rng.IntN(100); {
	case n < 30:
		p.accept(key, token)
	case n < 45:
		p.clock.Advance(time.Duration(1+p.rng.IntN(400)) * time.Millisecond)
		p.take(token)
	case n < 55:
		p.both("Replay "+string(key), func(s idempotency.Inbox, _ int) string { return answer(s.Replay(p.t.Context(), key, token)) })
	case n < 60:
		p.both("Drop "+string(key), func(s idempotency.Inbox, _ int) string { return answer(s.Drop(p.t.Context(), key, nil)) })
	case n < 63:
		p.both("Reserve "+string(key), func(s idempotency.Inbox, _ int) string {
			got, err := s.Reserve(p.t.Context(), key, modelRequest(token))
			return fmt.Sprint(got.State, got.Stored, got.RetryAfter, string(got.Outcome), err)
		})
	default:
		p.settle(key, n)
	}
	p.both("the state of "+string(key), func(s idempotency.Inbox, _ int) string {
		e, err := s.(idempotency.Lister).Get(p.t.Context(), key)
		counts, countErr := s.Count(p.t.Context())
		if e.Stored != nil {
			return fmt.Sprintf("%d %s %+v %v %v %v", e.State, e.Left, *e.Stored, answer(err), counts, countErr)
		}
		return fmt.Sprintf("%d %s %v %v %v", e.State, e.Left, answer(err), counts, countErr)
	})
}

func modelRequest(token string) idempotency.Request {
	return idempotency.Request{Token: token, Lease: 900 * time.Millisecond, TTL: 2 * time.Second}
}

func (p *pair) accept(key idempotency.Key, token string) {
	a := acceptance([]string{"", "s", "t"}[p.rng.IntN(3)], token)
	a.Keep = time.Duration(2+p.rng.IntN(8)) * time.Second
	a.OrderWait = time.Duration(100*p.rng.IntN(10)) * time.Millisecond
	a.After = time.Duration(p.rng.IntN(2)*p.rng.IntN(500)) * time.Millisecond
	a.Held = a.Session == "" && p.rng.IntN(4) == 0
	a.Attempts = p.rng.IntN(2)
	p.both("Accept "+string(key), func(s idempotency.Inbox, i int) string {
		got, err := s.Accept(p.t.Context(), key, modelRequest(token), a)
		if got.State == idempotency.Won && a.Held {
			pair := p.claims[key]
			pair[i] = got.Claim
			p.claims[key] = pair
		}
		return fmt.Sprint(got.State, got.Stored, got.RetryAfter, string(got.Outcome), err)
	})
}

// take has room for all, so that the order matters for none.
func (p *pair) take(token string) {
	req := idempotency.TakeRequest{Look: time.Millisecond}
	for i := range modelKeys {
		req.Tokens = append(req.Tokens, fmt.Sprintf("%s-%d", token, i))
	}
	var lost [2]idempotency.Claim // of one message, which the two may have given to different tokens
	if held := slices.Sorted(maps.Keys(p.claims)); len(held) > 0 && p.rng.IntN(3) == 0 {
		lost = p.claims[held[p.rng.IntN(len(held))]]
	}
	p.both("Take", func(s idempotency.Inbox, i int) string {
		req.Owners = idempotencytest.Owners{Lost: []string{lost[i].Token}}
		got, err := s.Take(p.t.Context(), req)
		slices.Sort(got.Buried)
		taken := make(map[idempotency.Key]string) // which is printed in order
		for _, m := range got.Taken {
			taken[m.Key] = fmt.Sprintf("%t %+v %s %s", m.TakenOver, *m.Stored, m.Lease, m.TTL)
			pair := p.claims[m.Key]
			pair[i] = m.Claim
			p.claims[m.Key] = pair
		}
		return fmt.Sprint(got.Buried, taken, err)
	})
}

// settle does something to the claim that was taken last, which may be stale.
func (p *pair) settle(key idempotency.Key, n int) {
	claims, ok := p.claims[key]
	if !ok || reflect.ValueOf(claims[0]).IsZero() != reflect.ValueOf(claims[1]).IsZero() {
		return
	}
	after := time.Duration(p.rng.IntN(3)*p.rng.IntN(1000)) * time.Millisecond
	cause, uncounted := fmt.Sprint("cause ", n%3), p.rng.IntN(4) == 0
	ctx := p.t.Context()
	p.both(fmt.Sprintf("settling %s (%d)", key, n), func(s idempotency.Inbox, i int) string {
		c := claims[i]
		switch {
		case n < 70:
			return answer(s.Renew(ctx, c))
		case n < 83:
			return answer(s.Retry(ctx, c, idempotency.Retry{After: after, Cause: cause, Uncounted: uncounted}))
		case n < 88:
			return answer(s.Bury(ctx, c, cause))
		case n < 91:
			return answer(s.Checkpoint(ctx, c, []byte(cause)))
		case n < 96:
			return answer(s.Release(ctx, c))
		default:
			return answer(s.Record(ctx, c, []byte(cause)))
		}
	})
}
