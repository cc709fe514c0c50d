package sqlitestore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// How often and how much the upkeep does. A batch is short enough for the
// claims that wait behind it, and the rests are long enough for the disk: some
// 3000 rows a second beside a full load, far more without one.
const (
	checkpointEvery = 100 * time.Millisecond
	pruneEvery      = time.Minute
	pruneBatch      = 50 // rows
	pruneRest       = 5  // times as long as the batch took, but no longer than
	pruneRestMax    = 50 * time.Millisecond
)

// keep bounds the file and its log until ctx ends. No answer depends on it. A
// fault that lasts is logged once.
func (s *Store) keep(ctx context.Context) {
	checkpoint, prune := time.NewTicker(checkpointEvery), time.NewTicker(pruneEvery)
	defer checkpoint.Stop()
	defer prune.Stop()
	var last string
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-checkpoint.C:
			err = s.checkpoint(ctx)
		case <-prune.C:
			if !s.amiss.Load() {
				_, err = s.Prune(ctx)
			}
		}
		if err == nil {
			last = ""
		} else if ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			s.log.Warn("upkeep of the claim store", "error", err)
		}
	}
}

// checkpoint copies what is new in the log into the file, beside the writer
// and without making it wait.
func (s *Store) checkpoint(ctx context.Context) error {
	if s.db.Journal != sqlitedb.WAL || s.amiss.Load() || !s.dirty.Swap(false) {
		return nil
	}
	if _, err := s.db.Readers.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil {
		return fmt.Errorf("checkpoint: %w", sqlitedb.Explain(s.db.Path, err))
	}
	return nil
}

// Prune deletes the rows whose time is over and returns their number. It works
// in small batches with a rest after each, so that claims pass between them.
// In the end the log is cut, which only the writer itself can do while claims
// keep coming; a reader at that moment leaves it to the next pruning.
func (s *Store) Prune(ctx context.Context) (int64, error) {
	var total int64
	checkpointed := time.Now()
	for {
		start := time.Now()
		n, err := s.pruneBatch(ctx)
		if err != nil {
			return total, fmt.Errorf("delete expired claims: %w", err)
		}
		if total += n; n < pruneBatch {
			break
		}
		rest := min(pruneRest*time.Since(start), pruneRestMax)
		if time.Since(checkpointed) >= checkpointEvery {
			if err := s.checkpoint(ctx); err != nil {
				return total, err
			}
			checkpointed = time.Now()
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done(): // and the next batch is refused
		case <-s.stopped:
		}
	}
	cut := make(chan struct{})
	select {
	case s.fold <- cut:
		<-cut
	case <-ctx.Done(): // the log is only longer than it might be
	case <-s.stopped:
	}
	return total, nil
}

func (s *Store) pruneBatch(ctx context.Context) (int64, error) {
	o := s.op((*writer).prune, "", [16]byte{})
	defer s.free(o)
	o.limit = pruneBatch
	err := s.do(ctx, o)
	return o.n, err
}
