package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/redisstore"
)

// pair is a Redis store beside the one in memory, which is the reference, in one
// time.
type pair struct {
	t      *testing.T
	rand   *rand.Rand
	clock  *idempotencytest.Clock
	server *miniredis.Miniredis
	redis  *redisstore.Store
	memory *idempotency.Memory
	claims []idempotency.Claim // that were taken, and may be stale
	token  int
	steps  []string
}

func TestTheInboxDoesWhatTheOneInMemoryDoes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := pair{t: t, rand: rand.New(rand.NewPCG(seed, 1)), clock: idempotencytest.NewClock(), server: miniredis.RunT(t)}
			p.server.SetTime(p.clock.Now())
			p.redis = newStoreAt(t, newClient(t, p.server.Addr()), p.clock.Now)
			p.memory = idempotency.NewMemory(p.clock.Now)
			for range 120 {
				p.step()
				p.compare()
			}
		})
	}
}

// step makes one call of both and compares the answers.
func (p *pair) step() {
	p.advance(5 * time.Millisecond)
	k := key(fmt.Sprint(p.rand.IntN(9)))
	switch p.rand.IntN(12) {
	case 0, 1, 2:
		p.accept(k)
	case 3, 4, 5:
		p.take()
	case 6:
		p.both("drop "+string(k), func(in idempotency.Inbox) any { return in.Drop(p.t.Context(), k, nil) })
	case 7:
		id := fmt.Sprint("w", p.rand.IntN(3))
		p.both("replay "+string(k)+" "+id, func(in idempotency.Inbox) any { return in.Replay(p.t.Context(), k, id) })
	case 8:
		p.advance(time.Duration(p.rand.IntN(3)) * 500 * time.Millisecond)
	default:
		if len(p.claims) > 0 {
			p.change(p.claims[p.rand.IntN(len(p.claims))])
		}
	}
}

func (p *pair) advance(d time.Duration) {
	p.server.FastForward(d)
	p.clock.Advance(d)
	p.server.SetTime(p.clock.Now())
}

// both makes a call of each store and demands the same answer.
func (p *pair) both(what string, call func(idempotency.Inbox) any) any {
	p.t.Helper()
	p.steps = append(p.steps, what)
	got, want := call(p.redis), call(p.memory)
	if !reflect.DeepEqual(got, want) {
		p.t.Fatalf("%s = %+v, in memory %+v, after\n%s", what, got, want, strings.Join(p.steps, "\n"))
	}
	return got
}

func (p *pair) newToken() string {
	p.token++
	return fmt.Sprint("r1.", p.token)
}

func (p *pair) accept(k idempotency.Key) {
	m := idempotency.Acceptance{Stored: idempotency.Stored{
		Session: fmt.Sprint("s", p.rand.IntN(3)), Body: []byte(k), Keep: 5 * time.Second,
		OrderWait: time.Duration(p.rand.IntN(3)) * 500 * time.Millisecond,
	}}
	if m.Session == "s2" {
		m.Session = ""
	}
	if p.rand.IntN(3) == 0 {
		m.After = 300 * time.Millisecond
	}
	req := idempotency.Request{Token: p.newToken(), Lease: time.Second, TTL: 2 * time.Second}
	p.both(fmt.Sprintf("accept %s in %s after %s, wait %s", k, m.Session, m.After, m.OrderWait), func(in idempotency.Inbox) any {
		res, err := in.Accept(p.t.Context(), k, req, m)
		return []any{res.State, res.Stored, string(res.Outcome), err}
	})
}

func (p *pair) take() {
	req := idempotency.TakeRequest{Look: look}
	for range 20 {
		req.Tokens = append(req.Tokens, p.newToken())
	}
	p.both("take", func(in idempotency.Inbox) any {
		taking, err := in.Take(p.t.Context(), req)
		var keys []string
		for _, m := range taking.Taken {
			keys = append(keys, fmt.Sprintf("%s attempt %d, taken over %t", m.Key, m.Stored.Attempts, m.TakenOver))
			p.claims = append(p.claims, m.Claim)
		}
		slices.Sort(keys)
		slices.Sort(taking.Buried)
		return []any{keys, taking.Buried, err}
	})
}

// change makes a call by the owner of a claim: of each store the one that it gave
// out last for that message.
func (p *pair) change(c idempotency.Claim) {
	latest := func(in idempotency.Inbox) idempotency.Claim {
		backend := idempotency.BackendMemory
		if in == idempotency.Inbox(p.redis) {
			backend = idempotency.BackendRedis
		}
		for _, held := range slices.Backward(p.claims) {
			if held.Key == c.Key && held.Backend == backend {
				return held
			}
		}
		return c
	}
	// Where the time of a retry and an order wait end between two Takes, the one in
	// memory buries the first message, and the Redis store goes by which came first.
	after := 700 * time.Millisecond
	if c.Stored.Session != "" {
		after = time.Hour
	}
	calls := []struct {
		name string
		call func(idempotency.Inbox, idempotency.Claim) error
	}{
		{"renew", func(in idempotency.Inbox, c idempotency.Claim) error { return in.Renew(p.t.Context(), c) }},
		{"record", func(in idempotency.Inbox, c idempotency.Claim) error { return in.Record(p.t.Context(), c, []byte("x")) }},
		{"release", func(in idempotency.Inbox, c idempotency.Claim) error { return in.Release(p.t.Context(), c) }},
		{"bury", func(in idempotency.Inbox, c idempotency.Claim) error { return in.Bury(p.t.Context(), c, "why") }},
		{"retry", func(in idempotency.Inbox, c idempotency.Claim) error {
			return in.Retry(p.t.Context(), c, idempotency.Retry{After: after, Cause: "why"})
		}},
		{"checkpoint", func(in idempotency.Inbox, c idempotency.Claim) error {
			return in.Checkpoint(p.t.Context(), c, []byte("reply"))
		}},
	}
	do := calls[p.rand.IntN(len(calls))]
	p.both(do.name+" "+string(c.Key), func(in idempotency.Inbox) any { return do.call(in, latest(in)) })
}

// compare compares what the two stores hold.
func (p *pair) compare() {
	for i := range 9 {
		k := key(fmt.Sprint(i))
		got, gotErr := p.redis.Get(p.t.Context(), k)
		want, wantErr := p.memory.Get(p.t.Context(), k)
		got.Token, want.Token = "", ""
		if d := got.Left - want.Left; d.Abs() < 2*time.Millisecond {
			got.Left = want.Left
		}
		if (gotErr == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
			p.t.Fatalf("%s is %+v %+v, %v, in memory %+v %+v, %v, after\n%s", k, got, got.Stored, gotErr, want, want.Stored, wantErr, strings.Join(p.steps, "\n"))
		}
	}
}
