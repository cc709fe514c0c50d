package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// Reader looks at the claims of a file. It is safe for concurrent use.
type Reader struct {
	db      *sql.DB
	path    string
	now     func() time.Time
	columns string // of an entry, from the tables that the file has
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
	r := &Reader{db: db, path: path, now: now, columns: claimColumns}
	var messages bool
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'messages'`).Scan(&messages); err != nil {
		return nil, errors.Join(sqlitedb.Explain(path, err), db.Close())
	}
	if messages { // none in the file of an older gateway
		r.columns = storedColumns("")
	}
	return r, nil
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
func (s *Store) reader() *Reader {
	return &Reader{db: s.db.Readers, path: s.db.Path, now: s.now, columns: storedColumns("")}
}

const (
	// claimColumns are those of a claim that has no message.
	claimColumns = `
		SELECT c.id, c.key, c.state, c.token, c.fingerprint, c.deadline, c.outcome,
			0, NULL, 0, 0, 0, 0, 0, '', '', NULL, NULL, 0 FROM claims c `
)

// storedColumns are those of any claim, found by an index.
func storedColumns(indexed string) string {
	return `
		SELECT c.id, c.key, c.state, c.token, c.fingerprint, c.deadline, c.outcome,
			coalesce(c.number, 0) AS number, c.until, coalesce(c.attempts, 0), coalesce(m.order_wait, 0), coalesce(m.keep, 0), coalesce(m.lease, 0), coalesce(m.ttl, 0),
			coalesce(m.session, ''), coalesce(m.cause, ''), m.body, m.reply, m.reply IS NOT NULL
		FROM claims c ` + indexed + ` LEFT JOIN messages m ON m.number = c.number `
}

// Get implements idempotency.Lister.
func (r *Reader) Get(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	id := rowID(key)
	now := r.now().UnixMilli()
	entries, err := r.query(ctx, now, r.columns+`WHERE c.id = ? AND c.deadline > ?`, id[:], now)
	if err == nil && len(entries) == 0 {
		err = idempotency.ErrNotFound
	}
	if err != nil {
		return idempotency.Entry{}, fmt.Errorf("look up %q: %w", key, err)
	}
	return entries[0].Entry, nil
}

// listed are the states of a row, and as what they are listed.
var listed = [...]idempotency.State{
	inFlight: idempotency.InFlight, recorded: idempotency.Recorded,
	running: idempotency.InFlight, waiting: idempotency.Waiting, dead: idempotency.Dead, copied: idempotency.Waiting,
}

// List implements idempotency.Lister: in the order of the keys' digests.
func (r *Reader) List(ctx context.Context, req idempotency.ListRequest) (idempotency.Page, error) {
	var states []string
	for row, state := range listed {
		if req.State == 0 || req.State == state {
			states = append(states, strconv.Itoa(row))
		}
	}
	return r.page(ctx, req, r.columns+`WHERE c.state IN (`+strings.Join(states, ", ")+`)`)
}

// page reads the part of a list that req asks for; query and args say which
// rows are on the list.
func (r *Reader) page(ctx context.Context, req idempotency.ListRequest, query string, args ...any) (idempotency.Page, error) {
	after, err := hex.DecodeString(req.After)
	if err != nil {
		return idempotency.Page{}, fmt.Errorf("list messages: %q is not the end of a page", req.After)
	}
	now := r.now().UnixMilli()
	rows, err := r.query(ctx, now, query+` AND c.id > ? AND c.deadline > ? ORDER BY c.id LIMIT ?`, append(args, after, now, req.Limit+1)...)
	if err != nil {
		return idempotency.Page{}, fmt.Errorf("list messages: %w", err)
	}
	return pageOf(rows, req.Limit, func(last entryRow) string { return hex.EncodeToString(last.id) }), nil
}

// pageOf makes a page of at most limit rows. One more than that tells that
// others follow, behind the end that the page has.
func pageOf(rows []entryRow, limit int, end func(last entryRow) string) (page idempotency.Page) {
	if len(rows) > limit {
		rows = rows[:limit]
		page.Next = end(rows[limit-1])
	}
	for _, row := range rows {
		page.Entries = append(page.Entries, row.Entry)
	}
	return page
}

// entryRow is an entry and where it stands in the orders of lists.
type entryRow struct {
	idempotency.Entry
	id     []byte
	number int64 // of the message; 0: none
}

// query reads the entries as they are at now, in Unix milliseconds.
func (r *Reader) query(ctx context.Context, now int64, query string, args ...any) (entries []entryRow, err error) {
	rows, err := r.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, sqlitedb.Explain(r.path, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		e, err := scan(rows, now)
		if err != nil {
			return nil, sqlitedb.Explain(r.path, err)
		}
		entries = append(entries, e)
	}
	return entries, sqlitedb.Explain(r.path, rows.Err())
}

func scan(rows *sql.Rows, now int64) (e entryRow, err error) {
	var m standing
	var s said
	var print []byte
	var until sql.NullInt64
	var replied bool
	err = rows.Scan(&e.id, &e.Key, &m.state, &e.Token, &print, &m.deadline, &e.Outcome,
		&e.number, &until, &m.attempts, &m.orderWait, &m.keep, &m.lease, &m.ttl, &m.session, &s.cause, &s.body, &s.reply, &replied)
	if err != nil {
		return e, err
	}
	if int(m.state) >= len(listed) {
		return e, fmt.Errorf("message %q has the state %d, which this program does not know", e.Key, m.state)
	}
	e.State = listed[m.state]
	copy(e.Fingerprint[:], print)
	e.Left = milliseconds(m.deadline - now)
	if e.number == 0 {
		return e, nil
	}
	if replied && s.reply == nil {
		s.reply = []byte{} // which the driver reads as nil
	}
	e.Stored, e.Lease, e.TTL = m.stored(s), milliseconds(m.lease), milliseconds(m.ttl)
	if m.state != dead {
		e.Left = max(milliseconds(until.Int64-now), 0)
	}
	return e, nil
}
