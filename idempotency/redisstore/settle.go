package redisstore

import (
	"context"
	"fmt"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
)

var _ idempotency.Settler = (*Store)(nil)

// Renew implements idempotency.Store.
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	answer, err := s.change(ctx, c, s.renewal(s.key(c.Key), c), s.scripts.inbox.extend, c.Lease.Milliseconds())
	return asOwner("renew", c, answer, err)
}

// Record implements idempotency.Store.
func (s *Store) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	_, _, record := recordOf(c, outcome)
	window, rest := c.TTL.Milliseconds(), c.RemainingTTL(s.now()).Milliseconds()
	answer, err := s.change(ctx, c, s.recording(s.key(c.Key), c, outcome), s.scripts.inbox.finish, record, window, rest)
	return asOwner("record", c, answer, err)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, c idempotency.Claim) error {
	answer, err := s.change(ctx, c, s.releasing(s.key(c.Key), c), s.scripts.inbox.finish, "", 0, 0)
	return asOwner("release", c, answer, err)
}

// change carries out plain, or where c has a stored message, the script that is
// for those. That there is one c may not know; then plain tells.
func (s *Store) change(ctx context.Context, c idempotency.Claim, plain change, onMessage script, args ...any) (int64, error) {
	if c.Stored == nil {
		if answer, err := s.apply(ctx, plain); answer != stored || err != nil {
			return answer, err
		}
	}
	return s.byOwner(ctx, c, onMessage, args...)
}

// asOwner makes an error of the answer to what c's owner has asked for.
func asOwner(what string, c idempotency.Claim, answer int64, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s %q: %w", what, c.Key, redact.Error(err))
	case answer != yes:
		return idempotency.ErrNotOwner
	}
	return nil
}

// Settle implements idempotency.Settler. A key that holds no claim stays as it
// is: ErrForeign.
func (s *Store) Settle(ctx context.Context, c idempotency.Claim, outcome []byte) (bool, error) {
	answer, err := s.settle(ctx, c, outcome)
	if err == nil && answer == foreign {
		err = idempotency.ErrForeign
	}
	if err != nil {
		return false, fmt.Errorf("settle %q: %w", c.Key, redact.Error(err))
	}
	return answer == slipped, nil
}

func (s *Store) settle(ctx context.Context, c idempotency.Claim, outcome []byte) (int64, error) {
	plain := s.settling(s.key(c.Key), c, outcome)
	_, _, record := recordOf(c, outcome)
	c.Stored = nil // what it says of the session may be another store's
	// Another round means that what has the key changed between two scripts.
	for {
		answer, err := s.change(ctx, c, plain, s.scripts.inbox.supersede, record, c.TTL.Milliseconds())
		if answer != stored || err != nil {
			return answer, err
		}
	}
}

func (s *Store) renewal(key string, c idempotency.Claim) change {
	held, lease := head(claimed, c.Token), c.Lease.Milliseconds()
	return change{
		keys: []string{key}, script: s.scripts.renew, args: []any{held, lease}, headed: len(held),
		decide: func(found string) (int64, []any) {
			if found != held {
				return notHeld(found, held), nil
			}
			return yes, []any{"pexpire", key, lease}
		},
	}
}

func (s *Store) recording(key string, c idempotency.Claim, outcome []byte) change {
	held, done, record := recordOf(c, outcome)
	window, rest := c.TTL.Milliseconds(), c.RemainingTTL(s.now()).Milliseconds()
	return change{
		keys: []string{key}, script: s.scripts.record, args: []any{held, done, record, window, rest}, headed: len(held),
		decide: func(found string) (int64, []any) {
			switch {
			case found == held:
				return yes, []any{"set", key, record, "px", window}
			case found == "" && rest > 0:
				return yes, []any{"set", key, record, "px", rest}
			case found == done:
				return yes, nil
			}
			return notHeld(found, held), nil
		},
	}
}

func (s *Store) releasing(key string, c idempotency.Claim) change {
	held := head(claimed, c.Token)
	return change{
		keys: []string{key}, script: s.scripts.release, args: []any{held}, headed: len(held),
		decide: func(found string) (int64, []any) {
			switch found {
			case held:
				return yes, []any{"del", key}
			case "":
				return yes, nil
			}
			return notHeld(found, held), nil
		},
	}
}

// notHeld tells how what was found is not held as a plain claim.
func notHeld(found, held string) int64 {
	if found != "" && found[0] == running && found[1:] == held[1:] {
		return stored
	}
	return no
}

func (s *Store) settling(key string, c idempotency.Claim, outcome []byte) change {
	held, done, record := recordOf(c, outcome)
	window := c.TTL.Milliseconds()
	write := []any{"set", key, record, "px", window}
	return change{
		keys: []string{key}, script: s.scripts.settle, args: []any{held, done, record, window}, headed: len(held),
		decide: func(found string) (int64, []any) {
			switch {
			case found == done:
				return settled, nil
			case found == "", found == held:
				return settled, write
			case found[0] == claimed:
				return slipped, write
			case found[0] == recorded:
				return slipped, nil
			case found[0] == waiting, found[0] == running, found[0] == dead:
				return stored, nil
			}
			return foreign, nil
		},
	}
}

// recordOf returns how a value begins while c holds it and once it has recorded
// it, and that record.
func recordOf(c idempotency.Claim, outcome []byte) (held, done string, record []byte) {
	record = append(appendValue(nil, recorded, c.Token, c.Fingerprint), outcome...)
	return head(claimed, c.Token), head(recorded, c.Token), record
}
