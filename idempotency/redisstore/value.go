package redisstore

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// The value of a claim's key is
//
//	<state><token>|<fingerprint, 32 hex digits>|<outcome>
//
// with state C while the claim is in flight (and no outcome) and R once it is
// recorded. While an Inbox keeps the message it is W while that waits, S while it
// runs and D once it is dead, all without an outcome. Such a key lives as long as
// the message is kept; when its lease ends is a field of the message. Whose it is shows in how it begins, up to and with the first bar,
// so that no script ever has to take a value apart.
const (
	claimed  = 'C'
	recorded = 'R'
	waiting  = 'W'
	running  = 'S'
	dead     = 'D'
	bar      = '|'
)

// tail is the length of the fingerprint with the bar behind it.
const tail = 2*len(message.Fingerprint{}) + 1

// head returns how the value begins in state for token.
func head(state byte, token string) string { return string(state) + token + string(bar) }

// appendValue is head and the fingerprint behind it: a whole value but for the
// outcome.
func appendValue(buf []byte, state byte, token string, print message.Fingerprint) []byte {
	buf = append(buf, state)
	buf = append(buf, token...)
	buf = append(buf, bar)
	buf = hex.AppendEncode(buf, print[:])
	return append(buf, bar)
}

// newValue returns the value of a claim by req.
func newValue(req idempotency.Request) string {
	return string(appendValue(nil, claimed, req.Token, req.Fingerprint))
}

// value is a claim's value taken apart.
type value struct {
	state       idempotency.State
	stored      bool // an Inbox keeps the message
	token       string
	fingerprint message.Fingerprint
	outcome     []byte
}

// parse reads a value that some replica wrote.
func parse(text string) (value, error) {
	var v value
	token, rest, ok := strings.Cut(text, string(bar))
	if !ok || token == "" || len(rest) < tail || rest[tail-1] != bar {
		return v, idempotency.ErrForeign
	}
	switch token[0] {
	case claimed:
		v.state = idempotency.InFlight
	case waiting:
		v.state, v.stored = idempotency.Waiting, true
	case running:
		v.state, v.stored = idempotency.InFlight, true
	case dead:
		v.state, v.stored = idempotency.Dead, true
	case recorded:
		v.state = idempotency.Recorded
		v.outcome = []byte(rest[tail:])
	default:
		return v, fmt.Errorf("%w: it is in the unknown state %q", idempotency.ErrForeign, token[0])
	}
	v.token = token[1:]
	if _, err := hex.Decode(v.fingerprint[:], []byte(rest[:tail-1])); err != nil {
		return v, fmt.Errorf("%w: its fingerprint cannot be read: %w", idempotency.ErrForeign, err)
	}
	return v, nil
}

// met is what a delivery meets that has not won the key. left is for what is in
// flight.
func (v value) met(req idempotency.Request, left time.Duration) idempotency.Reservation {
	res := idempotency.Reservation{State: idempotency.Recorded, Outcome: v.outcome, FingerprintMatch: req.Matches(v.fingerprint)}
	if v.state == idempotency.InFlight || v.state == idempotency.Waiting {
		res.State, res.Stored, res.RetryAfter = idempotency.InFlight, v.stored, max(left, time.Millisecond)
	}
	return res
}
