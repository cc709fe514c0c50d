package sqlitestore

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/oncegate/oncegate/idempotency"
)

// operation does o's work inside the writer's transaction. An error fails the
// whole batch; what is only a "no" goes into o.answer.
type operation func(w *writer, o *op) error

// op is one operation on its way through the writer. It is reused, together
// with its arguments that point into it, so that a claim costs few allocations.
type op struct {
	run   operation
	key   idempotency.Key
	id    [16]byte // primary key of the row
	print [16]byte // fingerprint

	req  idempotency.Request     // of Reserve
	sent time.Time               // when Reserve was called
	met  idempotency.Reservation // what it met

	claim   idempotency.Claim // of Renew, Record, Release, Settle and Carried
	outcome []byte            // of Record and Settle
	slipped bool              // Settle met another owner

	limit int   // of prune: how many rows at most
	n     int64 // rows pruned, or the number of the probe

	answer          error // nil or ErrNotOwner, valid once the batch is committed
	idArg, printArg any   // id[:] and print[:]
	done            chan error
	left            bool // the caller's: it waits no longer, and the writer may still be at it
}

func newOp() any {
	o := &op{done: make(chan error, 1)}
	o.idArg, o.printArg = o.id[:], o.print[:]
	return o
}

func (s *Store) op(run operation, key idempotency.Key, print [16]byte) *op {
	o := s.ops.Get().(*op)
	o.run, o.key, o.id, o.print = run, key, rowID(key), print
	return o
}

// free forgets what o refers to, so that the pool keeps no message alive.
func (s *Store) free(o *op) {
	if o.left {
		return
	}
	o.key, o.req, o.met, o.claim, o.outcome, o.slipped, o.answer = "", idempotency.Request{}, idempotency.Reservation{}, idempotency.Claim{}, nil, false, nil
	s.ops.Put(o)
}

// rowID returns the first half of the key's SHA-256.
func rowID(key idempotency.Key) [16]byte {
	var buf [idempotency.MaxKeyLen]byte // []byte(key) would allocate
	sum := sha256.Sum256(append(buf[:0], key...))
	return [16]byte(sum[:16])
}

// do hands o to the writer and waits for its result. Until the writer has
// taken it, the end of ctx withdraws it. From then on it may be carried out
// although ctx's error is returned, as with any store that another process can
// lock; o is the writer's then and is not used again.
func (s *Store) do(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.queue <- o:
		select {
		case err := <-o.done:
			return err
		case <-ctx.Done():
			o.left = true
			return ctx.Err()
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopped:
		return errClosed
	}
}
