package sqlitestore

import (
	"database/sql/driver"
	"errors"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// The states of a row, see schema1.sql and schema3.sql.
const (
	inFlight = 0
	recorded = 1
	running  = 2
	waiting  = 3
	dead     = 4
	copied   = 5
)

func (w *writer) reserve(o *op) error {
	won, err := w.claim(o)
	if err != nil || won {
		return err
	}
	held, err := w.live(o)
	if err != nil {
		return err
	}
	if held == nil { // now: it was a message whose time is over
		if won, err = w.claim(o); err == nil && !won {
			err = errors.New("a claim was refused without a row that holds it")
		}
		return err
	}
	if held.state == inFlight && w.ownerless(o.req.Owners, held.token) {
		return w.takeOver(o)
	}
	o.met = held.met(o.req)
	return nil
}

// claim takes the key of o's request if it is free or its token's already.
func (w *writer) claim(o *op) (won bool, err error) {
	n, err := w.sql.reserve.exec(o.idArg, string(o.key), o.req.Token, o.printArg, w.after(o.req.Lease), w.shadow, w.nowArg)
	if err != nil || n == 0 {
		return false, err
	}
	o.met = o.req.Won(o.key, idempotency.BackendSQLite, o.sent)
	return true, nil
}

// ownerless reports whether nobody runs what token claims, so that it need not
// wait for its lease.
func (w *writer) ownerless(owners idempotency.Owners, token string) bool {
	return owners != nil && (owners.Abandoned(token) || owners.MayTakeOver() && w.dead(idempotency.ReplicaOf(token)))
}

// takeOver gives the claim that o has just met to its request.
func (w *writer) takeOver(o *op) error {
	_, err := w.sql.takeOver.exec(o.req.Token, o.printArg, w.after(o.req.Lease), w.shadow, o.idArg)
	o.met = o.req.Won(o.key, idempotency.BackendSQLite, o.sent)
	o.met.TakenOver = true
	return err
}

func (w *writer) renew(o *op) error {
	renewed, err := w.sql.renew.exec(w.after(o.claim.Lease), o.idArg, o.claim.Token, w.nowArg)
	if err != nil || renewed > 0 {
		return err
	}
	m, err := w.standing(o)
	if err != nil {
		return err
	}
	if m == nil || m.state != running || m.token != o.claim.Token {
		o.answer = idempotency.ErrNotOwner
		return nil
	}
	m.until = w.after(o.claim.Lease)
	return w.touch(m)
}

func (w *writer) record(o *op) error {
	done, err := w.sql.record.exec(w.after(o.claim.TTL), o.outcome, w.shadow, o.idArg, o.claim.Token, w.nowArg)
	if err != nil || done > 0 {
		return err
	}
	held, err := w.live(o)
	if err != nil {
		return err
	}
	switch left := o.claim.RemainingTTL(w.now); {
	case held != nil && held.token == o.claim.Token && held.state == recorded:
		return nil
	case held != nil && held.token == o.claim.Token && held.state == running:
		o.print = held.print
		return w.finish(o, held, o.claim.TTL)
	case held != nil, left <= 0:
		o.answer = idempotency.ErrNotOwner
		return nil
	default:
		return w.finish(o, nil, left)
	}
}

// finish writes the record of o's claim over what held its key, and forgets the
// message.
func (w *writer) finish(o *op, held *held, ttl time.Duration) error {
	_, err := w.sql.insert.exec(o.idArg, string(o.key), o.claim.Token, o.printArg, w.after(ttl), o.outcome, w.shadow)
	if err == nil && held != nil && held.number != 0 {
		err = w.vacate(held.number)
	}
	return err
}

func (w *writer) release(o *op) error {
	removed, err := w.sql.remove.exec(o.idArg, o.claim.Token)
	if err != nil || removed > 0 {
		return err
	}
	switch held, err := w.live(o); {
	case err != nil, held == nil:
		return err
	case held.state == running && held.token == o.claim.Token:
		return w.forget(o.idArg, held.number)
	default:
		o.answer = idempotency.ErrNotOwner
		return nil
	}
}

func (w *writer) prune(o *op) error {
	var row [1]driver.Value
	var numbers []int64
	o.n = 0
	err := w.sql.prune.each(row[:], func() bool {
		o.n++
		if number, stored := row[0].(int64); stored {
			numbers = append(numbers, number)
		}
		return true
	}, w.nowArg, int64(o.limit))
	for _, number := range numbers {
		err = errors.Join(err, w.vacate(number))
	}
	return err
}

func (w *writer) count(o *op) error {
	var row [1]driver.Value
	_, err := w.sql.count.row(row[:])
	o.n, _ = row[0].(int64) // 0 without a row, which Ping finds out by reading
	return err
}

// after returns the deadline of what lasts d from now on.
func (w *writer) after(d time.Duration) int64 { return w.now.UnixMilli() + d.Milliseconds() }

// held is a row whose time is not over.
type held struct {
	state   int64
	token   string
	print   message.Fingerprint
	left    time.Duration // of the lease, of the time until the message may be taken, or of the record window
	outcome []byte
	number  int64 // of the message; 0: none
}

// live returns the row of o's key, or nil if there is none. One whose time is
// over is none: if it has a message, both are gone now.
func (w *writer) live(o *op) (*held, error) {
	var row [7]driver.Value
	found, err := w.sql.look.row(row[:], o.idArg)
	if err != nil || !found {
		return nil, err
	}
	h := new(held)
	h.state, _ = row[0].(int64) // the types are those of a STRICT table
	h.token, _ = row[1].(string)
	print, _ := row[2].([]byte)
	copy(h.print[:], print)
	ends, _ := row[3].(int64)
	h.outcome, _ = row[4].([]byte)
	h.number, _ = row[5].(int64)
	switch {
	case ends <= w.now.UnixMilli() && h.number != 0:
		return nil, w.forget(o.idArg, h.number)
	case ends <= w.now.UnixMilli():
		return nil, nil
	case h.number != 0:
		ends, _ = row[6].(int64)
	}
	h.left = time.Duration(ends-w.now.UnixMilli()) * time.Millisecond
	return h, nil
}

// met is what a delivery meets that has not won the row.
func (h *held) met(req idempotency.Request) idempotency.Reservation {
	met := idempotency.Reservation{State: idempotency.InFlight, FingerprintMatch: req.Matches(h.print)}
	switch h.state {
	case recorded, dead:
		met.State, met.Outcome = idempotency.Recorded, h.outcome
	case inFlight:
		met.RetryAfter = h.left
	default:
		met.Stored, met.RetryAfter = true, max(h.left, time.Millisecond)
	}
	return met
}
