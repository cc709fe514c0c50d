package turnlock

import (
	"slices"
	"sync"
)

// Queue lets one at a time through for each session, first come first served,
// inside one process. It is safe for concurrent use; the zero Queue is empty.
type Queue struct {
	mu     sync.Mutex
	places map[string][]*Place // of a session: the one whose turn it is, then those who wait
}

// Place is somebody's place in the queue of a session.
type Place struct {
	queue   *Queue
	session string
	turn    chan struct{}
}

// Join takes the last place.
func (q *Queue) Join(session string) *Place {
	p := &Place{queue: q, session: session, turn: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places == nil {
		q.places = make(map[string][]*Place)
	}
	q.places[session] = append(q.places[session], p)
	if len(q.places[session]) == 1 {
		close(p.turn)
	}
	return p
}

// Turn is closed when the turn has come, which lasts until Leave.
func (p *Place) Turn() <-chan struct{} { return p.turn }

// IsTurn reports whether the turn has come.
func (p *Place) IsTurn() bool {
	select {
	case <-p.turn:
		return true
	default:
		return false
	}
}

// Leave gives up the place and, if it was this one's turn, lets the next one
// through. It is idempotent.
func (p *Place) Leave() {
	q := p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	places := q.places[p.session]
	i := slices.Index(places, p)
	if i < 0 {
		return
	}
	places = slices.Delete(places, i, i+1)
	if len(places) == 0 {
		delete(q.places, p.session)
		return
	}
	q.places[p.session] = places
	if i == 0 {
		close(places[0].turn)
	}
}
