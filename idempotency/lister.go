package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/message"
)

// ErrNotFound is returned by Get for a key that is neither claimed nor recorded.
var ErrNotFound = errors.New("idempotency: no such message")

// Lister looks at claims and records without touching them. Like a Store it is
// safe for concurrent use, and every other error says nothing about the
// message. What it returns was true at some moment during the call.
type Lister interface {
	// Get returns one message. ErrNotFound if the key is free, ErrForeign if it
	// holds something that no store wrote.
	Get(ctx context.Context, key Key) (Entry, error)

	// List returns the messages behind req.After, in an order of the store's
	// own that later pages continue. A message that was there before the first
	// page and after the last one is on one of them, perhaps on two; what no
	// store wrote is passed over.
	List(ctx context.Context, req ListRequest) (Page, error)
}

// ListRequest asks for a part of a list.
type ListRequest struct {
	State State  // 0: all
	After string // the Next of the page before; empty: from the start
	Limit int    // at least 1; a page may hold a few more, or fewer although more follow
}

// Page is a part of a list.
type Page struct {
	Entries []Entry
	Next    string // for the page after this one; empty: this is the last
}

// Entry is one message as a store knows it.
type Entry struct {
	Key         Key
	State       State  // InFlight, Recorded, Waiting or Dead
	Token       string // of the owner, or who stored it; its replica id is what stands before the dot
	Fingerprint message.Fingerprint
	Left        time.Duration // of the lease, of the record window, until a waiting message is due, or a dead one is forgotten
	Outcome     []byte        // for Recorded: what Record was given

	// Where an Inbox keeps the message.
	Stored     *Stored
	Lease, TTL time.Duration
}
