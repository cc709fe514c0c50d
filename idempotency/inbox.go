package idempotency

import (
	"context"
	"errors"
	"time"
)

// ErrNotDead is returned by Replay for a message that is not dead: it waits,
// runs, or is recorded and has no body any more.
var ErrNotDead = errors.New("idempotency: message is not dead")

// ErrHeld is returned by Drop for a message that a living owner runs.
var ErrHeld = errors.New("idempotency: message is held by a living owner")

// Inbox is a Store that also keeps the messages themselves, of those that are
// acknowledged before they run. Accept leaves a message waiting, with a claim
// that nobody holds; Take claims it, for whoever has room to run it. From then
// on it is an ordinary claim: Renew, Record and Release work on it, the last two
// forgetting the message with it. Its lease does not end by itself: when it is
// over, or the owner dead, the next Take has the message.
//
// The messages of a session are taken one at a time, in the order in which they
// were accepted: the next one when the one before is recorded, dead, released or
// dropped. A message that waits longer than its OrderWait behind one that waits
// for a retry ends that: the earlier one is buried. One that runs, or has not
// been tried yet, is never overtaken.
//
// Everything survives what the store's claims survive, until Keep has passed
// since the message was last touched.
type Inbox interface {
	Store

	// Accept stores a message under key unless the key is claimed, recorded or
	// another message has it. State Won: it is stored, by this call or by an
	// earlier one with the same token; nobody holds the claim unless m.Held. A
	// message that waits is met InFlight, and a dead one Recorded without an
	// outcome, by Reserve too. An error leaves it open whether the message was
	// stored.
	Accept(ctx context.Context, key Key, req Request, m Acceptance) (Reservation, error)

	// Take claims messages that are due, the longest due first, at most one for
	// each token. A call that fails may have claimed some: they are its tokens',
	// which nobody holds.
	Take(ctx context.Context, req TakeRequest) (Taking, error)

	// Checkpoint keeps reply with the message: whoever takes it later gets it.
	Checkpoint(ctx context.Context, c Claim, reply []byte) error

	// Retry gives the claim back and leaves the message waiting.
	Retry(ctx context.Context, c Claim, r Retry) error

	// Bury makes the message dead: it is kept, and not taken any more.
	Bury(ctx context.Context, c Claim, cause string) error

	// Replay leaves a dead message waiting, due at once, as the last of its
	// session and with no attempt counted; a reply that was kept is. id names
	// the wish: repeated with the id of the message's last replay it succeeds
	// and changes nothing. ErrNotDead, ErrNotFound.
	Replay(ctx context.Context, key Key, id string) error

	// Drop forgets a message that waits or is dead, or whose owner is, as owners
	// tells: its key is free. ErrHeld where somebody runs it, or it is recorded;
	// ErrNotFound.
	Drop(ctx context.Context, key Key, owners Owners) error

	// Count returns how many messages there are.
	Count(ctx context.Context) (Counts, error)
}

// Stored is a message as an Inbox keeps it.
type Stored struct {
	Session   string        // whose messages are taken in order; empty: taken independently of all others
	Body      []byte        // opaque
	OrderWait time.Duration // how long it waits for an earlier one of its session that waits for a retry
	Keep      time.Duration // how long it is kept, untouched

	Attempts int    // how often it was taken; Retry can take one back
	Reply    []byte // of the last Checkpoint; nil: none
	Cause    string // of the last Retry or Bury
}

// Acceptance is a message to store. One that comes out of another store brings
// its Attempts, Reply and Cause with it.
type Acceptance struct {
	Stored
	After time.Duration // until it is due
	Held  bool          // req.Token runs it already, and holds the claim
}

// TakeRequest asks for messages to run.
type TakeRequest struct {
	Tokens []string // new, see NewToken; one for each message that there is room for
	// Look is how long a message that is running, or behind another one, may go
	// unlooked at: in which a dead owner is found at the latest.
	Look   time.Duration
	Owners Owners // whose claims may be taken over before their lease ends; nil: nobody's
}

// Taking is what Take has claimed, and what became dead on the way.
type Taking struct {
	Taken  []Taken
	Buried []Key // gave way to a later message of their session, see OrderWait
}

// Taken is a message to run.
type Taken struct {
	Claim          // Claim.Stored is the message
	TakenOver bool // from an owner that may have run it: what became of that is unknown
}

// Retry says when and why a message is to be taken again.
type Retry struct {
	After     time.Duration // 0: at once
	Cause     string
	Uncounted bool // the attempt was none
}

// Counts are the messages of an Inbox.
type Counts struct {
	Stored int // waiting, running and dead
	Due    int // whose time has come, and that nobody runs
}

// The Cause of a message that was buried by its session's next one.
const CauseOvertaken = "order_wait"
