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
	Backends  map[string]string `json:"backends"`  // in effect, not as configured
	Degraded  []string          `json:"degraded"`  // owners, as kind/id
	Unsettled int               `json:"unsettled"` // messages of an outage that are not in the shared store yet
}
