package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

const (
	// maxWaiting and maxRunning bound how many messages one round of Take looks at.
	maxWaiting, maxRunning = 64, 256
	// maxRounds bounds the rounds of one Take, which goes on while it has tokens
	// left and what it has found was not to be taken.
	maxRounds = 16
	// takeHold is for how long a message that one caller is about to take is not
	// shown to others: should it die before, that is what it costs.
	takeHold = time.Second
	// rangeRunning is where the scores of messages that run begin, see index.lua.
	rangeRunning = 1e13
)

// Take implements idempotency.Inbox.
func (s *Store) Take(ctx context.Context, req idempotency.TakeRequest) (idempotency.Taking, error) {
	taking, err := s.take(ctx, req)
	if err != nil {
		return idempotency.Taking{}, fmt.Errorf("take messages: %w", redact.Error(err))
	}
	return taking, nil
}

func (s *Store) take(ctx context.Context, req idempotency.TakeRequest) (idempotency.Taking, error) {
	if err := ctx.Err(); err != nil {
		return idempotency.Taking{}, err
	}
	w := sweep{Store: s, req: req, free: req.Tokens}
	for rounds, more := 0, true; more && len(w.free) > 0 && rounds < maxRounds; rounds++ {
		var err error
		if more, err = w.round(ctx); err != nil {
			return idempotency.Taking{}, err
		}
	}
	return w.taking, nil
}

// sweep is one Take.
type sweep struct {
	*Store
	req    idempotency.TakeRequest
	free   []string // tokens
	taking idempotency.Taking
}

// candidate is a message that may be there to take.
type candidate struct {
	place
	at    float64 // since when it is due, in ms
	text  string  // the claim
	held  value   // that taken apart
	front string  // the key of its session's first message
	ends  float64 // of its lease
	owner owner
	token string // that it is being taken with
	sent  time.Time
}

// round looks at what the index says is due. There may be more where it found
// as much as it asked for, or where something had to make way.
func (w *sweep) round(ctx context.Context) (more bool, err error) {
	asked := min(len(w.free), maxWaiting)
	all, now, err := w.look(ctx, asked)
	if err != nil || len(all) == 0 {
		return false, err
	}
	waiting := 0
	for _, c := range all {
		if c.at < rangeRunning {
			waiting++
		}
	}
	if err := w.read(ctx, all); err != nil {
		return false, err
	}
	if all, err = w.worthTaking(ctx, all, now); err != nil {
		return false, err
	}
	more = waiting == asked
	for len(all) > 0 && len(w.free) > 0 {
		n := min(len(all), len(w.free))
		cleared, err := w.takeAll(ctx, all[:n])
		if err != nil {
			return false, err
		}
		more = more || cleared
		all = all[n:]
	}
	return more, nil
}

// look asks the index. Nobody else is told the same for a while: were the due
// ones only read, every replica would try to take the same few.
func (w *sweep) look(ctx context.Context, waiting int) (all []*candidate, now float64, err error) {
	cmd, err := onMessage(ctx, w.Store, redis.NewStringSliceCmd, w.scripts.inbox.look, []string{w.index},
		[]any{waiting, maxRunning, takeHold.Milliseconds(), w.req.Look.Milliseconds()})
	if err != nil {
		return nil, 0, err
	}
	found := cmd.Val()
	if len(found)%2 != 1 {
		return nil, 0, errForm
	}
	if now, err = strconv.ParseFloat(found[0], 64); err != nil {
		return nil, 0, errForm
	}
	for i := 2; i < len(found); i += 2 {
		c := &candidate{place: w.placeOf(found[i-1])}
		if c.at, err = strconv.ParseFloat(found[i], 64); err != nil {
			return nil, 0, errForm
		}
		all = append(all, c)
	}
	return all, now, nil
}

