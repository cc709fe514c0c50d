package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/oncegate/oncegate/health"
)

// Failover is a Store over several, the configured one first and weaker ones
// behind it. While the configured store is away the next one serves (policy
// Open) or claims are refused (Closed); both are shown as a degraded owner for
// exactly as long.
//
// A claim is settled where it was made. What was claimed or recorded in a
// weaker store is carried into the better one before that serves again, so
// that a message answered during an outage is still known after it. What has
// to be carried is kept in memory, within bounds: a crash during the outage
// forgets it, while the record in a durable weaker store remains.
//
// Run must be running for a lost store to come back.
type Failover struct {
	cfg   FailoverConfig
	tiers []*tier

	// claiming is passed by every claim while it chooses a tier and claims in
	// it, and shut while a tier comes back: no claim lands in the weaker store
	// after the better one was found settled. Before an entry's lock, and
	// that before mu.
	claiming  gate
	unsettled unsettled

	mu         sync.Mutex // guards the tiers' fields and the degraded owner; held for moments
	overflowed bool       // the table of unsettled claims has been full in this outage
}

var _ Store = (*Failover)(nil)

// Tier is one store of a Failover.
type Tier struct {
	Name     string                                   // BackendRedis, BackendSQLite or BackendMemory
	Open     func(ctx context.Context) (Store, error) // tried until it succeeds once
	Timeout  time.Duration                            // budget of one call; 0: the caller's context alone
	Classify func(error) string                       // the degraded owner's class
}

// FailoverConfig is what NewFailover needs.
type FailoverConfig struct {
	Tiers         []Tier // at least one
	OnUnavailable string // Open or Closed
	Health        *health.Registry
	Events        Events
	Log           *slog.Logger
	Now           func() time.Time
	ProbeEvery    time.Duration // between write probes; DefaultProbeEvery in production
}

// DefaultProbeEvery is how often the serving store is probed by a real write,
// and a lost one is tried.
const DefaultProbeEvery = time.Second

// openTimeout bounds one attempt to open a store, to probe one that has no
// budget of its own, and to carry claims into it: longer than a file is waited
// for that another process has locked.
const openTimeout = 10 * time.Second

// probeTimeout bounds the write probe of a store with a budget, so that a
// server that has frozen is noticed within two seconds.
const probeTimeout = time.Second

// Events are called when the guarantee is touched. Each may be nil.
type Events struct {
	FailOpen  func() // a claim was made in a weaker store than the configured one
	Slipped   func() // a message that ran in a weaker store is also claimed or recorded in the better one
	Uncarried func() // a claim in a weaker store cannot be carried: too many are waiting for it
}

type tier struct {
	Tier
	store  Store // nil until Open has succeeded
	up     bool
	worked bool // was up at some time
	err    error
}

// NewFailover returns a Failover that has opened nothing yet; call Start.
func NewFailover(cfg FailoverConfig) *Failover {
	f := &Failover{cfg: cfg}
	f.cfg.Log = cfg.Log.With("component", "idempotency")
	for _, t := range cfg.Tiers {
		f.tiers = append(f.tiers, &tier{Tier: t})
	}
	return f
}

// Start opens every store once, so that the first message finds the best one
// there is. A store that does not open is no error: it is tried again by Run.
func (f *Failover) Start(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range f.tiers {
		wg.Go(func() { f.probe(ctx, i) })
	}
	wg.Wait()
}

// Run probes and recovers stores until ctx ends.
func (f *Failover) Run(ctx context.Context) error {
	ticker := time.NewTicker(f.cfg.ProbeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.round(ctx)
		}
	}
}

// round probes from the best store down to the first one that serves. Weaker
// ones behind it are left alone unless they are down themselves.
func (f *Failover) round(ctx context.Context) {
	serving := false
	for i := range f.tiers {
		if !serving || !f.isUp(i) {
			f.probe(ctx, i)
		}
		serving = serving || f.isUp(i)
	}
}

// probe opens a tier if need be, proves it by a write and brings it up once
// nothing is left to carry into it. Calls for one tier never overlap.
func (f *Failover) probe(ctx context.Context, i int) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	t := f.tiers[i]
	if t.store == nil {
		store, err := t.Open(ctx)
		if err != nil {
			f.down(i, err)
			return
		}
		f.mu.Lock()
		t.store = store
		f.mu.Unlock()
	}
	err := t.ping(ctx)
	if err == nil && !f.isUp(i) {
		err = f.settle(ctx, i)
	}
	if err != nil {
		f.down(i, err)
	}
}

func (t *tier) ping(ctx context.Context) error {
	if t.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(t.Timeout, probeTimeout))
		defer cancel()
	}
	return t.store.Ping(ctx)
}

func (f *Failover) isUp(i int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tiers[i].up
}

// down takes a tier out of service until a probe succeeds. The degraded owner
// is entered under the same lock: nothing is claimed in a weaker store before.
func (f *Failover) down(i int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tiers[i]
	if t.up || t.err == nil {
		f.cfg.Log.Error("store not available", "store", t.Name, "error", err)
	}
	t.up, t.err = false, err
	f.report()
}

