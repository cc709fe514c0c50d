// Package health keeps what is known about the guarantee in force and tells it
// to probes and people: which part is weaker than configured, why, and what to
// do about it.
package health

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
)

// The kinds of degraded owners.
const (
	KindChannel    = "channel"
	KindProvider   = "provider"
	KindCapability = "capability"
	KindRoute      = "route"
	KindGateway    = "gateway"
)

// The states of a degraded owner.
const (
	Cold  = "cold"  // has never worked in this process
	Stale = "stale" // worked before
)

// Owner names one thing that is weaker than configured. Reason is an exact
// sentence that operators may compare with.
type Owner struct {
	Kind      string `json:"owner_kind"`
	ID        string `json:"owner_id"`
	State     string `json:"state,omitempty"`
	Class     string `json:"class,omitempty"`
	Reason    string `json:"reason,omitempty"`
	RetryHint string `json:"retry_hint,omitempty"`

	// For the log alone, at the time of the entry.
	Detail  string `json:"-"` // the error behind it
	Lasting bool   `json:"-"` // a person has to end it
}

// Phase is the stage of the process's life.
type Phase int

// The phases, in order.
const (
	Starting Phase = iota
	Ready
	Draining
)

// startup is degraded until the process is ready, so that no answer is green
// before the stores have been tried.
var startup = Owner{
	Kind: KindGateway, ID: "startup", State: Cold, Class: "starting",
	Reason: "the gateway is starting", RetryHint: "wait for /readyz",
}

// Registry holds the degraded owners and the phase. It is safe for concurrent
// use and logs one line per change, never one per message.
type Registry struct {
	log *slog.Logger

	mu     sync.Mutex
	phase  Phase
	owners []Owner // sorted by kind and id
}

// NewRegistry returns the registry of a process that is starting.
func NewRegistry(log *slog.Logger) *Registry {
	return &Registry{log: log.With("component", "health"), owners: []Owner{startup}}
}

// Degrade enters o, or replaces the entry with the same kind and id.
func (r *Registry) Degrade(o Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry := o
	entry.Detail, entry.Lasting = "", false // another wording of the same trouble is no change
	i, found := r.find(o.Kind, o.ID)
	switch {
	case !found:
		r.owners = slices.Insert(r.owners, i, entry)
	case r.owners[i] == entry:
		return
	default:
		r.owners[i] = entry
	}
	level, about := slog.LevelWarn, []any{"owner_kind", o.Kind, "owner_id", o.ID, "state", o.State, "class", o.Class, "reason", o.Reason, "retry_hint", o.RetryHint}
	if o.Lasting {
		level = slog.LevelError
	}
	if o.Detail != "" {
		about = append(about, "error", o.Detail)
	}
	r.log.Log(context.Background(), level, "degraded", about...)
}

// Clear removes the entry, if there is one.
func (r *Registry) Clear(kind, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, found := r.find(kind, id); found {
		r.owners = slices.Delete(r.owners, i, i+1)
		r.log.Info("recovered", "owner_kind", kind, "owner_id", id)
	}
}

func (r *Registry) find(kind, id string) (int, bool) {
	return slices.BinarySearchFunc(r.owners, Owner{Kind: kind, ID: id}, func(a, b Owner) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
}

// Owners returns what is degraded, ordered by kind and id.
func (r *Registry) Owners() []Owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.owners)
}

// Enter moves on to a phase; it never goes back to an earlier one.
func (r *Registry) Enter(p Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = max(r.phase, p)
	if i, found := r.find(startup.Kind, startup.ID); found && r.phase > Starting {
		r.owners = slices.Delete(r.owners, i, i+1)
	}
}

// Phase returns the current phase.
func (r *Registry) Phase() Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase
}
