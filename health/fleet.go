package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fleet is what this process knows of the replicas beside it: the list on
// /health, and the degraded owner for replicas that do not fit together. It is
// safe for concurrent use.
type Fleet struct {
	cfg FleetConfig

	mu        sync.Mutex // also held while the owner changes, so that the later view wins
	replicas  []Replica  // of the last view of the own store
	beside    []Replica  // of the last view of a Redis that this one does not claim in
	seen      time.Time  // when that was
	differing time.Time  // since when every view had several configurations; zero: the last one had not
	fitted    bool       // some view had nothing wrong
}

// FleetConfig is what NewFleet needs.
type FleetConfig struct {
	Replicas int // that the operator runs, as configured
	Health   *Registry
	Now      func() time.Time
}

// Sighting is a replica as it was last seen.
type Sighting struct {
	Replica
	Age float64 `json:"age_seconds"` // since it was seen, by the clock of the one that tells
}

// rollout is how long replicas may run with different configurations, which
// they have to while one after the other is started anew.
const rollout = 10 * time.Minute

// The configured stores, as package idempotency names them, which imports this
// one.
const (
	storeRedis  = "redis"
	storeMemory = "memory"
)

// The degraded owner of a fleet. The sentences are exact: operators compare
// them.
const (
	fleetID        = "replicas"
	reasonOwnStore = "fewer replicas than configured share the idempotency store (running per-replica)"
	reasonNotRedis = "other replicas claim in redis, this one does not (running per-replica)"
	reasonFormats  = "live replicas write keys in different formats (they do not see each other's claims)"
	reasonConfigs  = "live replicas run with different configurations"
)

// useRedis is the remedy for claims that are not shared.
const useRedis = "on every replica set hooks.idempotency.store_backend: redis with the same gateway.push.redis"

// NewFleet returns the fleet of a process that has seen nobody yet.
func NewFleet(cfg FleetConfig) *Fleet { return &Fleet{cfg: cfg} }

// Alone judges own by its configuration: before the first view, and where none
// ever comes. What only a view can tell is not held against it.
func (f *Fleet) Alone(own Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if own.Store == storeMemory {
		f.judge(own)
	}
}

// Seen takes a view that a store has acknowledged: own as it was written, and
// all that live there, own among them. Who claims in SQLite is in one view only
// with those who use the same file. The view stays on /health until the next.
func (f *Fleet) Seen(own Replica, all []Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.show(all)
	f.judge(own)
}

// Beside takes a view of the Redis that the configuration names though claims
// do not go there: whoever lives in it, own among them.
func (f *Fleet) Beside(own Replica, all []Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beside = slices.Clone(all)
	f.compare()
	f.judge(own)
}

// Replicas returns the last view, ordered by id; empty, not nil, before the
// first one.
func (f *Fleet) Replicas() []Sighting {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all()
	list := make([]Sighting, 0, len(all))
	age := f.cfg.Now().Sub(f.seen).Truncate(time.Millisecond).Seconds()
	for _, r := range all {
		list = append(list, Sighting{Replica: r, Age: age})
	}
	return list
}

// show keeps a view. The caller holds mu.
func (f *Fleet) show(all []Replica) {
	f.replicas = slices.Clone(all)
	f.compare()
}

// compare notes since when configurations differ. The caller holds mu.
func (f *Fleet) compare() {
	f.seen = f.cfg.Now()
	if configs := f.configs(); len(configs) < 2 {
		f.differing = time.Time{}
	} else if f.differing.IsZero() {
		f.differing = f.seen
	}
}

// all returns whoever is known to live, ordered by id. The caller holds mu.
func (f *Fleet) all() []Replica {
	all := slices.Concat(f.replicas, f.beside)
	slices.SortStableFunc(all, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b Replica) bool { return a.ID == b.ID })
}

// judge enters or clears the degraded owner; the worst of what is wrong is
// shown. The caller holds mu.
func (f *Fleet) judge(own Replica) {
	o := Owner{Kind: KindGateway, ID: fleetID, State: Cold}
	if f.fitted {
		o.State = Stale
	}
	switch others := f.foreignFormats(own.KeyFormat); {
	case own.Store != storeRedis && f.anyInRedis():
		o.Class, o.Reason, o.RetryHint = "unshared", reasonNotRedis, useRedis
	case own.Store != storeRedis && f.sharing(own) < f.cfg.Replicas:
		o.Class, o.Reason = "unshared", reasonOwnStore
		o.RetryHint = fmt.Sprintf("%s, or correct gateway.replicas: %d; %d of them claim in this one's %s store", useRedis, f.cfg.Replicas, f.sharing(own), own.Store)
	case len(others) > 0:
		o.Class, o.Reason = "key_format", reasonFormats
		o.RetryHint = fmt.Sprintf("let all run one version; this replica writes format %d, others: %s", own.KeyFormat, strings.Join(others, ", "))
	case !f.differing.IsZero() && f.seen.Sub(f.differing) >= rollout:
		o.Class, o.Reason = "config", reasonConfigs
		o.RetryHint = "give all the same gateway.yaml and environment and restart those that differ; " + strings.Join(f.configs(), "; ")
	default:
		f.fitted = true
		f.cfg.Health.Clear(KindGateway, fleetID)
		return
	}
	f.cfg.Health.Degrade(o)
}

// sharing counts the replicas whose claims belong into the store of own.
func (f *Fleet) sharing(own Replica) int {
	if own.Store == storeMemory {
		return 1
	}
	n := 0
	for _, r := range f.replicas {
		if r.Store == own.Store || r.Silent() {
			n++
		}
	}
	return n
}

func (f *Fleet) anyInRedis() bool {
	return slices.ContainsFunc(f.all(), func(r Replica) bool { return r.Store == storeRedis })
}

// foreignFormats says who writes keys in another format than ours.
func (f *Fleet) foreignFormats(ours int) []string {
	var others []string
	for _, r := range f.all() {
		if r.KeyFormat != ours && !r.Silent() {
			others = append(others, fmt.Sprintf("%s (version %s) writes format %d", r.ID, r.Version, r.KeyFormat))
		}
	}
	return others
}

// configs says who runs with which configuration, one text for each
// configuration.
func (f *Fleet) configs() []string {
	users := make(map[string][]string)
	for _, r := range f.all() {
		if !r.Silent() {
			users[r.Config] = append(users[r.Config], r.ID)
		}
	}
	var list []string
	for hash, ids := range users {
		list = append(list, fmt.Sprintf("configuration %s: %s", hash, strings.Join(ids, ", ")))
	}
	slices.Sort(list)
	return list
}
