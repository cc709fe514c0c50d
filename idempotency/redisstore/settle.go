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
	return s.asOwner(ctx, "renew", s.renewal(s.key(c.Key), c), c)
}

// Record implements idempotency.Store.
func (s *Store) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	return s.asOwner(ctx, "record", s.recording(s.key(c.Key), c, outcome), c)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, c idempotency.Claim) error {
	return s.asOwner(ctx, "release", s.releasing(s.key(c.Key), c), c)
}

func (s *Store) asOwner(ctx context.Context, what string, c change, claim idempotency.Claim) error {
	answer, err := s.apply(ctx, c)
	switch {
	case err != nil:
		return fmt.Errorf("%s %q: %w", what, claim.Key, redact.Error(err))
	case answer != yes:
		return idempotency.ErrNotOwner
	}
	return nil
}

// Settle implements idempotency.Settler. A key that holds no claim stays as it
// is: ErrForeign.
func (s *Store) Settle(ctx context.Context, c idempotency.Claim, outcome []byte) (bool, error) {
	answer, err := s.apply(ctx, s.settling(s.key(c.Key), c, outcome))
	if err == nil && answer == foreign {
		err = idempotency.ErrForeign
	}
	if err != nil {
		return false, fmt.Errorf("settle %q: %w", c.Key, redact.Error(err))
	}
	return answer == slipped, nil
}

func (s *Store) renewal(key string, c idempotency.Claim) change {
	held, lease := head(claimed, c.Token), c.Lease.Milliseconds()
	return change{
		keys: []string{key}, script: s.scripts.renew, args: []any{held, lease}, headed: len(held),
		decide: func(found string) (int64, []any) {
			if found != held {
				return no, nil
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
			return no, nil
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
			return no, nil
		},
	}
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
