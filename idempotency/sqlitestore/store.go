// Package sqlitestore keeps claims in one SQLite file.
//
// All writes go through one goroutine, which commits together whatever is
// queued when it is ready: under load a commit, the expensive part, is shared
// by every caller that waits, and a lone caller waits for nobody. A caller has
// its answer only after the commit is on the disk.
//
// Two processes may share a file; their writers take turns on its lock. What
// the file holds survives a restart and a loss of power.
package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

// Config says how to open a store.
type Config struct {
	Path string           // of the file, which is made if absent
	Now  func() time.Time // the clock of leases and record windows
	Log  *slog.Logger

	// Replica is the id of this process, in all of its tokens. The claims of
	// others that have ended may then be taken over; empty, nobody has ended.
	Replica string
	// Shadow says that the store stands in for a better one, which has to be
	// told later what was recorded here.
	Shadow bool

	FileSystem func(dir string) (string, error) // as in sqlitedb.Config
	NoUpkeep   bool                             // no background pruning and checkpoints: for tests
}

// Store is an idempotency.Store in a SQLite file.
type Store struct {
	db       *sqlitedb.DB
	presence *presence
	shadow   bool
	now      func() time.Time
	log      *slog.Logger

	queue chan *op           // unbuffered: an operation is the writer's, or still its caller's
	fold  chan chan struct{} // asks the writer to cut the log between two batches, and to close what it got
	ops   sync.Pool
	dirty atomic.Bool // something was committed since the last checkpoint
	amiss atomic.Bool // the last Ping found the file damaged or replaced: its bytes are left alone

	stop    context.CancelFunc
	stopped <-chan struct{}
	wg      sync.WaitGroup // of the writer and the upkeep
}

var _ idempotency.Store = (*Store)(nil)

var errClosed = errors.New("the sqlite store is closed")

// Open opens the store and starts its writer and its upkeep, which Close ends.
// ctx bounds the opening only.
func Open(ctx context.Context, c Config) (*Store, error) {
	db, err := sqlitedb.Open(ctx, sqlitedb.Config{Path: c.Path, FileSystem: c.FileSystem})
	if err != nil {
		return nil, err
	}
	p, err := enter(ctx, db, c.Replica)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s, err := start(ctx, c, db, p)
	if err != nil {
		return nil, errors.Join(sqlitedb.Explain(db.Path, err), db.Close(), p.leave())
	}
	if db.Warning != "" {
		c.Log.Warn(db.Warning)
	}
	return s, nil
}

func start(ctx context.Context, c Config, db *sqlitedb.DB, p *presence) (*Store, error) {
	if err := schemas.Migrate(ctx, db); err != nil {
		return nil, err
	}
	if c.Shadow {
		if err := dropUnfinished(ctx, db.Writer, p.dead); err != nil {
			return nil, err
		}
	}
	conn, err := db.Writer.Conn(ctx)
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{
		db: db, presence: p, shadow: c.Shadow, now: c.Now, log: c.Log,
		queue: make(chan *op), fold: make(chan chan struct{}), ops: sync.Pool{New: newOp},
		stop: stop, stopped: life.Done(),
	}
	ready := make(chan error)
	s.wg.Go(func() { s.write(conn, ready) })
	if err := <-ready; err != nil {
		stop()
		s.wg.Wait()
		return nil, err
	}
	if !c.NoUpkeep {
		s.wg.Go(func() { s.keep(life) })
	}
	return s, nil
}

// Close ends the background work and closes the file. Calls that the writer
// has taken get their results, others an error. Claims that are still held here
// may be taken over from now on.
func (s *Store) Close() error {
	s.stop()
	s.wg.Wait()
	return errors.Join(s.db.Close(), s.presence.leave())
}

// Reserve implements idempotency.Store.
func (s *Store) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (idempotency.Reservation, error) {
	o := s.op((*writer).reserve, key, req.Fingerprint)
	defer s.free(o)
	o.req, o.sent = req, s.now()
	if err := s.do(ctx, o); err != nil {
		return idempotency.Reservation{}, fmt.Errorf("reserve %q: %w", key, err)
	}
	return o.met, nil
}

// Renew implements idempotency.Store.
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	return s.change(ctx, "renew", (*writer).renew, c, nil)
}

// Record implements idempotency.Store.
func (s *Store) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	return s.change(ctx, "record", (*writer).record, c, outcome)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, c idempotency.Claim) error {
	return s.change(ctx, "release", (*writer).release, c, nil)
}

// change has the writer do something to a claim.
func (s *Store) change(ctx context.Context, verb string, run operation, c idempotency.Claim, outcome []byte) error {
	o := s.op(run, c.Key, c.Fingerprint)
	defer s.free(o)
	o.claim, o.outcome = c, outcome
	if err := s.do(ctx, o); err != nil {
		return fmt.Errorf("%s %q: %w", verb, c.Key, err)
	}
	return nil
}

// Ping implements idempotency.Store. Its write goes the way of a claim and is
// read back through another connection, unless the file is not the one any more
// that was opened, or is damaged: then nothing is written.
func (s *Store) Ping(ctx context.Context) error {
	err := s.db.Check(ctx)
	s.amiss.Store(slices.Contains([]string{"corrupt", "replaced"}, sqlitedb.Classify(err)))
	if errors.Is(err, sqlitedb.ErrReplaced) {
		err = fmt.Errorf("%w: %w", idempotency.ErrReplaced, err)
	}
	if err != nil {
		return fmt.Errorf("look at the store: %w", err)
	}
	o := s.op((*writer).count, "", [16]byte{})
	defer s.free(o)
	if err := s.do(ctx, o); err != nil {
		return fmt.Errorf("write to the store: %w", err)
	}
	var n int64
	if err := s.db.Readers.QueryRowContext(ctx, "SELECT n FROM probe").Scan(&n); err != nil {
		return fmt.Errorf("read from the store: %w", sqlitedb.Explain(s.db.Path, err))
	}
	if n < o.n { // more is the probe of another process
		return fmt.Errorf("read from the store: %s says %d after %d was written", s.db.Path, n, o.n)
	}
	return nil
}
