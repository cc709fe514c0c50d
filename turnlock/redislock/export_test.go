package redislock

// Waiting returns how many waiters the Locker remembers.
func (l *Locker) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, waiters := range l.waiters {
		n += len(waiters)
	}
	return n
}

// Abandoned returns how many tokens are to be taken back.
func (l *Locker) Abandoned() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.abandoned)
}

// Wake has the first waiter of a session ask.
func (l *Locker) Wake(session string) { l.wake(session) }
