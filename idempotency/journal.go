package idempotency

import "context"

// Journal is an Inbox behind a better one. Beside the messages of its own it
// keeps copies of those that the better store has, in case that loses them. A
// copy is met by deliveries like a waiting message, and never taken, counted or
// buried; it does not keep its session waiting.
type Journal interface {
	Inbox

	// Copy keeps a copy of a message that the better store has or is about to
	// get. It does nothing where the key is claimed, stored or recorded.
	Copy(ctx context.Context, key Key, req Request, s Stored) error

	// Moved makes a copy of the message that token waits with, runs or has
	// buried here: the better store has it now. It does nothing where another
	// token has the key.
	Moved(ctx context.Context, key Key, token string) error

	// Discard forgets a copy, if the key holds one.
	Discard(ctx context.Context, key Key) error

	// Messages returns the messages of its own that wait or are dead, of
	// whatever process, or else the copies, whose State is Waiting; both in the
	// order in which they were accepted.
	Messages(ctx context.Context, copies bool, req ListRequest) (Page, error)
}
