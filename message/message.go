// Package message is the vocabulary that every other package speaks: what
// arrived (Message), what identifies it (Key), how its route wants it treated
// (Policy), who does the work (Runner) and what became of it (Outcome,
// Receipt). It depends on nothing but the standard library.
package message

import (
	"context"
	"time"
)

// Key identifies one message. Two deliveries with equal keys are the same
// message, whatever else differs.
type Key struct {
	Platform string // the service that sent it: "hook", "github", ...
	Account  string // our account that received it, never the sender
	Channel  string // the conversation, room or path inside the account
	ID       string // the sender's id of the message inside the channel
}

// IsZero reports whether the message has no identity. Such a message runs
// without deduplication: it is never matched with another one.
func (k Key) IsZero() bool { return k.ID == "" }

// Fingerprint is a digest of a message's content. It tells a redelivery from
// another message under a reused key. The zero Fingerprint is never compared.
type Fingerprint [16]byte

// Message is one thing said.
type Message struct {
	Key         Key
	Fingerprint Fingerprint
	CallerKey   bool   // Key.ID was chosen by the caller: other content under it is the caller's mistake
	Session     string // conversation whose turns run one at a time; empty: independent of all others
	Sender      string // who said it, as the platform names them; empty where the ingress knows nobody
	Thread      string // inside the channel; empty: none
	Text        string
	Prompt      string // Text for a language model, with what strangers wrote marked as data; empty: Text itself
	Body        []byte // the request body as received
	ContentType string // of Body
}

// OnDuplicate is the answer to a message whose first delivery still runs.
type OnDuplicate string

// The answers to a duplicate in flight.
const (
	Conflict OnDuplicate = "conflict" // refuse at once; the sender retries
	Wait     OnDuplicate = "wait"     // wait for the first delivery, then answer as it did
	Ack      OnDuplicate = "ack"      // acknowledge: the message is stored, and will be run
)

// Policy is how a route wants its messages claimed and run.
type Policy struct {
	Route       string        // stable name for logs, such as "hook:github"
	Runner      Runner        // does the work
	Lease       time.Duration // how long an unrenewed claim stays exclusive
	TTL         time.Duration // the record window
	FromFirst   bool          // TTL counts from the first delivery instead of from the end of its run
	OnDuplicate OnDuplicate
	WaitTimeout time.Duration // bound of Wait

	OnUnavailable string // "open" or "closed": what happens while the claim store is away; empty: the gateway's default

	Accept  *Accept  // store the message, acknowledge it and run it behind; nil: run it, then answer
	Deliver *Deliver // where the reply goes; nil: nowhere but into the answer
}

// Accept is how a route wants the messages run that are acknowledged before.
type Accept struct {
	MaxAttempts int           // runs that may fail before the message is dead
	OrderWait   time.Duration // for an earlier message of the session that waits for a retry
	Keep        time.Duration // how long a message that nobody touches, such as a dead one, is kept
	BuryUnknown bool          // a run whose owner died makes the message dead, instead of running it again
}

// Deliver says where a reply goes.
type Deliver struct {
	Channel     string // by its name in the configuration
	Target      string // as the channel's platform names it
	DropUnknown bool   // a reply that may have been sent is not sent again
}

// Turn is what a Runner is given: the message, and what a backend needs to
// protect itself against a repeated or outdated run.
type Turn struct {
	Message Message
	Key     string // the encoded claim key; empty for a message without identity
	Fence   uint64 // rises with every turn of the session; 0 without a session
	Attempt int    // counts from 1; more than one only for a message that was accepted

	// Window is how long Key means this message, and no other one after it: the
	// record window.
	Window time.Duration
	// Confirm is called before something is done that cannot be undone. An error
	// means that the turn has lost its claim or its session's lock, and must not
	// go on. Nil: there is nothing to lose.
	Confirm func(ctx context.Context) error
}

// Confirmed calls Confirm, if there is one.
func (t Turn) Confirmed(ctx context.Context) error {
	if t.Confirm == nil {
		return nil
	}
	return t.Confirm(ctx)
}

// Runner does the work of one message: an agent, or the target of a forward.
//
// Run must return soon after ctx ends. An error means that the message may be
// run again; only an Outcome is final. Implementations are safe for
// concurrent use.
type Runner interface {
	Run(ctx context.Context, turn Turn) (Outcome, error)
}

// State says what a delivery met.
type State int

// The states of a Receipt.
const (
	None      State = iota // the message has no identity, or was never claimed
	New                    // this delivery won the claim and ran
	InFlight               // another delivery of the message is running
	Processed              // the message is finished; Outcome is the first answer
)

// String returns the value of the X-Idempotency-Status header.
func (s State) String() string {
	switch s {
	case New:
		return "new"
	case InFlight:
		return "in_flight"
	case Processed:
		return "processed"
	}
	return "none"
}

// Receipt is what became of one delivery.
type Receipt struct {
	Key        string // the encoded claim key; empty for a message without identity
	State      State
	Outcome    Outcome       // of a run, for None, New and Processed
	RetryAfter time.Duration // for InFlight: when a retry makes sense
	Mismatch   bool          // for InFlight and Processed: the claim was made for other content
	Accepted   bool          // for None and New: the message is stored and runs later; there is no Outcome yet
	Stored     bool          // for InFlight: the message is stored, and we see to it that it runs
}
