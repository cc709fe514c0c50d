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
// that a message answered during an outage is still known after it. Records
// wait for that in the weaker store itself, as durable as it is, and those that
// an earlier process left are carried too.
//
// Where replicas see each other by heartbeats, nothing is claimed, carried or
// taken over before this process's own has been acknowledged; see liveness.
//
// Run must be running for a lost store to come back.
type Failover struct {
	cfg   FailoverConfig
	tiers []*tier
	live  *liveness
	known *known

	// claiming is passed by every claim while it chooses a tier and claims in
	// it, and shut while a tier comes back: no claim lands in the weaker store
	// after the better one was found settled. Before an entry's lock, and
	// that before mu.
	claiming  gate
	unsettled unsettled
	settling  sync.Mutex // held by the one prober that shuts claiming

	mu         sync.Mutex // guards the tiers' fields and what follows; held for moments
	overflowed bool       // the table of unsettled claims has been full in this outage
	behind     []string   // living replicas that have not settled yet
}

var _ Store = (*Failover)(nil)

// FailoverConfig is what NewFailover needs.
type FailoverConfig struct {
	Tiers         []Tier // at least one; beside others they are Settlers, and all but the first Shadows
	OnUnavailable string // Open or Closed, for a Request that does not say
	Replica       string // begins the owner tokens of this process
	Health        *health.Registry
	Events        Events
	Log           *slog.Logger
	Now           func() time.Time
	ProbeEvery    time.Duration // between write probes; DefaultProbeEvery in production

	// Heartbeats, where the first tier is a Roll: how long one lives, what this
	// process says of itself, and who hears what all say.
	TakeoverAfter time.Duration
	Self          func() health.Replica // nil: no heartbeats
	Seen          func(own health.Replica, all []health.Replica)
}

// DefaultProbeEvery is how often the serving store is probed by a real write,
// and a lost one is tried.
const DefaultProbeEvery = time.Second

// Events are called when the guarantee is touched. Each may be nil.
type Events struct {
	FailOpen  func() // a claim was made in a weaker store than the configured one
	Slipped   func() // a message that ran in a weaker store is also claimed or recorded in the better one
	Uncarried func() // a claim in a weaker store cannot be carried: too many are waiting for it
	TakenOver func() // a claim was taken over before its lease ended
}

// NewFailover returns a Failover that has opened nothing yet; call Start.
func NewFailover(cfg FailoverConfig) *Failover {
	cfg.Log = cfg.Log.With("component", "idempotency")
	if cfg.Events.FailOpen == nil {
		cfg.Events.FailOpen = func() {}
	}
	if cfg.Events.Slipped == nil {
		cfg.Events.Slipped = func() {}
	}
	if cfg.Events.Uncarried == nil {
		cfg.Events.Uncarried = func() {}
	}
	if cfg.Events.TakenOver == nil {
		cfg.Events.TakenOver = func() {}
	}
	f := &Failover{cfg: cfg, known: newKnown(cfg.Now)}
	for i, t := range cfg.Tiers {
		f.tiers = append(f.tiers, &tier{Tier: t, index: i, wake: make(chan struct{}, 1)})
	}
	f.live = newLiveness(livenessConfig{
		Self: cfg.Self, Seen: f.seen, TakeoverAfter: cfg.TakeoverAfter, Now: cfg.Now, Log: cfg.Log,
	})
	return f
}

// Start opens every store once, the configured one last, so that the first
// message finds the best one there is, and that one what an earlier process has
// left for it. It waits for the weaker ones no longer than startPatience. A
// store that does not open is no error: it is tried again by Run.
func (f *Failover) Start(ctx context.Context) {
	var weaker sync.WaitGroup
	for _, t := range f.tiers[1:] {
		weaker.Go(func() { f.probe(ctx, t) })
	}
	opened := make(chan struct{})
	go func() {
		weaker.Wait()
		close(opened)
	}()
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	select {
	case <-opened:
	case <-patience.C:
	}
	f.probe(ctx, f.tiers[0])
	<-opened
}

// startPatience is how long the configured store waits for what the weaker ones
// may have to say.
const startPatience = 2 * time.Second

// Run probes and recovers stores, and writes heartbeats, until ctx ends.
func (f *Failover) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	if f.cfg.Self != nil {
		work.Go(func() { f.live.run(ctx) })
	}
	for _, t := range f.tiers {
		work.Go(func() { f.watch(ctx, t) })
	}
	return nil
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
	res, err := f.claim(ctx, key, req)
	if err != nil || res.State != Won {
		return res, err
	}
	if met, ok := f.known.won(res.Claim); !ok {
		f.giveBack(ctx, res.Claim)
		return met, nil
	}
	if res.TakenOver {
		f.cfg.Events.TakenOver()
		f.cfg.Log.Info("claim of a dead owner taken over", "key", string(key), "store", res.Claim.Backend)
	}
	return res, nil
}

