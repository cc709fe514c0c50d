package gateway

import (
	"context"
	"sync"
)

// intake counts the deliveries under way and refuses new ones once closed.
type intake struct {
	mu      sync.Mutex
	inside  int
	closing chan struct{} // closed by close
	idle    chan struct{} // closed when nothing is left inside after close
}

func newIntake() *intake {
	return &intake{closing: make(chan struct{}), idle: make(chan struct{})}
}

// enter reports whether a delivery may go on; leave must follow if so.
func (in *intake) enter() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed() {
		return false
	}
	in.inside++
	return true
}

func (in *intake) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.inside--
	if in.inside == 0 && in.closed() {
		close(in.idle)
	}
}

// close refuses new deliveries from now on. It is idempotent.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed() {
		return
	}
	close(in.closing)
	if in.inside == 0 {
		close(in.idle)
	}
}

// closed is for callers that hold mu.
func (in *intake) closed() bool {
	select {
	case <-in.closing:
		return true
	default:
		return false
	}
}

// wait returns nil when the last delivery has left, or ctx's cause.
func (in *intake) wait(ctx context.Context) error {
	select {
	case <-in.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
