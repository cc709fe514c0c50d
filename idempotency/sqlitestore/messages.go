package sqlitestore

import (
	"database/sql/driver"
	"errors"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// standing is how a message stands: the row of its claim, and what was stored
// with it except for what it says. Times are in Unix milliseconds.
type standing struct {
	id       []byte
	key      string
	state    int64
	token    string
	print    message.Fingerprint
	number   int64
	attempts int64
	until    int64 // the lease ends, or the wait
	due      int64 // when Take has to look at it; 0: not by itself
	deadline int64 // when it is forgotten

	session                     string
	orderWait, keep, lease, ttl int64 // in milliseconds
}

// standing returns how the message of o's key stands, or nil if there is none
// or its time is over.
func (w *writer) standing(o *op) (*standing, error) {
	return one(&w.sql.standing, o.idArg, w.nowArg)
}

// one reads the first row of a statement that asks for standings.
func one(s *statement, args ...driver.Value) (*standing, error) {
	var row [15]driver.Value
	found, err := s.row(row[:], args...)
	if err != nil || !found {
		return nil, err
	}
	return readStanding(row), nil
}

func readStanding(row [15]driver.Value) *standing {
	m := new(standing)
	m.id, _ = row[0].([]byte)
	m.key, _ = row[1].(string)
	m.state, _ = row[2].(int64)
	m.token, _ = row[3].(string)
	print, _ := row[4].([]byte)
	copy(m.print[:], print)
	m.number, _ = row[5].(int64)
	m.attempts, _ = row[6].(int64)
	m.until, _ = row[7].(int64) // NULL is 0
	m.due, _ = row[8].(int64)
	m.deadline, _ = row[9].(int64)
	m.session, _ = row[10].(string)
	m.orderWait, _ = row[11].(int64)
	m.keep, _ = row[12].(int64)
	m.lease, _ = row[13].(int64)
	m.ttl, _ = row[14].(int64)
	return m
}

// add stores what o's request brings as a message that stands as m says. It
// returns the row that has the key, or nil if the message is stored.
func (w *writer) add(o *op, s idempotency.Stored, m standing) (*held, error) {
	added, err := w.tryAdd(o, s, m)
	if err != nil || added {
		return nil, err
	}
	held, err := w.live(o)
	if err != nil || held != nil {
		return held, err
	}
	// It was another message, whose time is over.
	if added, err = w.tryAdd(o, s, m); err == nil && !added {
		err = errors.New("a message was refused without a row that holds its key")
	}
	return nil, err
}

func (w *writer) tryAdd(o *op, s idempotency.Stored, m standing) (bool, error) {
	number, err := w.number()
	if err != nil {
		return false, err
	}
	added, err := w.sql.claim.exec(o.idArg, string(o.key), m.state, o.req.Token, o.printArg,
		number, int64(s.Attempts), orNull(m.until), orNull(m.due), w.after(s.Keep), w.nowArg)
	if err != nil || added == 0 {
		return false, err
	}
	queued := int64(0)
	if s.Session != "" && m.state != copied {
		queued = 1
	}
	body := s.Body
	if body == nil {
		body = []byte{} // nil would be NULL
	}
	_, err = w.sql.message.exec(number, o.idArg, s.Session, queued, s.OrderWait.Milliseconds(), s.Keep.Milliseconds(),
		o.req.Lease.Milliseconds(), o.req.TTL.Milliseconds(), o.req.Token, s.Cause, body, s.Reply)
	return true, err
}

// number returns a number that is higher than that of any message.
func (w *writer) number() (int64, error) {
	if w.last == 0 {
		var row [1]driver.Value
		if _, err := w.sql.numbers.row(row[:]); err != nil {
			return 0, err
		}
		w.last, _ = row[0].(int64) // of none it is NULL
	}
	w.last++
	return w.last, nil
}

// touch writes how m stands, and keeps it for its time from now on.
func (w *writer) touch(m *standing) error {
	m.deadline = w.now.UnixMilli() + m.keep
	if m.due != 0 {
		m.due = min(m.due, m.deadline) // then it is forgotten
	}
	return w.put(m)
}

func (w *writer) put(m *standing) error {
	_, err := w.sql.put.exec(m.state, m.token, m.number, m.attempts, orNull(m.until), orNull(m.due), m.deadline, m.id)
	return err
}

func orNull(n int64) driver.Value {
	if n == 0 {
		return nil
	}
	return n
}

// said is what a message says, and who has stored and replayed it last.
type said struct {
	cause              string
	body, reply        []byte
	accepted, replayed string
}

func (w *writer) said(number int64) (s said, err error) {
	var row [6]driver.Value
	if _, err := w.sql.stored.row(row[:], number); err != nil {
		return s, err
	}
	s.cause, _ = row[0].(string)
	s.body, _ = row[1].([]byte)
	s.reply, _ = row[2].([]byte)
	if replied, _ := row[3].(int64); replied != 0 && s.reply == nil {
		s.reply = []byte{} // which the driver reads as nil
	}
	s.accepted, _ = row[4].(string)
	s.replayed, _ = row[5].(string)
	return s, nil
}

// stored returns a message as it is handed out.
func (m *standing) stored(s said) *idempotency.Stored {
	return &idempotency.Stored{
		Session: m.session, Body: s.body, OrderWait: milliseconds(m.orderWait), Keep: milliseconds(m.keep),
		Attempts: int(m.attempts), Reply: s.reply, Cause: s.cause,
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// forget makes the key of a message free.
func (w *writer) forget(id any, number int64) error {
	if _, err := w.sql.forget.exec(id); err != nil {
		return err
	}
	return w.vacate(number)
}

// vacate deletes a message whose claim is gone or recorded, and gives its place
// to the next one of its session.
func (w *writer) vacate(number int64) error {
	var row [2]driver.Value
	found, err := w.sql.vacate.row(row[:], number)
	if queued, _ := row[1].(int64); err != nil || !found || queued == 0 {
		return err
	}
	session, _ := row[0].(string)
	return w.advance(session)
}

// retire takes a message out of its session, dead or as a copy.
func (w *writer) retire(m *standing, state int64) error {
	m.state, m.until, m.due = state, 0, 0
	if err := w.touch(m); err != nil {
		return err
	}
	if _, err := w.sql.leave.exec(m.number); err != nil {
		return err
	}
	return w.advance(m.session)
}

// bury makes a message dead.
func (w *writer) bury(m *standing, cause string) error {
	if _, err := w.sql.cause.exec(cause, m.number, cause); err != nil {
		return err
	}
	return w.retire(m, dead)
}