// claim reserves, and does so again where a better store has come back while
// the claim was made in a weaker one: that one has not been told of it. Mostly
// none has, since claims are held off meanwhile. Again means with another token:
// a release of the first one may be on its way to any store.
func (f *Failover) claim(ctx context.Context, key Key, req Request) (Reservation, error) {
	for tries := 1; ; tries++ {
		f.known.begin(key, req.Token)
		res, err := f.reserve(ctx, key, req)
		if err != nil || res.State != Won {
			f.known.ended(key, req.Token)
			return res, err
		}
		home := f.tierOf(res.Claim.Backend)
		if tries == len(f.tiers) || !slices.ContainsFunc(f.tiers[:home], f.isUp) {
			return res, nil
		}
		f.giveBack(ctx, res.Claim)
		req.Token = NewToken(ReplicaOf(req.Token))
	}
}

// giveBack releases a claim that nobody will run. What a store does not take
// now is pending.
func (f *Failover) giveBack(ctx context.Context, c Claim) {
	_ = f.Release(context.WithoutCancel(ctx), c)
}

// reserve claims in the best store that answers. The same token goes to each,
// so that what one of them does behind our back is found by it.
func (f *Failover) reserve(ctx context.Context, key Key, req Request) (Reservation, error) {
	var doubts uint64
	var errs []error
	for range f.tiers {
		t := f.serving(req.OnUnavailable)
		if t == nil {
			break
		}
		if t.index > 0 {
			if res, ok := f.known.meet(key, req); ok {
				f.follow(key, req, Reservation{}, doubts)
				return res, nil
			}
		}
		sent, res, err := f.ask(ctx, t, key, req)
		if answered(err) {
			f.follow(key, req, res, doubts)
			return res, err
		}
		errs = append(errs, err)
		if sent {
			doubts |= bit(t.index)
		}
		if ctx.Err() != nil {
			break
		}
		f.down(t, err)
	}
	f.follow(key, req, Reservation{}, doubts)
	return Reservation{}, unavailable(errs)
}

// unavailable is ErrUnavailable and what each store said, on one line.
func unavailable(errs []error) error {
	err := ErrUnavailable
	for _, e := range errs {
		err = fmt.Errorf("%w; %w", err, e)
	}
	return err
}

// ask asks one store, under a heartbeat where that wants one. Not sent means
// that the store cannot have the claim.
func (f *Failover) ask(ctx context.Context, t *tier, key Key, req Request) (sent bool, res Reservation, err error) {
	ctx, cancel := t.budget(ctx)
	defer cancel()
	req.Owners = owners{f, t}
	if t.Heartbeats {
		if err := f.live.ensure(ctx); err != nil {
			return false, res, err
		}
	}
	res, err = t.store().Reserve(ctx, key, req)
	return true, res, err
}

// follow enters into the table what has to be followed after a Reserve: a
// claim in a weaker store, and doubts in those that gave no answer. What a
// store may have without our knowing is given back once it answers again,
// unless a run in a weaker one needs it.
func (f *Failover) follow(key Key, req Request, res Reservation, doubts uint64) {
	e := newEntry(Claim{Key: key, Token: req.Token, Lease: req.Lease, TTL: req.TTL, Fingerprint: req.Fingerprint, OnUnavailable: req.OnUnavailable})
	e.doubts = doubts
	if home := f.tierOf(res.Claim.Backend); res.State == Won && home > 0 {
		e.claim, e.running, e.home = res.Claim, true, home
		f.cfg.Events.FailOpen()
	}
	if !e.settled() {
		f.add(e)
	}
}

// owners is what this process tells a tier about the owners of claims.
type owners struct {
	f *Failover
	t *tier
}

// Abandoned implements Owners.
func (o owners) Abandoned(token string) bool {
	return o.f.cfg.Replica != "" && ReplicaOf(token) == o.f.cfg.Replica && !o.f.known.holds(token)
}

// MayTakeOver implements Owners.
func (o owners) MayTakeOver() bool { return !o.t.Heartbeats || o.f.live.mayTakeOver() }

// InDoubt reports whether somebody else may have taken c over, so that it has
// to be renewed before anything is done that cannot be undone.
func (f *Failover) InDoubt(c Claim) bool {
	if elapsed(c.Confirmed, f.cfg.Now()) > c.Lease*2/3 {
		return true
	}
	home := f.tierOf(c.Backend)
	if e := f.unsettled.find(c.Token); e != nil {
		select {
		case e.lock <- struct{}{}:
			if e.running {
				home = e.home
			}
			e.free()
		default: // on its way somewhere
			return true
		}
	}
	return home >= 0 && f.tiers[home].Heartbeats && f.live.inDoubt(c)
}

// Ping implements Store: it probes the store that serves.
func (f *Failover) Ping(ctx context.Context) error {
	if t := f.serving(""); t != nil {
		return t.ping(ctx)
	}
	return ErrUnavailable
}

// Leave tells the other replicas that this one has stopped. Call it when no
// claim is held any more.
func (f *Failover) Leave(ctx context.Context) error {
	ctx, cancel := f.tiers[0].budget(ctx)
	defer cancel()
	return f.live.leave(ctx, f.cfg.Replica)
}

// Close closes every open store, the best one last.
func (f *Failover) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for i := len(f.tiers) - 1; i >= 0; i-- {
		t := f.tiers[i]
		t.up, t.err = false, ErrUnavailable
		if store := t.store(); store != nil {
			errs = append(errs, store.Close())
		}
	}
	return errors.Join(errs...)
}

// Backend names the store that serves now, or "none".
func (f *Failover) Backend() string {
	if t := f.serving(""); t != nil {
		return t.Name
	}
	return "none"
}
