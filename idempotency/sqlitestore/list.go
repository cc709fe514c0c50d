package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// Reader looks at the claims of a file. It is safe for concurrent use.
type Reader struct {
	db   *sql.DB
	path string
	now  func() time.Time
}

var (
	_ idempotency.Lister = (*Reader)(nil)
	_ idempotency.Lister = (*Store)(nil)
)

// OpenReadOnly opens the file at path for looking only: it makes nothing,
// changes nothing and starts nothing. The file may belong to a running process,
// but not to this one, which may open it as a store once the Reader is closed:
// all connections of a process share the first one's view of the log's index,
// and this one's cannot be written.
func OpenReadOnly(ctx context.Context, path string, now func() time.Time) (*Reader, error) {
	db, err := sqlitedb.OpenReadOnly(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := schemas.Check(ctx, db, path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Reader{db: db, path: path, now: now}, nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.db.Close() }

// Get implements idempotency.Lister.
func (s *Store) Get(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return s.reader().Get(ctx, key)
}

// List implements idempotency.Lister.
func (s *Store) List(ctx context.Context, req idempotency.ListRequest) (idempotency.Page, error) {
	return s.reader().List(ctx, req)
}

// reader goes past the writer: looking waits for no commit.
func (s *Store) reader() *Reader { return &Reader{db: s.db.Readers, path: s.db.Path, now: s.now} }

const columns = `SELECT id, key, state, token, fingerprint, deadline, outcome FROM claims `

// Get implements idempotency.Lister.
func (r *Reader) Get(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	id := rowID(key)
	now := r.now().UnixMilli()
	entries, err := r.query(ctx, now, columns+`WHERE id = ? AND deadline > ?`, id[:], now)
	if err == nil && len(entries) == 0 {
		err = idempotency.ErrNotFound
	}
	if err != nil {
		return idempotency.Entry{}, fmt.Errorf("look up %q: %w", key, err)
	}
	return entries[0].Entry, nil
}

// List implements idempotency.Lister: in the order of the keys' digests.
func (r *Reader) List(ctx context.Context, req idempotency.ListRequest) (idempotency.Page, error) {
	state := sql.NullInt64{Int64: inFlight, Valid: req.State != 0}
	if req.State == idempotency.Recorded {
		state.Int64 = recorded
	}
	return r.page(ctx, req, columns+`WHERE state = coalesce(?, state)`, state)
}

// page reads the part of a list that req asks for; query and args say which
// rows are on the list.
func (r *Reader) page(ctx context.Context, req idempotency.ListRequest, query string, args ...any) (idempotency.Page, error) {
	after, err := hex.DecodeString(req.After)
	if err != nil {
		return idempotency.Page{}, fmt.Errorf("list messages: %q is not the end of a page", req.After)
	}
	now := r.now().UnixMilli()
	// One more than asked for tells whether others follow.
	rows, err := r.query(ctx, now, query+` AND id > ? AND deadline > ? ORDER BY id LIMIT ?`, append(args, after, now, req.Limit+1)...)
	if err != nil {
		return idempotency.Page{}, fmt.Errorf("list messages: %w", err)
	}
	var page idempotency.Page
	if len(rows) > req.Limit {
		rows = rows[:req.Limit]
		page.Next = hex.EncodeToString(rows[req.Limit-1].id)
	}
	for _, row := range rows {
		page.Entries = append(page.Entries, row.Entry)
	}
	return page, nil
}

// entryRow is an entry and where it stands in the order of a list.
type entryRow struct {
	idempotency.Entry
	id []byte
}

// query reads the entries as they are at now, in Unix milliseconds.
func (r *Reader) query(ctx context.Context, now int64, query string, args ...any) (entries []entryRow, err error) {
	rows, err := r.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, sqlitedb.Explain(r.path, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e entryRow
		var state, deadline int64
		var print []byte
		if err := rows.Scan(&e.id, &e.Key, &state, &e.Token, &print, &deadline, &e.Outcome); err != nil {
			return nil, sqlitedb.Explain(r.path, err)
		}
		e.State = idempotency.InFlight
		if state == recorded {
			e.State = idempotency.Recorded
		}
		copy(e.Fingerprint[:], print)
		e.Left = time.Duration(deadline-now) * time.Millisecond
		entries = append(entries, e)
	}
	return entries, sqlitedb.Explain(r.path, rows.Err())
}
