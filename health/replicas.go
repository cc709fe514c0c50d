package health

import "time"

// Replica is what one gateway process tells the others about itself: its
// heartbeat, and its entry on /health.
type Replica struct {
	ID        string            `json:"replica"`
	Version   string            `json:"version"`
	Started   time.Time         `json:"started"`
	Seen      time.Time         `json:"seen"` // when this was written, by its own clock
	KeyFormat int               `json:"key_format"`
	Config    string            `json:"config"`    // hash of what has to be alike on all
	Store     string            `json:"store"`     // where its claims belong, as configured
	Backends  map[string]string `json:"backends"`  // in effect, not as configured
	Degraded  []string          `json:"degraded"`  // owners, as kind/id
	Unsettled int               `json:"unsettled"` // messages of an outage that are not in the shared store yet
}

// Silent reports whether nothing but the id is known: what the replica says of
// itself is being written, or cannot be read. It lives all the same.
func (r Replica) Silent() bool { return r.KeyFormat == 0 }
