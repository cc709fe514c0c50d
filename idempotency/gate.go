package idempotency

import (
	"context"
	"sync"
)

// gate lets any number of claims pass and can be shut for a moment. Unlike a
// sync.RWMutex it can be waited for no longer than a context allows, on
// either side.
type gate struct {
	mu     sync.Mutex
	inside int
	opened chan struct{} // while shut: closed when the gate opens again
	empty  chan struct{} // while shut: closed when nobody is inside any more
}

// enter waits until the gate is open; leave must follow unless ctx ended.
func (g *gate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		if g.opened == nil {
			g.inside++
			g.mu.Unlock()
			return nil
		}
		opened := g.opened
		g.mu.Unlock()
		select {
		case <-opened:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// shut holds newcomers off and waits until those inside have left; open must
// follow. If ctx ends first the gate is open again. One caller at a time.
func (g *gate) shut(ctx context.Context) error {
	g.mu.Lock()
	g.opened = make(chan struct{})
	if g.inside == 0 {
		g.mu.Unlock()
		return nil
	}
	empty := make(chan struct{})
	g.empty = empty
	g.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		g.open()
		return ctx.Err()
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.opened)
	g.opened, g.empty = nil, nil
}