// Reserve implements Store. ErrUnavailable if no store may serve.
func (f *Failover) Reserve(ctx context.Context, key Key, req Request) (Reservation, error) {
	if err := ctx.Err(); err != nil {
		return Reservation{}, err
	}
	if err := f.claiming.enter(ctx); err != nil {
		return Reservation{}, fmt.Errorf("reserve %q: %w", key, err)
	}
	defer f.claiming.leave()
	// What the stores may have without our knowing. It is given back once they
	// answer again, unless the run in a weaker one needs it.
	claim := newEntry(Claim{Key: key, Token: req.Token, Lease: req.Lease, TTL: req.TTL, Fingerprint: req.Fingerprint}, entryReleased, len(f.tiers))
	var errs []error
	for range f.tiers {
		i, t := f.serving()
		if t == nil {
			break
		}
		res, err := t.reserve(ctx, key, req)
		if answered(err) {
			f.won(i, res, claim)
			return res, err
		}
		errs = append(errs, err)
		claim.doubts |= bit(i)
		if ctx.Err() != nil {
			break
		}
		f.down(i, err)
	}
	if claim.doubts != 0 {
		f.add(claim)
	}
	return Reservation{}, fmt.Errorf("reserve %q: %w", key, errors.Join(append(errs, ErrUnavailable)...))
}

// won enters what has to be followed after tier i has answered: a claim in a
// weaker store, or a doubt in one before it.
func (f *Failover) won(i int, res Reservation, e *entry) {
	if i > 0 && res.State == Won {
		e.claim, e.state, e.home = res.Claim, entryRunning, i
		f.cfg.Events.failOpen()
	}
	if e.state == entryRunning || e.doubts != 0 {
		f.add(e)
	}
}

func (t *tier) reserve(ctx context.Context, key Key, req Request) (Reservation, error) {
	ctx, cancel := t.budget(ctx)
	defer cancel()
	return t.store.Reserve(ctx, key, req)
}

// serving returns the tier that claims go to, or -1.
func (f *Failover) serving() (int, *tier) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.firstUp()
	if i < 0 {
		return i, nil
	}
	return i, f.tiers[i]
}

// firstUp is serving for callers that hold mu.
func (f *Failover) firstUp() int {
	if f.cfg.OnUnavailable == Closed && !f.tiers[0].up {
		return -1
	}
	return slices.IndexFunc(f.tiers, func(t *tier) bool { return t.up })
}

// budget bounds one call.
func (t *tier) budget(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, t.Timeout)
}

// Ping implements Store: it probes the store that serves.
func (f *Failover) Ping(ctx context.Context) error {
	if _, t := f.serving(); t != nil {
		return t.ping(ctx)
	}
	return ErrUnavailable
}

// Close closes every open store, the best one last.
func (f *Failover) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, t := range slices.Backward(f.tiers) {
		if t.store != nil {
			t.up, t.err = false, ErrUnavailable
			errs = append(errs, t.store.Close())
		}
	}
	return errors.Join(errs...)
}

// Backend names the store that serves now, or "none".
func (f *Failover) Backend() string {
	if _, t := f.serving(); t != nil {
		return t.Name
	}
	return "none"
}

// The degraded owner of this package. Both ends of the sentences are exact:
// operators compare them.
const (
	ownerID          = "durability:idempotency"
	reasonRedisCold  = "redis idempotency backend not available (running per-replica)"
	reasonRedisStale = "redis idempotency backend unreachable at runtime (dedup best-effort until it recovers)"
	reasonMemory     = "durable idempotency store unavailable (running in-memory)"
)

// report enters or clears the degraded owner. The caller holds mu.
func (f *Failover) report() {
	best := f.tiers[0]
	switch {
	case best.up:
		f.cfg.Health.Clear(health.KindGateway, ownerID)
		return
	case best.err == nil: // still being opened by Start
		return
	}
	o := health.Owner{Kind: health.KindGateway, ID: ownerID, State: health.Cold, Class: best.Classify(best.err)}
	i := f.firstUp()
	switch {
	case best.Name != BackendRedis, i >= 0 && f.tiers[i].Name == BackendMemory:
		o.Reason = reasonMemory
	case best.worked:
		o.State, o.Reason = health.Stale, reasonRedisStale
	default:
		o.Reason = reasonRedisCold
	}
	o.RetryHint = "run gateway doctor; the store is tried again by itself"
	if i < 0 {
		o.RetryHint = "messages are refused with 503 until the store is back; " + o.RetryHint
	}
	f.cfg.Health.Degrade(o)
}

func (e Events) failOpen() {
	if e.FailOpen != nil {
		e.FailOpen()
	}
}

func (e Events) slipped() {
	if e.Slipped != nil {
		e.Slipped()
	}
}

func (e Events) uncarried() {
	if e.Uncarried != nil {
		e.Uncarried()
	}
}
