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
	here      view       // of the own store
	beside    view       // of a Redis that this one does not claim in
	differing time.Time  // since when every view had several configurations; zero: the last one had not
	fitted    bool       // some view had nothing wrong
}

// view is who lived in a store when it was last asked.
type view struct {
	replicas []Replica
	at       time.Time
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
	Age    float64 `json:"age_seconds"`      // since it was seen, by the clock of the one that tells
	Beside bool    `json:"beside,omitempty"` // seen in a Redis that the one that tells does not claim in
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
	fleetID         = "replicas"
	reasonOwnStore  = "fewer replicas than configured share the idempotency store (running per-replica)"
	reasonNotRedis  = "other replicas claim in redis, this one does not (running per-replica)"
	reasonElsewhere = "other replicas claim in stores of their own (running per-replica)"
	reasonFormats   = "live replicas write keys in different formats (they do not see each other's claims)"
	reasonConfigs   = "live replicas run with different configurations"
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
	f.here = view{slices.Clone(all), f.cfg.Now()}
	f.compare()
	f.judge(own)
}

// Beside takes a view of the Redis that the configuration names though claims
// do not go there: whoever lives in it, own among them.
func (f *Fleet) Beside(own Replica, all []Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beside = view{slices.Clone(all), f.cfg.Now()}
	f.compare()
	f.judge(own)
}

// Replicas returns whoever the last views showed, ordered by id, and own as it is
// now: nobody has to hear of himself from a store.
func (f *Fleet) Replicas(own Replica) []Sighting {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.DeleteFunc(f.all(), func(r Sighting) bool { return r.ID == own.ID })
	i, _ := slices.BinarySearchFunc(all, own.ID, func(r Sighting, id string) int { return cmp.Compare(r.ID, id) })
	return slices.Insert(all, i, Sighting{Replica: own})
}

// compare notes since when configurations differ. The caller holds mu.
func (f *Fleet) compare() {
	if configs := f.configs(); len(configs) < 2 {
		f.differing = time.Time{}
	} else if f.differing.IsZero() {
		f.differing = f.cfg.Now()
	}
}

// all returns whoever is known to live, ordered by id; empty, not nil, where
// nobody is. The caller holds mu.
func (f *Fleet) all() []Sighting {
	all := f.here.sightings(f.cfg.Now(), false)
	all = append(all, f.beside.sightings(f.cfg.Now(), true)...)
	slices.SortStableFunc(all, func(a, b Sighting) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b Sighting) bool { return a.ID == b.ID }) // keeps the one in the own store
}

func (v view) sightings(now time.Time, beside bool) []Sighting {
	list := make([]Sighting, 0, len(v.replicas))
	for _, r := range v.replicas {
		list = append(list, Sighting{Replica: r, Age: now.Sub(v.at).Truncate(time.Millisecond).Seconds(), Beside: beside})
	}
	return list
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
	case own.Store != storeRedis && f.anyElsewhere(own):
		o.Class, o.Reason, o.RetryHint = "unshared", reasonElsewhere, useRedis
	case own.Store != storeRedis && f.sharing(own) < f.cfg.Replicas:
		o.Class, o.Reason = "unshared", reasonOwnStore
		o.RetryHint = fmt.Sprintf("%s, or correct gateway.replicas: %d; %d of them claim in this one's %s store", useRedis, f.cfg.Replicas, f.sharing(own), own.Store)
	case len(others) > 0:
		o.Class, o.Reason = "key_format", reasonFormats
		o.RetryHint = fmt.Sprintf("let all run one version; this replica writes format %d, others: %s", own.KeyFormat, strings.Join(others, ", "))
	case !f.differing.IsZero() && f.cfg.Now().Sub(f.differing) >= rollout:
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
	for _, r := range f.here.replicas {
		if r.Store == own.Store || r.Silent() {
			n++
		}
	}
	return max(1, n) // itself, also before the first view
}

func (f *Fleet) anyInRedis() bool {
	return slices.ContainsFunc(f.all(), func(r Sighting) bool { return r.Store == storeRedis })
}

// anyElsewhere reports whether a replica shows itself beside this one that does
// not live in its store. One that has just started may not have been there when
// that was looked at last.
func (f *Fleet) anyElsewhere(own Replica) bool {
	return slices.ContainsFunc(f.all(), func(r Sighting) bool {
		late := own.Store != storeMemory && !r.Started.Add(time.Second).Before(f.here.at)
		return r.Beside && r.ID != own.ID && !late
	})
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
