package sqlitestore

import (
	"context"
	"fmt"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/sqlitedb"
)

var _ idempotency.Inbox = (*Store)(nil)

// Accept implements idempotency.Inbox. A copy by the same token becomes the
// message itself: it is what that token wanted to store.
func (s *Store) Accept(ctx context.Context, key idempotency.Key, req idempotency.Request, a idempotency.Acceptance) (idempotency.Reservation, error) {
	o := s.op(func(w *writer, o *op) error { return w.accept(o, a) }, key, req.Fingerprint)
	defer s.free(o)
	o.req, o.sent = req, s.now()
	if err := s.do(ctx, o); err != nil {
		return idempotency.Reservation{}, fmt.Errorf("accept %q: %w", key, err)
	}
	return o.met, nil
}

func (w *writer) accept(o *op, a idempotency.Acceptance) error {
	held, err := w.enter(o, a)
	if err == nil && held != nil && held.state == copied && held.token == o.req.Token {
		if err = w.forget(o.idArg, held.number); err == nil {
			held, err = w.enter(o, a)
		}
	}
	if err != nil {
		return err
	}
	won := o.req.Won(o.key, idempotency.BackendSQLite, o.sent)
	if held == nil {
		won.Claim.Stored = &a.Stored
		o.met = won
		return nil
	}
	o.met = held.met(o.req)
	if held.number == 0 || held.state == copied {
		return nil
	}
	said, err := w.said(held.number)
	if err != nil || said.accepted != o.req.Token {
		return err
	}
	m, err := w.standing(o)
	if err != nil {
		return err
	}
	won.Claim.Stored = m.stored(said)
	o.met = won
	return nil
}

// enter stores a message, as the last of its session, or returns what has its
// key.
func (w *writer) enter(o *op, a idempotency.Acceptance) (*held, error) {
	now := w.now.UnixMilli()
	if a.Held { // the first Take looks at it: who that is says how often to look
		return w.add(o, a.Stored, standing{state: running, until: w.after(o.req.Lease), due: now})
	}
	m := standing{state: waiting, until: w.after(a.After), orderWait: a.OrderWait.Milliseconds(), deadline: w.after(a.Keep)}
	l, err := w.line(a.Session)
	if err != nil {
		return nil, err
	}
	m.due = l.due(&m, now)
	return w.add(o, a.Stored, m)
}

// Checkpoint implements idempotency.Inbox.
func (s *Store) Checkpoint(ctx context.Context, c idempotency.Claim, reply []byte) error {
	return s.hold(ctx, "keep the reply to", c, func(w *writer, m *standing) error {
		if _, err := w.sql.reply.exec(reply, m.number); err != nil {
			return err
		}
		return w.touch(m)
	})
}

// Retry implements idempotency.Inbox.
func (s *Store) Retry(ctx context.Context, c idempotency.Claim, r idempotency.Retry) error {
	return s.hold(ctx, "put back", c, func(w *writer, m *standing) error {
		if _, err := w.sql.cause.exec(r.Cause, m.number, r.Cause); err != nil {
			return err
		}
		m.state, m.until = waiting, w.after(r.After)
		m.due = m.until // when a look finds out if it is the first of its session
		if r.Uncounted {
			m.attempts--
		}
		if err := w.touch(m); err != nil {
			return err
		}
		return w.advance(m.session)
	})
}

// Bury implements idempotency.Inbox.
func (s *Store) Bury(ctx context.Context, c idempotency.Claim, cause string) error {
	return s.hold(ctx, "bury", c, func(w *writer, m *standing) error { return w.bury(m, cause) })
}

// hold changes a message that c's token runs. Repeated by the token that has
// made the last change of it, it changes nothing.
func (s *Store) hold(ctx context.Context, verb string, c idempotency.Claim, do func(*writer, *standing) error) error {
	return s.change(ctx, verb, func(w *writer, o *op) error {
		m, err := w.standing(o)
		switch {
		case err != nil:
			return err
		case m == nil, m.token != o.claim.Token, m.state == copied:
			o.answer = idempotency.ErrNotOwner
			return nil
		case m.state == running:
			return do(w, m)
		default:
			return nil
		}
	}, c, nil)
}

// Replay implements idempotency.Inbox.
func (s *Store) Replay(ctx context.Context, key idempotency.Key, id string) error {
	return s.kept(ctx, "replay", key, idempotency.ErrNotDead, func(w *writer, o *op, m *standing) error {
		said, err := w.said(m.number)
		if err != nil || said.replayed == id {
			return err
		}
		if m.state != dead {
			o.answer = idempotency.ErrNotDead
			return nil
		}
		return w.replay(m, id)
	})
}

// replay leaves a dead message waiting, as the last of its session.
func (w *writer) replay(m *standing, id string) error {
	l, err := w.line(m.session)
	if err != nil {
		return err
	}
	number, err := w.number()
	if err != nil {
		return err
	}
	if _, err := w.sql.rejoin.exec(number, id, m.number); err != nil {
		return err
	}
	m.number = number
	m.state, m.attempts, m.until = waiting, 0, w.now.UnixMilli()
	m.due = l.due(m, m.until)
	return w.touch(m)
}

// Drop implements idempotency.Inbox. It forgets a copy, too.
func (s *Store) Drop(ctx context.Context, key idempotency.Key, owners idempotency.Owners) error {
	return s.kept(ctx, "drop", key, idempotency.ErrHeld, func(w *writer, o *op, m *standing) error {
		if m.state == running && m.until > w.now.UnixMilli() && !w.ownerless(owners, m.token) {
			o.answer = idempotency.ErrHeld
			return nil
		}
		return w.forget(m.id, m.number)
	})
}

// kept does something to a message, whoever has it. The answer is no where the
// key is claimed or recorded without one.
func (s *Store) kept(ctx context.Context, verb string, key idempotency.Key, no error, do func(*writer, *op, *standing) error) error {
	return s.change(ctx, verb, func(w *writer, o *op) error {
		held, err := w.live(o)
		switch {
		case err != nil:
			return err
		case held == nil:
			o.answer = idempotency.ErrNotFound
			return nil
		case held.number == 0:
			o.answer = no
			return nil
		}
		m, err := w.standing(o)
		if err != nil {
			return err
		}
		return do(w, o, m)
	}, idempotency.Claim{Key: key}, nil)
}

// Count implements idempotency.Inbox.
func (s *Store) Count(ctx context.Context) (idempotency.Counts, error) {
	var n idempotency.Counts
	now := s.now().UnixMilli()
	err := s.db.Readers.QueryRowContext(ctx, `
		SELECT count(*), coalesce(sum(state = ? AND until <= ?), 0) FROM claims INDEXED BY claims_stored
		WHERE number IS NOT NULL AND state IN (?, ?, ?) AND deadline > ?`, waiting, now, running, waiting, dead, now).Scan(&n.Stored, &n.Due)
	if err != nil {
		return idempotency.Counts{}, fmt.Errorf("count the messages: %w", sqlitedb.Explain(s.db.Path, err))
	}
	return n, nil
}
