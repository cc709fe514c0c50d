package platform

// Patience is the longest pause that a Send waits for on the spot, and
// MaxRetries how often it does.
const (
	Patience   = patience
	MaxRetries = maxRetries
)

// Lanes returns how many targets the outbox remembers.
func (o *Outbox) Lanes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.lanes)
}
