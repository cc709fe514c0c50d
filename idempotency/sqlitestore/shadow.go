package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

var (
	_ idempotency.Settler = (*Store)(nil)
	_ idempotency.Shadow  = (*Store)(nil)
)

// Settle implements idempotency.Settler.
func (s *Store) Settle(ctx context.Context, c idempotency.Claim, outcome []byte) (slipped bool, err error) {
	o := s.op((*writer).settle, c.Key, c.Fingerprint)
	defer s.free(o)
	o.claim, o.outcome = c, outcome
	if err := s.do(ctx, o); err != nil {
		return false, fmt.Errorf("settle %q: %w", c.Key, err)
	}
	return o.slipped, nil
}

func (w *writer) settle(o *op) error {
	held, err := w.live(o)
	if err != nil {
		return err
	}
	o.slipped = held != nil && held.token != o.claim.Token
	if held != nil && held.state == recorded {
		return nil
	}
	return w.finish(o, held, o.claim.TTL)
}

// Carried implements idempotency.Shadow.
func (s *Store) Carried(ctx context.Context, key idempotency.Key, token string) error {
	return s.change(ctx, "note as carried", (*writer).carried, idempotency.Claim{Key: key, Token: token}, nil)
}

func (w *writer) carried(o *op) error {
	_, err := w.sql.carried.exec(o.idArg, o.claim.Token)
	return err
}

// Uncarried implements idempotency.Shadow.
func (s *Store) Uncarried(ctx context.Context, all bool, req idempotency.ListRequest) (idempotency.Page, error) {
	req.State = idempotency.Recorded
	if all {
		return s.List(ctx, req)
	}
	return s.reader().page(ctx, req, claimColumns+`INDEXED BY claims_uncarried WHERE uncarried = 1 AND state = ?`, recorded)
}

// Backlog implements idempotency.Shadow.
func (s *Store) Backlog(ctx context.Context) (int, error) {
	var n int
	err := s.db.Readers.QueryRowContext(ctx, `
		SELECT count(*) FROM claims INDEXED BY claims_uncarried
		WHERE uncarried = 1 AND state = ? AND deadline > ?`, recorded, s.now().UnixMilli()).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count what has not been carried: %w", sqlitedb.Explain(s.db.Path, err))
	}
	return n, nil
}

// dropUnfinished deletes the claims of dead processes for which this file stood
// in for a better store: that one decides what becomes of their messages.
func dropUnfinished(ctx context.Context, db *sql.DB, dead func(replica string) bool) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // refused after the commit
	claims, err := unfinished(ctx, tx)
	if err != nil {
		return err
	}
	verdicts := make(map[string]bool) // by replica
	for _, c := range claims {
		replica := idempotency.ReplicaOf(c.token)
		gone, known := verdicts[replica]
		if !known {
			gone = dead(replica)
			verdicts[replica] = gone
		}
		if !gone {
			continue
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM claims WHERE id = ?`, c.id); err != nil {
			return err
		}
	}
	return tx.Commit()
}

type unfinishedClaim struct {
	id    []byte
	token string
}

func unfinished(ctx context.Context, tx *sql.Tx) (claims []unfinishedClaim, err error) {
	rows, err := tx.QueryContext(ctx, `
		SELECT id, token FROM claims INDEXED BY claims_uncarried
		WHERE uncarried = 1 AND state = ?`, inFlight)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var c unfinishedClaim
		if err := rows.Scan(&c.id, &c.token); err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, rows.Err()
}
