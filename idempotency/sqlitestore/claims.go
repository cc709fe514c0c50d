package sqlitestore

import (
	"database/sql/driver"
	"errors"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// The states of a row, see schema1.sql.
const (
	inFlight = 0
	recorded = 1
)

func (w *writer) reserve(o *op) error {
	won, err := w.sql.reserve.exec(o.idArg, string(o.key), o.req.Token, o.printArg, w.after(o.req.Lease), w.shadow, w.nowArg)
	if err != nil {
		return err
	}
	if won > 0 {
		o.met = o.req.Won(o.key, idempotency.BackendSQLite, o.sent)
		return nil
	}
	held, err := w.live(o)
	if err == nil && held == nil {
		err = errors.New("a claim was refused without a row that holds it")
	}
	if err != nil {
		return err
	}
	if held.state == inFlight && w.ownerless(o.req, held.token) {
		return w.takeOver(o)
	}
	o.met.FingerprintMatch = o.req.Matches(held.print)
	if held.state == inFlight {
		o.met.State, o.met.RetryAfter = idempotency.InFlight, held.left
	} else {
		o.met.State, o.met.Outcome = idempotency.Recorded, held.outcome
	}
	return nil
}

// ownerless reports whether nobody runs what token claims, so that it need not
// wait for its lease.
func (w *writer) ownerless(req idempotency.Request, token string) bool {
	return req.Abandoned(token) || req.MayTakeOver() && w.dead(idempotency.ReplicaOf(token))
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
	if err == nil && renewed == 0 {
		o.answer = idempotency.ErrNotOwner
	}
	return err
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
	if held != nil {
		if held.token != o.claim.Token {
			o.answer = idempotency.ErrNotOwner
		} // else it is recorded already
		return nil
	}
	left := o.claim.RemainingTTL(w.now)
	if left <= 0 {
		o.answer = idempotency.ErrNotOwner
		return nil
	}
	_, err = w.sql.insert.exec(o.idArg, string(o.key), o.claim.Token, o.printArg, w.after(left), o.outcome, w.shadow)
	return err
}

func (w *writer) release(o *op) error {
	removed, err := w.sql.remove.exec(o.idArg, o.claim.Token)
	if err != nil || removed > 0 {
		return err
	}
	held, err := w.live(o)
	if held != nil {
		o.answer = idempotency.ErrNotOwner
	}
	return err
}

func (w *writer) prune(o *op) (err error) {
	o.n, err = w.sql.prune.exec(w.nowArg, int64(o.limit))
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
	left    time.Duration
	outcome []byte
}

// live returns the row of o's key, or nil if there is none or its time is over.
func (w *writer) live(o *op) (*held, error) {
	var row [5]driver.Value
	found, err := w.sql.look.row(row[:], o.idArg, w.nowArg)
	if err != nil || !found {
		return nil, err
	}
	h := new(held)
	h.state, _ = row[0].(int64) // the types are those of a STRICT table
	h.token, _ = row[1].(string)
	print, _ := row[2].([]byte)
	copy(h.print[:], print)
	deadline, _ := row[3].(int64)
	h.left = time.Duration(deadline-w.now.UnixMilli()) * time.Millisecond
	h.outcome, _ = row[4].([]byte)
	return h, nil
}
