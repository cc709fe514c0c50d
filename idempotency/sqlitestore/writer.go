package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"runtime"
	"time"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

const (
	maxBatch   = 256     // operations of one transaction
	restingLog = 8 << 20 // bytes of the write-ahead log after a pruning
)

// writer owns the writing connection and its prepared statements.
type writer struct {
	conn   driver.ExecerContext
	sql    statements
	shadow driver.Value              // of what is written, for its column uncarried
	dead   func(replica string) bool // whose claims need not wait for their lease
	now    time.Time                 // of the batch, taken when its transaction has the lock
	nowArg driver.Value              // now in Unix milliseconds
	last   int64                     // the highest number of a message, once the batch has asked; else 0
}

// write prepares the statements, says on ready how that went, and runs the
// batches until the store is closed. It speaks to the driver itself: the
// connection has this one user for its whole life, and a pool would only add
// its cost to every statement.
func (s *Store) write(conn *sql.Conn, ready chan<- error) {
	defer func() { _ = conn.Close() }() // only gives it back to its pool, which is closed next
	err := conn.Raw(func(raw any) error {
		w := &writer{conn: raw.(driver.ExecerContext), shadow: int64(0), dead: s.presence.dead}
		if s.shadow {
			w.shadow = int64(1)
		}
		defer w.sql.close()
		if err := w.sql.prepare(raw.(driver.ConnPrepareContext)); err != nil {
			return err
		}
		ready <- nil
		s.batches(w)
		return nil
	})
	if err != nil {
		ready <- err
	}
}

func (s *Store) batches(w *writer) {
	batch := make([]*op, 0, maxBatch)
	for {
		select {
		case o := <-s.queue:
			batch = s.fill(append(batch[:0], o))
			s.answer(batch, w.commitAll(batch, s.now))
		case cut := <-s.fold:
			_ = w.cutLog() // a fault shows in the next checkpoint of the upkeep too
			close(cut)
		case <-s.stopped:
			return
		}
	}
}

// cutLog gives back most of the write-ahead log. Between two batches nothing
// is written, so a checkpoint can take all of it; the next commit, here one
// that changes next to nothing, then starts it anew and cuts it. The limit
// takes effect when the statement is compiled, so it cannot be prepared.
func (w *writer) cutLog() error {
	const probe = "UPDATE probe SET n = n + 1"
	for _, sql := range []string{
		fmt.Sprintf("PRAGMA journal_size_limit = %d", restingLog), "PRAGMA wal_checkpoint(PASSIVE)", probe,
		fmt.Sprintf("PRAGMA journal_size_limit = %d", sqlitedb.LogLimit),
	} {
		if _, err := w.conn.ExecContext(context.Background(), sql, nil); err != nil {
			return err
		}
	}
	return nil
}

// fill takes what is queued. The callers that were answered last run first:
// those that come back at once share this commit instead of the next one.
func (s *Store) fill(batch []*op) []*op {
	runtime.Gosched()
	for len(batch) < maxBatch {
		select {
		case o := <-s.queue:
			batch = append(batch, o)
		default:
			return batch
		}
	}
	return batch
}

// answer ends the operations of a batch: each with its own answer if the
// batch was committed, else all with the reason.
func (s *Store) answer(batch []*op, err error) {
	err = sqlitedb.Explain(s.db.Path, err)
	s.dirty.Store(true)
	for _, o := range batch {
		if err != nil {
			o.done <- err
		} else {
			o.done <- o.answer
		}
	}
}

// commitAll runs a batch as one transaction.
func (w *writer) commitAll(batch []*op, now func() time.Time) error {
	err := w.transact(batch, now)
	if err != nil {
		// SQLite has already rolled back after some errors, and then refuses.
		_, _ = w.sql.rollback.exec()
	}
	return err
}

// transact reads the time under the lock, which it may have waited for: a
// lease starts when it is written, never before.
func (w *writer) transact(batch []*op, now func() time.Time) error {
	if _, err := w.sql.begin.exec(); err != nil {
		return err
	}
	w.now = now()
	w.nowArg, w.last = w.now.UnixMilli(), 0
	for _, o := range batch {
		if err := o.run(w, o); err != nil {
			return err
		}
	}
	_, err := w.sql.commit.exec()
	return err
}
