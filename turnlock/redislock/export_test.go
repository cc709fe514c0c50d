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
