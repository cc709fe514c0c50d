package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

var _ idempotency.Lister = (*Store)(nil)

// Get implements idempotency.Lister.
func (s *Store) Get(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	entries, err := s.look(ctx, []string{s.key(key)})
	if err == nil && entries[0].err != nil {
		err = entries[0].err
	}
	if err != nil {
		return idempotency.Entry{}, fmt.Errorf("look up %q: %w", key, redact.Error(err))
	}
	return entries[0].Entry, nil
}

const (
	// minCount and maxCount bound how many keys the server looks at for one
	// answer: about a page, and more where it holds little of what is asked for.
	minCount, maxCount = 10, 1000
	// maxScans bounds the answers of one List, for a server that holds much else.
	maxScans = 100
)

// literal makes a pattern of SCAN of a text that stands for itself.
var literal = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)

// List implements idempotency.Lister: in the order of SCAN, which says little
// of what changes meanwhile.
func (s *Store) List(ctx context.Context, req idempotency.ListRequest) (idempotency.Page, error) {
	page, err := s.list(ctx, req)
	if err != nil {
		return idempotency.Page{}, fmt.Errorf("list messages: %w", redact.Error(err))
	}
	return page, nil
}

func (s *Store) list(ctx context.Context, req idempotency.ListRequest) (idempotency.Page, error) {
	var page idempotency.Page
	var cursor uint64
	if req.After != "" {
		var err error
		if cursor, err = strconv.ParseUint(req.After, 10, 64); err != nil {
			return page, fmt.Errorf("%q is not the end of a page", req.After)
		}
	}
	pattern, count := literal.Replace(s.prefix)+"*", min(max(req.Limit, minCount), maxCount)
	for range maxScans {
		keys, next, err := s.client.Scan(ctx, cursor, pattern, int64(count)).Result()
		if err != nil {
			return page, err
		}
		entries, err := s.look(ctx, slices.DeleteFunc(keys, s.isOwn))
		if err != nil {
			return page, err
		}
		before := len(page.Entries)
		for _, e := range entries {
			// What is gone again, or was written by nobody here, is passed over.
			if e.err == nil && (req.State == 0 || e.State == req.State) {
				page.Entries = append(page.Entries, e.Entry)
			}
		}
		if next == 0 {
			return page, nil
		}
		cursor = next
		if len(page.Entries) >= req.Limit {
			break
		}
		if len(page.Entries) == before {
			count = min(2*count, maxCount)
		}
	}
	page.Next = strconv.FormatUint(cursor, 10)
	return page, nil
}

// isOwn reports whether a key of Redis is one that the store makes for itself,
// see Ping and CheckScripts. A message's key has three colons, or is a digest.
func (s *Store) isOwn(key string) bool {
	text := strings.TrimPrefix(key, s.prefix)
	return strings.Count(text, ":") == 1 && (strings.HasPrefix(text, "ping:") || strings.HasPrefix(text, "check:"))
}

// looked is what a key holds, or why that is no message.
type looked struct {
	idempotency.Entry
	stored bool // its message is to be read, too
	err    error
}

// look reads keys in one round trip. Its own error says nothing about any.
func (s *Store) look(ctx context.Context, keys []string) ([]looked, error) {
	values, times := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	cmds, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			values[i], times[i] = p.Get(ctx, key), p.PTTL(ctx, key)
		}
		return nil
	})
	if stamp(cmds, err); err != nil {
		if _, answered := errors.AsType[redis.Error](err); !answered {
			return nil, err
		}
	}
	all := make([]looked, len(keys))
	for i, key := range keys {
		all[i].Key = idempotency.Key(strings.TrimPrefix(key, s.prefix))
		all[i].err = all[i].fill(values[i], times[i])
		if err := all[i].err; err != nil && !errors.Is(err, idempotency.ErrNotFound) && !errors.Is(err, idempotency.ErrForeign) {
			return nil, err
		}
	}
	return all, s.lookStored(ctx, all)
}

// lookStored completes the entries of stored messages.
func (s *Store) lookStored(ctx context.Context, all []looked) error {
	clock := redis.NewTimeCmd(ctx, "time")
	cmds, messages := []redis.Cmder{clock}, make(map[int]*redis.MapStringStringCmd)
	for i, l := range all {
		if l.err == nil && l.stored {
			messages[i] = redis.NewMapStringStringCmd(ctx, "hgetall", s.messageKey(l.Key))
			cmds = append(cmds, messages[i])
		}
	}
	if len(messages) == 0 {
		return nil
	}
	if err := s.pipeline(ctx, cmds...); err != nil {
		return err
	}
	for i, cmd := range messages {
		all[i].complete(cmd.Val(), clock.Val())
	}
	return nil
}

func (l *looked) complete(f fields, now time.Time) {
	if len(f) == 0 { // it has ended, or is recorded, since its claim was read
		l.err = idempotency.ErrNotFound
		return
	}
	t := f.terms()
	l.Stored, l.Lease, l.TTL = f.stored(), t.lease, t.ttl
	if l.State != idempotency.Dead {
		l.Left = max(f.left(l.State, now), 0)
	}
}

func (l *looked) fill(get *redis.StringCmd, pttl *redis.DurationCmd) error {
	text, err := get.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return idempotency.ErrNotFound
	case err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE"):
		return idempotency.ErrForeign
	case err != nil:
		return err
	}
	if l.Left, err = pttl.Result(); err != nil {
		return err
	}
	if l.Left == -2 { // it has ended between the two; a time of nanoseconds is how the client hands this on
		return idempotency.ErrNotFound
	}
	l.Left = max(l.Left, time.Millisecond)
	v, err := parse(text)
	if err != nil {
		return err
	}
	l.stored = v.stored
	l.State, l.Token, l.Fingerprint, l.Outcome = v.state, v.token, v.fingerprint, v.outcome
	return nil
}
