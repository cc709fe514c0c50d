package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
)

// place is where a stored message is.
type place struct {
	key, session                 string
	claim, message, index, queue string
}

func (s *Store) place(key idempotency.Key, session string) place {
	return place{
		key: string(key), session: session,
		claim: s.key(key), message: s.messageKey(key), index: s.index, queue: s.root + "hookqueue:" + session,
	}
}

func (s *Store) messageKey(key idempotency.Key) string { return s.index + ":" + string(key) }

// placeOf reads what the index has of a message: no key holds a space.
func (s *Store) placeOf(member string) place {
	key, session, _ := strings.Cut(member, " ")
	return s.place(idempotency.Key(key), session)
}

// keys are the first of every script about the message, see message.lua.
func (p place) keys(more ...string) []string {
	return append([]string{p.claim, p.message, p.index, p.queue}, more...)
}

// args are the first of every script about the message.
func (p place) args(more ...any) []any { return append([]any{p.key, p.session}, more...) }

// onMessage runs a script about stored messages, which no other commands replace.
func onMessage[T redis.Cmder](ctx context.Context, s *Store, newCmd func(context.Context, ...any) T, sc script, keys []string, args []any) (T, error) {
	cmd, err := evaluate(ctx, s, newCmd, sc, keys, args)
	return cmd, s.needScripts(err)
}

// needScripts says of a refusal what cannot be done because of it.
func (s *Store) needScripts(err error) error {
	if !refused(err) {
		return err
	}
	s.refusal.Store(&err)
	return fmt.Errorf("stored messages need scripts: %w", err)
}

// evaluateAll runs a script several times in one round trip, and in another one
// where the server had forgotten it.
func (s *Store) evaluateAll(ctx context.Context, sc script, calls [][]any) ([]*redis.SliceCmd, error) {
	answers := make([]*redis.SliceCmd, len(calls))
	for round, pending := 0, calls; ; round++ {
		var cmds []redis.Cmder
		for i, call := range pending {
			if call != nil {
				answers[i] = redis.NewSliceCmd(ctx, call...)
				cmds = append(cmds, answers[i])
			}
		}
		err := s.pipeline(ctx, cmds...)
		if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") || round > 0 {
			return answers, s.needScripts(err)
		}
		pending = make([][]any, len(calls))
		for i, call := range calls {
			if redis.HasErrorPrefix(answers[i].Err(), "NOSCRIPT") {
				pending[i] = append([]any{"eval", sc.source}, call[2:]...)
			}
		}
	}
}

// sessionOf returns the session of the message under key; none where the key has
// none.
func (s *Store) sessionOf(ctx context.Context, key idempotency.Key) (string, error) {
	cmd := redis.NewStringCmd(ctx, "hget", s.messageKey(key), "session")
	if err := s.trips.do(ctx, cmd); err != nil && !errors.Is(err, redis.Nil) {
		return "", err
	}
	return cmd.Val(), nil
}

// byOwner runs a script by which c's token changes the message that it runs.
func (s *Store) byOwner(ctx context.Context, c idempotency.Claim, sc script, args ...any) (int64, error) {
	var session string
	if c.Stored != nil {
		session = c.Stored.Session
	} else {
		var err error
		if session, err = s.sessionOf(ctx, c.Key); err != nil {
			return 0, err
		}
	}
	p := s.place(c.Key, session)
	cmd, err := onMessage(ctx, s, redis.NewIntCmd, sc, p.keys(), p.args(append([]any{c.Token + string(bar)}, args...)...))
	if err != nil {
		return 0, err
	}
	return cmd.Val(), nil
}

// storedLeft returns what is left of the lease of a stored message, or until it
// is due. Where that cannot be learnt, a whole lease is the safe advice.
func (s *Store) storedLeft(ctx context.Context, key idempotency.Key, state idempotency.State, lease time.Duration) time.Duration {
	clock := redis.NewTimeCmd(ctx, "time")
	times := redis.NewMapStringStringCmd(ctx, "hgetall", s.messageKey(key))
	if err := s.pipeline(ctx, clock, times); err != nil {
		return lease
	}
	return fields(times.Val()).left(state, clock.Val())
}

// fields are those of a message's hash: session, body, attempts, reply and cause,
// as in Stored, and
//
//	terms      as it was accepted, see terms
//	replayed   the id of the last Replay
//	due, ends  in ms of the server's clock: when it is due while it waits, and
//	           when the lease ends while it runs
type fields map[string]string

// newFields returns the fields with which a message is accepted, each followed
// by its value.
func newFields(req idempotency.Request, m idempotency.Stored) []any {
	list := []any{"session", m.Session, "body", m.Body, "terms", termsOf(req, m).String(), "attempts", m.Attempts}
	if m.Cause != "" {
		list = append(list, "cause", m.Cause)
	}
	if m.Reply != nil {
		list = append(list, "reply", m.Reply)
	}
	return list
}

// terms are what never changes of a message: in one field, since the server
// takes its time over each.
type terms struct {
	keep, orderWait, lease, ttl time.Duration
	accepted                    string // the token of Accept
}

func termsOf(req idempotency.Request, m idempotency.Stored) terms {
	return terms{keep: m.Keep, orderWait: m.OrderWait, lease: req.Lease, ttl: req.TTL, accepted: req.Token}
}

// String returns the durations, in ms, and the token, separated by spaces.
func (t terms) String() string {
	buf := make([]byte, 0, 64)
	for _, d := range []time.Duration{t.keep, t.orderWait, t.lease, t.ttl} {
		buf = append(strconv.AppendInt(buf, d.Milliseconds(), 10), ' ')
	}
	return string(append(buf, t.accepted...))
}

// parseTerms reads what String has written.
func parseTerms(text string) (t terms) {
	for _, d := range []*time.Duration{&t.keep, &t.orderWait, &t.lease, &t.ttl} {
		word, rest, _ := strings.Cut(text, " ")
		ms, _ := strconv.ParseInt(word, 10, 64)
		*d, text = time.Duration(ms)*time.Millisecond, rest
	}
	t.accepted = text
	return t
}

// flat reads fields out of a script's answer.
func flat(answer any) fields {
	list, _ := answer.([]any)
	f := make(fields, len(list)/2)
	for i := 1; i < len(list); i += 2 {
		name, _ := list[i-1].(string)
		f[name], _ = list[i].(string)
	}
	return f
}

func (f fields) terms() terms { return parseTerms(f["terms"]) }

func (f fields) stored() *idempotency.Stored {
	attempts, _ := strconv.Atoi(f["attempts"])
	t := f.terms()
	m := &idempotency.Stored{
		Session: f["session"], Body: []byte(f["body"]), OrderWait: t.orderWait, Keep: t.keep,
		Attempts: attempts, Cause: f["cause"],
	}
	if reply, ok := f["reply"]; ok {
		m.Reply = []byte(reply)
	}
	return m
}

// left returns what is left at now of the lease, or until the message is due.
func (f fields) left(state idempotency.State, now time.Time) time.Duration {
	name := "due"
	if state == idempotency.InFlight {
		name = "ends"
	}
	at, _ := strconv.ParseFloat(f[name], 64)
	return time.UnixMicro(int64(at * 1000)).Sub(now)
}
