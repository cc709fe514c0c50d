package idempotency

import "context"

// Settler is a Store that takes back, after it was away, what happened in a
// weaker one meanwhile.
type Settler interface {
	Store

	// Settle writes, for c.TTL from now on, the record of a message that ran
	// under c while this store was away. It replaces a claim in flight, whoever
	// holds it, since the message has run; a record of another owner stays.
	// slipped reports that another owner had claimed or recorded the message
	// here: it may have run twice. Repeated by the same token it changes
	// nothing and reports nothing.
	Settle(ctx context.Context, c Claim, outcome []byte) (slipped bool, err error)
}

// Shadow is a Store that serves while a better one is away. It remembers, as
// durably as it remembers anything, which of its records have not been carried
// into the better one yet: every record is born uncarried.
type Shadow interface {
	Store

	// Uncarried returns records that have not been carried, of whatever
	// process. With all, those too that have been: the better store has lost
	// them. Claims in flight are never among them.
	Uncarried(ctx context.Context, all bool, req ListRequest) (Page, error)

	// Carried notes that the record of key by token is in the better store. It
	// does nothing where another token has the key.
	Carried(ctx context.Context, key Key, token string) error

	// Backlog returns how many records have not been carried.
	Backlog(ctx context.Context) (int, error)
}
