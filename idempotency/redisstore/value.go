package redisstore

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// The value of a claim's key is
//
//	<state><token>|<fingerprint, 32 hex digits>|<outcome>
//
// with state C while the claim is in flight (and no outcome) and R once it is
// recorded. Whose it is shows in how it begins, up to and with the first bar,
// so that no script ever has to take a value apart.
const (
	claimed  = 'C'
	recorded = 'R'
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
