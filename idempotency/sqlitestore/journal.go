package sqlitestore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/idempotency"
)

var _ idempotency.Journal = (*Store)(nil)

// Copy implements idempotency.Journal.
func (s *Store) Copy(ctx context.Context, key idempotency.Key, req idempotency.Request, stored idempotency.Stored) error {
	o := s.op(func(w *writer, o *op) error {
		_, err := w.add(o, stored, standing{state: copied}) // or something has the key
		return err
	}, key, req.Fingerprint)
	defer s.free(o)
	o.req = req
	if err := s.do(ctx, o); err != nil {
		return fmt.Errorf("copy %q: %w", key, err)
	}
	return nil
}

// Moved implements idempotency.Journal.
func (s *Store) Moved(ctx context.Context, key idempotency.Key, token string) error {
	return s.change(ctx, "note as moved", func(w *writer, o *op) error {
		m, err := w.standing(o)
		if err != nil || m == nil || m.token != token || m.state == copied {
			return err
		}
		return w.retire(m, copied)
	}, idempotency.Claim{Key: key}, nil)
}

// Discard implements idempotency.Journal.
func (s *Store) Discard(ctx context.Context, key idempotency.Key) error {
	return s.change(ctx, "discard the copy of", func(w *writer, o *op) error {
		held, err := w.live(o)
		if err != nil || held == nil || held.state != copied {
			return err
		}
		return w.forget(o.idArg, held.number)
	}, idempotency.Claim{Key: key}, nil)
}

// Messages implements idempotency.Journal.
func (s *Store) Messages(ctx context.Context, copies bool, req idempotency.ListRequest) (idempotency.Page, error) {
	after, err := strconv.ParseInt("0"+req.After, 10, 64)
	if err != nil {
		return idempotency.Page{}, fmt.Errorf("list stored messages: %q is not the end of a page", req.After)
	}
	states := map[idempotency.State]int64{idempotency.Waiting: waiting, idempotency.Dead: dead}
	if copies {
		states = map[idempotency.State]int64{idempotency.Waiting: copied}
	}
	now := s.now().UnixMilli()
	var parts []string // one for each state, which the index has in order
	var args []any
	for state, row := range states {
		if req.State == 0 || req.State == state {
			parts = append(parts, storedColumns(`INDEXED BY claims_stored`)+`WHERE c.state = ? AND c.number > ? AND c.deadline > ?`)
			args = append(args, row, after, now)
		}
	}
	if len(parts) == 0 {
		return idempotency.Page{}, nil
	}
	query := strings.Join(parts, ` UNION ALL `) + ` ORDER BY number LIMIT ?`
	rows, err := s.reader().query(ctx, now, query, append(args, req.Limit+1)...)
	if err != nil {
		return idempotency.Page{}, fmt.Errorf("list stored messages: %w", err)
	}
	return pageOf(rows, req.Limit, func(last entryRow) string { return strconv.FormatInt(last.number, 10) }), nil
}
