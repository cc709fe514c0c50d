// Package idempotency decides which delivery of a message may run.
//
// A delivery reserves the message's key and holds a claim on it while it
// runs; when the run ends the claim is recorded, and every later delivery
// inside the record window is a duplicate. A failed run releases its claim.
//
// The package promises at most one claim per key at a time, over every
// process that shares a store, as long as that store keeps its writes. It does
// not promise that a run whose lease ended has stopped: the owner learns that
// from ErrNotOwner and must drop its result.
package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/message"
)

// ErrNotOwner is returned by Renew, Record and Release when the claim is no
// longer held by its token: the lease ended, or another owner has the key.
// Nothing was changed.
var ErrNotOwner = errors.New("idempotency: claim not held by this owner")

// ErrUnavailable is returned by Reserve when no store may serve the claim.
var ErrUnavailable = errors.New("idempotency: store unavailable")

// ErrEmptied is returned by Ping, once for each loss, by a store that works but
// no longer has what it held at the Ping before, or in an earlier life.
var ErrEmptied = errors.New("idempotency: the store has lost its claims and records")

// ErrReplaced is returned by Ping when the store's file is no longer the one
// that was opened: somebody has moved, deleted or replaced it. The store has to
// be opened anew.
var ErrReplaced = errors.New("idempotency: the store's file has been replaced")

// ErrForeign is returned when the key holds something that no store of this
// kind wrote. It concerns that key alone; the store works.
var ErrForeign = errors.New("idempotency: key holds something that is no claim")

// State is what a reservation met.
type State int

// The states of a Reservation. Each is an answer of the store; a store that
// could not tell returns an error and no state.
const (
	Won      State = iota + 1 // the caller holds the claim
	InFlight                  // another owner holds it
	Recorded                  // the message is finished

	// Of an Entry alone, and only in an Inbox.
	Waiting // stored, and held by nobody
	Dead    // stored, and not run any more
)

// Store keeps claims and records. Every method is safe for concurrent use.
//
// Three outcomes, never mixed: yes (nil), no (a State, or ErrNotOwner), and
// any other error, which says nothing about the claim. After such an error
// Renew, Record and Release may have been carried out; repeating the call with
// the same claim is safe and succeeds if it had been. A ctx that is already
// done changes nothing and returns its error. A call ends within seconds also
// under a ctx that never does.
type Store interface {
	// Reserve takes the claim on key unless it is held or recorded. A held
	// claim whose lease is over is taken over, and one whose owner is dead as
	// req.Owners allows. Reserve with the token that already holds the claim
	// wins again: that is how a lost answer is told from a duplicate. An error
	// leaves it open whether the claim was taken.
	Reserve(ctx context.Context, key Key, req Request) (Reservation, error)

	// Renew makes the lease start anew. After it returns nil the caller moves
	// Claim.Confirmed to the time at which it called.
	Renew(ctx context.Context, c Claim) error

	// Record finishes the claim for c.TTL with outcome, an opaque value that
	// duplicates get back. If the key is absent (the lease is over and nobody
	// came) it is written with what is left of the TTL since c.Confirmed, and
	// not at all when nothing is left. ErrNotOwner if somebody else holds or
	// has recorded the key.
	Record(ctx context.Context, c Claim, outcome []byte) error

	// Release gives the claim back, so that the next delivery runs. Releasing
	// an absent key succeeds; a recorded key is never released (ErrNotOwner).
	Release(ctx context.Context, c Claim) error

	// Ping proves by a real write and read that the store works.
	Ping(ctx context.Context) error

	// Close releases the store's resources. No call may follow it.
	Close() error
}

// Request is what Reserve needs to know.
type Request struct {
	Token       string              // new for every claim attempt, see NewToken; kept over retries of one attempt
	Lease       time.Duration       // at least a millisecond
	TTL         time.Duration       // carried in the claim for Record; at least a millisecond
	Fingerprint message.Fingerprint // of the content; zero is never compared

	// OnUnavailable is Open or Closed; empty: as the Failover is configured.
	OnUnavailable string
	// Owners tells whose claims may be taken over before their lease ends; nil:
	// nobody's.
	Owners Owners
}

// Owners is what a process knows of the owners of claims. Its methods are
// called while a store works on the claim and must return at once.
type Owners interface {
	// Abandoned reports whether token is one of this process's own that no
	// run holds and no Reserve is under way with.
	Abandoned(token string) bool
	// MayTakeOver reports whether the claims of dead replicas may be taken
	// over now. Who is dead the store finds out itself, in the same step in
	// which it takes the claim.
	MayTakeOver() bool
}

// Reservation is the answer of Reserve.
type Reservation struct {
	State            State
	Claim            Claim         // for Won
	TakenOver        bool          // for Won: from an owner whose lease was not over
	RetryAfter       time.Duration // for InFlight: what is left of the holder's lease
	Outcome          []byte        // for Recorded: what Record was given
	FingerprintMatch bool          // for InFlight and Recorded: same content, or one side has no fingerprint
	Stored           bool          // for InFlight: an Inbox has the message, and it will be run
}

// Claim is the exclusive right to run one message. It is a value; holding it
// keeps nothing alive.
type Claim struct {
	Key         Key
	Token       string
	Fingerprint message.Fingerprint
	Lease       time.Duration
	TTL         time.Duration
	Confirmed   time.Time // when the last Reserve or Renew that succeeded was sent
	Backend     string    // the store that holds the claim; it is settled there
	Stored      *Stored   // the message, where an Inbox keeps it; not to be changed

	OnUnavailable string // as in the Request
}

// Abandoned reports whether a claim that token holds may be taken over because
// it is the caller's own and nobody runs it.
func (req Request) Abandoned(token string) bool {
	return req.Owners != nil && req.Owners.Abandoned(token)
}

// MayTakeOver reports whether the claim of a dead replica may be taken over.
func (req Request) MayTakeOver() bool { return req.Owners != nil && req.Owners.MayTakeOver() }

// The names of the stores, as in gateway.yaml and on /health.
const (
	BackendMemory = "memory"
	BackendSQLite = "sqlite"
	BackendRedis  = "redis"
)

// RemainingTTL returns how much of the record window is left at now, counted
// from the last confirmation. It is negative when the window is over.
func (c Claim) RemainingTTL(now time.Time) time.Duration {
	return c.TTL - elapsed(c.Confirmed, now)
}

// elapsed returns the time from then to now: the larger of what the monotonic
// and the wall clock say, since the first stands still in suspend.
func elapsed(then, now time.Time) time.Duration {
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}

// Won returns the reservation of the caller that took key at now with req.
func (req Request) Won(key Key, backend string, now time.Time) Reservation {
	return Reservation{State: Won, FingerprintMatch: true, Claim: Claim{
		Key: key, Token: req.Token, Fingerprint: req.Fingerprint,
		Lease: req.Lease, TTL: req.TTL, Confirmed: now, Backend: backend, OnUnavailable: req.OnUnavailable,
	}}
}

// Matches reports whether held, the fingerprint stored with a claim, stands
// for the same content as the request.
func (req Request) Matches(held message.Fingerprint) bool {
	var none message.Fingerprint
	return held == req.Fingerprint || held == none || req.Fingerprint == none
}