// read reads what decides how each is to be taken.
func (w *sweep) read(ctx context.Context, all []*candidate) error {
	claims, ends, fronts := make([]*redis.StringCmd, len(all)), make([]*redis.StringCmd, len(all)), make([]*redis.StringSliceCmd, len(all))
	cmds := make([]redis.Cmder, 0, 3*len(all))
	for i, c := range all {
		claims[i] = redis.NewStringCmd(ctx, "get", c.claim)
		ends[i] = redis.NewStringCmd(ctx, "hget", c.message, "ends")
		fronts[i] = redis.NewStringSliceCmd(ctx, "zrange", c.queue, 0, 0)
		cmds = append(cmds, claims[i], ends[i], fronts[i])
	}
	if err := w.pipeline(ctx, cmds...); err != nil && unread(cmds) != nil {
		return unread(cmds)
	}
	for i, c := range all {
		c.text, c.front = claims[i].Val(), c.key
		c.held, _ = parse(c.text) // the script tells what is none
		c.ends, _ = strconv.ParseFloat(ends[i].Val(), 64)
		if c.session != "" && len(fronts[i].Val()) > 0 {
			c.front = fronts[i].Val()[0]
		}
		c.owner = w.ownerOf(c.held.token, w.req.Owners)
	}
	return nil
}

// unread returns the first error among cmds that says more than that a key is
// absent, or of another kind.
func unread(cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return err
		}
	}
	return nil
}

// worthTaking returns all but the messages that somebody runs who lives, the
// longest due first. What it leaves out is looked at again as the index says.
func (w *sweep) worthTaking(ctx context.Context, all []*candidate, now float64) ([]*candidate, error) {
	beats := make(map[string]*redis.IntCmd)
	var cmds []redis.Cmder
	for _, c := range all {
		if c.running() && c.ends > now && len(c.owner.keys) > 0 && beats[c.owner.keys[0]] == nil {
			cmd := redis.NewIntCmd(ctx, "exists", c.owner.keys[0])
			beats[c.owner.keys[0]], cmds = cmd, append(cmds, cmd)
		}
	}
	if len(cmds) > 0 {
		if err := w.pipeline(ctx, cmds...); err != nil {
			return nil, err
		}
	}
	all = slices.DeleteFunc(all, func(c *candidate) bool {
		if !c.running() || c.at < rangeRunning || c.ends <= now || c.owner.gone {
			return false
		}
		return len(c.owner.keys) == 0 || beats[c.owner.keys[0]].Val() > 0
	})
	slices.SortStableFunc(all, func(a, b *candidate) int { return cmp.Compare(a.since(), b.since()) })
	return all, nil
}

func (c *candidate) running() bool { return c.held.stored && c.held.state == idempotency.InFlight }

func (c *candidate) since() float64 {
	if c.at >= rangeRunning {
		return c.at - rangeRunning
	}
	return c.at
}

// takeAll takes each with a token of its own, in one round trip. Those of the
// ones that it does not get are free again. cleared tells that one of them was
// gone, so that another may be due.
func (w *sweep) takeAll(ctx context.Context, all []*candidate) (cleared bool, err error) {
	calls := make([][]any, len(all))
	for i, c := range all {
		c.token, c.sent = w.free[i], w.now()
		value := appendValue(nil, running, c.token, c.held.fingerprint)
		first := w.place(idempotency.Key(c.front), c.session)
		keys := c.keys(append([]string{first.claim, first.message}, c.owner.keys...)...)
		args := c.args(append([]any{c.text, value, w.req.Look.Milliseconds(), c.front}, c.owner.args...)...)
		calls[i] = w.scripts.inbox.take.call("evalsha", w.scripts.inbox.take.hash, keys, args)
	}
	answers, err := w.evaluateAll(ctx, w.scripts.inbox.take, calls)
	if err != nil {
		return false, err
	}
	free := slices.Clone(w.free[len(all):])
	for i, c := range all {
		answer := answers[i].Val()
		if len(answer) < 2 {
			return false, errForm
		}
		if answer[1] == int64(yes) {
			w.taking.Buried = append(w.taking.Buried, idempotency.Key(c.front))
		}
		if answer[0] != int64(yes) || len(answer) != 3 {
			cleared = cleared || answer[0] != int64(no)
			free = append(free, c.token)
			continue
		}
		w.taking.Taken = append(w.taking.Taken, c.taken(flat(answer[2])))
	}
	w.free = free
	return cleared, nil
}

func (c *candidate) taken(f fields) idempotency.Taken {
	t := f.terms()
	return idempotency.Taken{TakenOver: c.running(), Claim: idempotency.Claim{
		Key: idempotency.Key(c.key), Token: c.token, Fingerprint: c.held.fingerprint, Lease: t.lease, TTL: t.ttl,
		Confirmed: c.sent, Backend: idempotency.BackendRedis, Stored: f.stored(),
	}}
}
