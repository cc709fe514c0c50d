package sqlitestore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/idempotency"
)

// maxLooks bounds what one Take does while the writer's other callers wait.
// What is left over is looked at by the next one.
const maxLooks = 256

// Take implements idempotency.Inbox. Without a token there is room for nothing,
// and it looks at nothing.
func (s *Store) Take(ctx context.Context, req idempotency.TakeRequest) (idempotency.Taking, error) {
	t := &taker{req: req, sent: s.now()}
	o := s.op(t.take, "", [16]byte{})
	defer s.free(o)
	if err := s.do(ctx, o); err != nil {
		return idempotency.Taking{}, fmt.Errorf("take messages: %w", err)
	}
	return t.taking, nil
}

// taker is a Take on its way through the writer.
type taker struct {
	req    idempotency.TakeRequest
	sent   time.Time
	taking idempotency.Taking
}

// take looks at messages that are due until there is no room or none of them is
// left. Each look leaves the message without a time or with a later one.
func (t *taker) take(w *writer, _ *op) error {
	for range maxLooks {
		if len(t.taking.Taken) == len(t.req.Tokens) {
			return nil
		}
		m, err := one(&w.sql.due, w.nowArg)
		if err != nil || m == nil {
			return err
		}
		if err := t.look(w, m); err != nil {
			return err
		}
	}
	return nil
}

// look takes m, or finds out when to look at it again.
func (t *taker) look(w *writer, m *standing) error {
	now := w.now.UnixMilli()
	if m.deadline <= now {
		return w.forget(m.id, m.number)
	}
	l, err := w.line(m.session)
	switch {
	case err != nil:
		return err
	case l.overtaken(now):
		t.taking.Buried = append(t.taking.Buried, idempotency.Key(l.first.key))
		return w.bury(l.first, idempotency.CauseOvertaken)
	case l.leads(m) && (m.until <= now || m.state == running && w.ownerless(t.req.Owners, m.token)):
		return t.claim(w, m)
	case m.state == waiting:
		m.due = l.due(m, now)
	default:
		m.due = t.next(w, m)
	}
	return w.put(m)
}

// next returns when to look again at a running message: when its lease is over,
// and before that in case its owner dies.
func (t *taker) next(w *writer, m *standing) int64 {
	next := w.after(max(t.req.Look, time.Millisecond))
	if m.until > w.now.UnixMilli() {
		next = min(next, m.until)
	}
	return next
}

// claim gives m to the next token.
func (t *taker) claim(w *writer, m *standing) error {
	s, err := w.said(m.number)
	if err != nil {
		return err
	}
	takenOver := m.state == running
	m.state, m.token, m.until = running, t.req.Tokens[len(t.taking.Taken)], w.now.UnixMilli()+m.lease
	m.attempts++
	m.due = t.next(w, m)
	t.taking.Taken = append(t.taking.Taken, idempotency.Taken{TakenOver: takenOver, Claim: idempotency.Claim{
		Key: idempotency.Key(m.key), Token: m.token, Fingerprint: m.print, Lease: milliseconds(m.lease), TTL: milliseconds(m.ttl),
		Confirmed: t.sent, Backend: idempotency.BackendSQLite, Stored: m.stored(s),
	}})
	return w.touch(m)
}
