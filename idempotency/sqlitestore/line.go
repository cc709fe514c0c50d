package sqlitestore

import "database/sql/driver"

// line is the beginning of a session: the first two of its messages that wait
// or run. Only these can have a time at which Take looks at them, so that
// however many stand behind them cost nothing. The first has it when it may be
// taken; the second when it has waited for too long for a first one that waits
// for a retry. A running one has it of its own, see look.
type line struct{ first, second *standing }

// line reads the beginning of a session. One whose time is over is not in it.
func (w *writer) line(session string) (l line, err error) {
	if session == "" {
		return l, nil
	}
	var row [15]driver.Value
	err = w.sql.line.each(row[:], func() bool {
		if l.first == nil {
			l.first = readStanding(row)
		} else {
			l.second = readStanding(row)
		}
		return true
	}, session, w.nowArg)
	return l, err
}

// leads reports whether m is the first of its session, or of none.
func (l line) leads(m *standing) bool { return l.first == nil || l.first.number == m.number }

// mayBeOvertaken reports whether the first one waits for a retry.
func (l line) mayBeOvertaken() bool {
	return l.first != nil && l.first.state == waiting && l.first.attempts > 0
}

// overtaken reports whether the first one has kept the second waiting for too
// long with its retries.
func (l line) overtaken(now int64) bool {
	return l.mayBeOvertaken() && l.second != nil && l.second.state == waiting && l.second.until+l.second.orderWait <= now
}

// due returns when Take has to look at m, which waits in the line or is about
// to stand at its end; 0: not by itself.
func (l line) due(m *standing, now int64) int64 {
	switch {
	case l.leads(m):
		return min(max(m.until, now), m.deadline)
	case l.mayBeOvertaken() && (l.second == nil || l.second.number == m.number):
		return m.until + m.orderWait
	default:
		return 0
	}
}

// advance gives the first two of a session the times at which Take looks at
// them, after something has changed before or with them. A time that is there
// is left if it comes first: looking is never wrong.
func (w *writer) advance(session string) error {
	l, err := w.line(session)
	if err != nil {
		return err
	}
	for _, m := range []*standing{l.first, l.second} {
		if m == nil || m.state != waiting {
			continue
		}
		due := l.due(m, w.now.UnixMilli())
		if due == 0 || m.due != 0 && m.due <= due {
			continue
		}
		m.due = due
		if err := w.put(m); err != nil {
			return err
		}
	}
	return nil
}
