package redishistory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/agent"
)

// The fields of a session's hash, as the scripts write them. Its turns are
// numbered from first up to, without, next; at:<n> names the key of a turn's
// message, and turn:<key> has its rows.
const (
	createdField, usedField = "created", "used" // in µs
	firstField, nextField   = "first", "next"
	atPrefix, turnPrefix    = "at:", "turn:"
)

// encode returns the rows of a turn as they are kept, both in one field, so
// that there is never one without the other.
func encode(user, assistant agent.Row) ([]byte, error) {
	if err := agent.CheckTurn(user, assistant); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // it makes six bytes of one
	if err := enc.Encode([2]agent.Row{user.Bounded(), assistant.Bounded()}); err != nil {
		return nil, errors.New("a row cannot be written as JSON") // the encoder's own words may quote it
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// unreadable is an error about fields, which it names, not what they hold.
func unreadable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", agent.ErrUnreadable, fmt.Errorf(format, args...))
}

// parse reads a whole session.
func parse(session string, fields map[string]string) (agent.Session, []agent.Row, error) {
	s, first, err := parseSession(session, func(name string) string { return fields[name] })
	if err != nil {
		return s, nil, err
	}
	if s.Turns > len(fields) { // and a foreign number does not make this long
		return s, nil, unreadable("the hash of the session has fewer turns than it counts")
	}
	rows := make([]agent.Row, 0, 2*s.Turns)
	for n := first; n < first+int64(s.Turns); n++ {
		key := fields[atPrefix+strconv.FormatInt(n, 10)]
		var turn [2]agent.Row
		err := json.Unmarshal([]byte(fields[turnPrefix+key]), &turn)
		if err != nil || agent.CheckTurn(turn[0], turn[1]) != nil || turn[0].Key != key {
			return s, nil, unreadable("turn %d in the hash of the session is none", n) // the decoder's own words quote it
		}
		rows = append(rows, turn[:]...)
	}
	return s, rows, nil
}

// parseSession reads what is known of a session without its rows, and the
// number of its first turn.
func parseSession(session string, field func(name string) string) (s agent.Session, first int64, err error) {
	var numbers [4]int64
	for i, name := range []string{createdField, usedField, firstField, nextField} {
		if numbers[i], err = strconv.ParseInt(field(name), 10, 64); err != nil || numbers[i] < 0 {
			return s, 0, unreadable("the field %q in the hash of the session is no number", name)
		}
	}
	first, next := numbers[2], numbers[3]
	if next < first {
		return s, 0, unreadable("the hash of the session counts fewer turns than none")
	}
	created, used := time.UnixMicro(numbers[0]).UTC(), time.UnixMicro(numbers[1]).UTC()
	return agent.Session{ID: session, Turns: int(next - first), Created: created, LastUsed: used}, first, nil
}
