package idempotency

import (
	"container/list"
	"sync"
	"time"
)

// known is what this process itself remembers of its claims and records,
// wherever they are kept. It is asked while a weaker store serves, so that a
// replica knows its own messages across both edges of an outage; it tells a
// claim that somebody here runs from one that nobody does; and it brings back
// what a store has lost.
//
// Of records it keeps the newest, up to MaxRecords and maxKnownSize.
type known struct {
	now func() time.Time

	mu       sync.Mutex
	held     map[string]heldToken // that are being reserved, or held
	messages map[Key]*knownMessage
	records  list.List // of Key, oldest record first
	size     int       // bytes of outcomes
}

type heldToken struct {
	key   Key
	until time.Time // without a renewal; zero: while it is being reserved
}

type knownMessage struct {
	claim   Claim
	until   time.Time // end of the lease or of the record window
	outcome []byte
	record  *list.Element // nil while in flight
	home    int           // the tier that has the record
	slipped bool          // counted as a slipped duplicate
}

const maxKnownSize = 64 << 20 // bytes of outcomes

func newKnown(now func() time.Time) *known {
	return &known{now: now, held: make(map[string]heldToken), messages: make(map[Key]*knownMessage)}
}

// begin notes that a Reserve with token is under way: should it win, another
// delivery may meet the claim before the winner does.
func (k *known) begin(key Key, token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[token] = heldToken{key: key}
}

// won notes that c is held, unless this process holds the message already, by
// a claim in another store: then it returns what c's delivery meets instead.
// Two deliveries at the edge of an outage can each win a store of their own. In
// one store the later one has won because the earlier one has lost.
func (k *known) won(c Claim) (met Reservation, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if m := k.messages[c.Key]; m != nil && m.record == nil && m.claim.Backend != c.Backend && m.claim.Token != c.Token && now.Before(m.until) {
		delete(k.held, c.Token)
		return Reservation{State: InFlight, RetryAfter: m.until.Sub(now), FingerprintMatch: Request{Fingerprint: c.Fingerprint}.Matches(m.claim.Fingerprint)}, false
	}
	until := now.Add(c.Lease)
	k.held[c.Token] = heldToken{c.Key, until}
	k.drop(c.Key)
	k.messages[c.Key] = &knownMessage{claim: c, until: until}
	return met, true
}

func (k *known) renewed(c Claim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.messages[c.Key]
	if m == nil || m.claim.Token != c.Token || m.record != nil {
		return
	}
	m.until = k.now().Add(c.Lease)
	k.held[c.Token] = heldToken{c.Key, m.until}
}

// ended notes that nobody holds token any more.
func (k *known) ended(key Key, token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end(key, token)
}

// end is ended for callers that hold mu.
func (k *known) end(key Key, token string) {
	delete(k.held, token)
	if m := k.messages[key]; m != nil && m.claim.Token == token && m.record == nil {
		k.drop(key)
	}
}

// recorded notes a record. Its window counts from the claim's last
// confirmation, which is never too long: a store that found the key absent did
// the same.
func (k *known) recorded(c Claim, outcome []byte, home int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, c.Token)
	m := k.messages[c.Key]
	own := m != nil && m.claim.Token == c.Token
	if own && m.record != nil {
		return // repeated; the first one counts
	}
	slipped := own && m.slipped
	k.drop(c.Key)
	now := k.now()
	k.messages[c.Key] = &knownMessage{
		claim: c, until: now.Add(c.RemainingTTL(now)), outcome: outcome,
		record: k.records.PushBack(c.Key), home: home, slipped: slipped,
	}
	k.size += len(outcome)
	for k.records.Len() > MaxRecords || k.size > maxKnownSize {
		k.drop(k.records.Front().Value.(Key))
	}
}

// drop forgets a message. The caller holds mu.
func (k *known) drop(key Key) {
	m := k.messages[key]
	if m == nil {
		return
	}
	delete(k.messages, key)
	if m.record != nil {
		k.records.Remove(m.record)
		k.size -= len(m.outcome)
	}
}

// holds reports whether token is being reserved or held.
func (k *known) holds(token string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.held[token]
	return ok
}

// meet returns what a delivery of key meets, if this process knows it.
func (k *known) meet(key Key, req Request) (Reservation, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	m := k.messages[key]
	if m == nil || !now.Before(m.until) || m.claim.Token == req.Token {
		return Reservation{}, false
	}
	res := Reservation{State: InFlight, RetryAfter: m.until.Sub(now), FingerprintMatch: req.Matches(m.claim.Fingerprint)}
	if m.record != nil {
		res.State, res.RetryAfter, res.Outcome = Recorded, 0, m.outcome
	}
	return res, true
}

// sweep forgets what is over: the records at the old end, and tokens that were
// never settled, such as those of a claim that was made for a look.
func (k *known) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	for token, h := range k.held {
		if !h.until.IsZero() && !now.Before(h.until) {
			k.end(h.key, token)
		}
	}
	for el := k.records.Front(); el != nil; el = k.records.Front() {
		key := el.Value.(Key)
		if now.Before(k.messages[key].until) {
			return
		}
		k.drop(key)
	}
}

// carried notes that the record of c is in a tier now.
func (k *known) carried(c Claim, tier int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.messages[c.Key]; m != nil && m.claim.Token == c.Token && m.record != nil {
		m.home = tier
	}
}

// slips notes that the message of key, run under token, has slipped, and
// reports whether that is news.
func (k *known) slips(key Key, token string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.messages[key]
	if m == nil || m.claim.Token != token {
		return true
	}
	news := !m.slipped
	m.slipped = true
	return news
}

// knownRecord is a record, its claim with what is left of the window.
type knownRecord struct {
	claim   Claim
	outcome []byte
}

// all returns every claim in flight and every record that is where says.
func (k *known) all(where func(home int) bool) (claims []Claim, records []knownRecord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	for _, m := range k.messages {
		switch left := m.until.Sub(now); {
		case left <= 0:
		case m.record == nil:
			claims = append(claims, m.claim)
		case where(m.home):
			c := m.claim
			c.TTL, c.Confirmed = left, now
			records = append(records, knownRecord{c, m.outcome})
		}
	}
	return claims, records
}
