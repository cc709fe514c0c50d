package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
	"github.com/oncegate/oncegate/message"
)

// CheckScripts runs every script of claims on keys of its own, which it leaves to expire
// within seconds, and remembers for Scripting whether the server refused.
func (s *Store) CheckScripts(ctx context.Context) error {
	err := s.checkScripts(ctx)
	switch {
	case err == nil:
		s.refusal.Store(nil)
	case refused(err):
		s.refusal.Store(&err)
	}
	return err
}

func (s *Store) checkScripts(ctx context.Context) error {
	const window = 5 * time.Second
	first := idempotency.Claim{Token: "check." + rand.Text(), Lease: window, TTL: window, Confirmed: s.now()}
	second := first
	second.Token = "check." + rand.Text()
	key := s.prefix + "check:" + first.Token
	beat := heartbeat{key: key + ".beat", text: second.Token, ttl: window}
	for _, written := range [][2]string{
		{key, string(appendValue(nil, claimed, first.Token, message.Fingerprint{}))},
		{beat.key, beat.text},
	} {
		set := redis.NewStatusCmd(ctx, "set", written[0], written[1], "px", window.Milliseconds())
		if err := s.trips.do(ctx, set); err != nil {
			return fmt.Errorf("check scripts: set: %w", redact.Error(err))
		}
	}
	taking := idempotency.Request{Token: second.Token, Lease: window}
	for _, step := range []struct {
		name   string
		change change
		want   int64
	}{
		{"renew", s.renewal(key, first), yes},
		{"reclaim", s.reclaimingDead(key, taking, first.Token, key+".owner", beat), reclaimed},
		{"record", s.recording(key, second, nil), yes},
		{"settle", s.settling(key, first, nil), slipped},
		{"release", s.releasing(key, second), no},
	} {
		answer, err := s.eval(ctx, step.change)
		if err != nil {
			return fmt.Errorf("check scripts: %s: %w", step.name, redact.Error(err))
		}
		if answer != step.want {
			return fmt.Errorf("check scripts: %s answered %d, want %d", step.name, answer, step.want)
		}
	}
	return nil
}

// CheckInbox is CheckScripts for those of stored messages, which need more
// commands. Nobody is shown its message to take: it has an index of its own.
func (s *Store) CheckInbox(ctx context.Context) error {
	const window = 5 * time.Second
	id := "check:" + rand.Text()
	p, later := s.place(idempotency.Key(id), id), s.place(idempotency.Key(id+".later"), id)
	p.index += ":" + id + ".index"
	later.index = p.index
	req := idempotency.Request{Token: "check.accept", Lease: window, TTL: window}
	taker := idempotency.Claim{Token: "check.take", Lease: window, TTL: window}
	owner := taker.Token + string(bar)
	_, _, record := recordOf(taker, nil)
	accepted := appendValue(nil, waiting, req.Token, req.Fingerprint)
	taken, given := appendValue(nil, running, taker.Token, req.Fingerprint), appendValue(nil, waiting, taker.Token, req.Fingerprint)
	ms := window.Milliseconds()
	accept := append([]any{req.Token, accepted, 0, 0, ms, ms}, newFields(req, idempotency.Stored{Session: id, Keep: window})...)
	about, index := p.keys(), []string{p.index}
	in := s.scripts.inbox
	for _, step := range []struct {
		name   string
		script script
		keys   []string
		args   []any
		want   int64 // the first number of the answer
	}{
		{"accept", in.accept, about, p.args(accept...), 1},
		{"accept", in.accept, later.keys(), later.args(accept...), 1},
		{"take", in.take, p.keys(p.claim, p.message), p.args(accepted, taken, ms, p.key, 0), yes},
		{"extend", in.extend, about, p.args(owner, ms), yes},
		{"checkpoint", in.checkpoint, about, p.args(owner, "x"), yes},
		{"retry", in.retry, about, p.args(owner, 0, "x", 0), yes},
		{"count", in.count, index, nil, 2},
		{"look", in.look, index, []any{1, 1, ms, ms}, 0},
		{"replay", in.replay, about, p.args("x"), no},
		{"drop", in.drop, about, p.args(given, 0), yes},
		{"bury", in.bury, about, p.args(owner, "x"), no},
		{"supersede", in.supersede, about, p.args(owner, record, ms), stored},
		{"finish", in.finish, about, p.args(owner, "", 0, 0), yes},
	} {
		cmd, err := onMessage(ctx, s, redis.NewCmd, step.script, step.keys, step.args)
		if err != nil {
			return fmt.Errorf("check stored messages: %s: %w", step.name, redact.Error(err))
		}
		if got := firstNumber(cmd.Val()); got != step.want && step.name != "look" {
			return fmt.Errorf("check stored messages: %s answered %d, want %d", step.name, got, step.want)
		}
	}
	return nil
}

// firstNumber returns the number that an answer is, or begins with.
func firstNumber(answer any) int64 {
	if list, ok := answer.([]any); ok && len(list) > 0 {
		answer = list[0]
	}
	n, _ := answer.(int64)
	return n
}
