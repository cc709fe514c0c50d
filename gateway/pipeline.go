package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
)

// Pipeline is the one path of every message, whatever it came in by:
// claim → turn lock → admission slot → confirm the claim → history → run →
// history → deliver → confirm the lock → record or release. A message that is
// acknowledged first is stored instead of claimed, and comes to the same path by
// the taker, see taker.go.
//
// The order matters. The claim comes first, so that a duplicate waits for
// nothing and shows nothing. The slot comes after the session's lock, so that
// one busy session does not hold the slots of the others. The history is read
// under the lock, and it and the record are written before the lock is given
// on, so that the session's next turn starts after this one is known to be
// finished, and sees it.
//
// A delivery that has been claimed outlives its request: a sender that hangs
// up neither stops the run nor its record.
type Pipeline struct {
	cfg     PipelineConfig
	renewer *idempotency.Renewer
	slots   chan struct{}
	intake  *intake
	taker   *taker // nil: the store keeps no messages
	metrics *Metrics
	log     *slog.Logger

	// work is the parent of every run. It ends, with cause ErrDraining, when
	// the drain's time is over.
	work     context.Context
	stopWork context.CancelCauseFunc
}

// PipelineConfig is what NewPipeline needs. Store is required; what else is left
// out has a default, the gateway's own where there is one.
type PipelineConfig struct {
	Store              idempotency.Store            // where it is an Inbox, messages can be accepted
	InDoubt            func(idempotency.Claim) bool // as in idempotency.RenewerConfig
	Locks              turnlock.Locker              // nil: turnlock.Local, whose waits are longer than a turn
	Replica            string                       // begins every owner token; empty: a new id. Where Store has a Replica, it must be the same
	MaxConcurrentTurns int                          // 0: 256
	QueueWait          time.Duration                // for a slot; 0: busy at once
	TurnTimeout        time.Duration                // of one run; 0: 10 minutes
	MaxStoredReply     int64                        // bytes kept for replays; 0: only empty replies are
	Routes             Routes                       // how stored messages are run; nil: no route is known
	Outbox             Outbox                       // nil: nothing is delivered
	Look               time.Duration                // in which a stored message whose owner died is found; 0: takeover_after's default
	Metrics            *Metrics                     // nil: what is counted is shown nowhere
	Log                *slog.Logger                 // nil: nothing is logged
}

// Routes returns the policy of a route by its name, with its Accept, and whether
// there is such a route.
type Routes func(route string) (message.Policy, bool)

// withDefaults leaves QueueWait and MaxStoredReply alone: their zeros are
// settings that the loader accepts.
func (c PipelineConfig) withDefaults() PipelineConfig {
	usual := DefaultConfig()
	c.Replica = cmp.Or(c.Replica, idempotency.NewReplicaID())
	c.MaxConcurrentTurns = cmp.Or(c.MaxConcurrentTurns, usual.MaxConcurrentTurns)
	c.TurnTimeout = cmp.Or(c.TurnTimeout, usual.TurnTimeout)
	c.Look = cmp.Or(c.Look, idempotency.DefaultConfig().TakeoverAfter)
	if c.Routes == nil {
		c.Routes = func(string) (message.Policy, bool) { return message.Policy{}, false }
	}
	if c.Locks == nil {
		c.Locks = turnlock.NewLocal(time.Now, turnlock.LongestWait(c.TurnTimeout))
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

const (
	// maxRetryAfter caps what a sender is told to wait for a run in flight: a
	// lease says when the claim ends at the latest, not when the run does.
	maxRetryAfter = 5 * time.Second
)

// errPanic is the error of a run that panicked.
var errPanic = errors.New("gateway: panic in a run")

// NewPipeline returns a pipeline that takes deliveries at once. Run must be
// running for claims to be renewed.
func NewPipeline(cfg PipelineConfig) *Pipeline {
	cfg = cfg.withDefaults()
	p := &Pipeline{
		cfg:     cfg,
		renewer: idempotency.NewRenewer(idempotency.RenewerConfig{Store: cfg.Store, InDoubt: cfg.InDoubt, Now: time.Now, Log: cfg.Log}),
		slots:   make(chan struct{}, cfg.MaxConcurrentTurns),
		intake:  newIntake(),
		metrics: cfg.Metrics,
		log:     cfg.Log.With("component", "pipeline"),
	}
	p.work, p.stopWork = context.WithCancelCause(context.Background())
	if inbox, ok := cfg.Store.(idempotency.Inbox); ok {
		p.taker = newTaker(p, inbox)
	}
	return p
}

// Run renews the claims of running turns, and runs stored messages, until ctx
// ends or, for the latter, the drain begins.
func (p *Pipeline) Run(ctx context.Context) error {
	if p.taker == nil {
		return p.renewer.Run(ctx)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.taker.run(ctx) })
	return p.renewer.Run(ctx)
}

// Process takes one delivery through the pipeline and returns what became of
// it. An error is one of the sentinels of package message, or internal; after
// an error this delivery holds no claim that it knows of. The Receipt's State
// is set beside an error too. ctx bounds only the waiting for another
// delivery's run.
func (p *Pipeline) Process(ctx context.Context, m message.Message, pol message.Policy) (message.Receipt, error) {
	if !p.intake.enter() {
		return message.Receipt{}, message.ErrDraining
	}
	defer p.intake.leave()
	work := workContext{Context: p.work, request: ctx}
	if m.Key.IsZero() && pol.Accept != nil {
		return p.acceptUnkeyed(work, m, pol)
	}
	pol.Runner = p.delivering(pol, kept{}, nil)
	if m.Key.IsZero() {
		lease, err := p.lock(work, m.Session)
		if err != nil {
			return message.Receipt{}, err
		}
		defer lease.Release()
		outcome, err := p.turn(lease, message.Turn{Message: m, Attempt: 1}, pol, nil)
		return message.Receipt{Outcome: outcome}, err
	}
	key := idempotency.EncodeKey(m.Key)
	var receipt message.Receipt
	res, err := p.claim(ctx, work, key, m, pol)
	switch {
	case err != nil:
	case res.State == idempotency.Won && pol.Accept != nil:
		receipt = p.accepted()
	case res.State == idempotency.Won:
		p.metrics.claims.WithLabelValues(claimNew).Inc()
		turn := message.Turn{Message: m, Key: string(key), Attempt: 1}
		receipt, err = p.run(work, res.Claim, turn, pol, res.Claim.Confirmed, func(ctx context.Context, c idempotency.Claim, _ error) { p.release(ctx, c) })
	default:
		receipt = p.duplicate(key, res, pol)
	}
	receipt.Key = string(key)
	return receipt, err
}

// claim reserves the key. With message.Wait it tries again while another
// delivery's run goes on, so that the waiter meets the record, or runs the
// message itself once the first run has failed.
func (p *Pipeline) claim(ctx, work context.Context, key idempotency.Key, m message.Message, pol message.Policy) (idempotency.Reservation, error) {
	res, err := p.reserve(work, key, m, pol)
	if err != nil || res.State != idempotency.InFlight || pol.OnDuplicate != message.Wait || m.CallerKey && !res.FingerprintMatch {
		return res, err
	}
	ctx, cancel := context.WithTimeout(ctx, pol.WaitTimeout)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return res, nil
		case <-p.intake.closing:
			timer.Stop()
			return res, nil
		}
		if res, err = p.reserve(work, key, m, pol); err != nil || res.State != idempotency.InFlight {
			return res, err
		}
	}
}

// reserve asks the store once. Nothing cuts the call off, not even the end of
// the drain: a claim that was made without our knowing it would keep the
// message from every replica for a whole lease.
func (p *Pipeline) reserve(work context.Context, key idempotency.Key, m message.Message, pol message.Policy) (idempotency.Reservation, error) {
	start := time.Now()
	req := idempotency.Request{
		Token:       idempotency.NewToken(p.cfg.Replica),
		Lease:       pol.Lease,
		TTL:         pol.TTL,
		Fingerprint: m.Fingerprint,

		OnUnavailable: pol.OnUnavailable,
	}
	res, err := p.ask(context.WithoutCancel(work), key, req, m, pol)
	since(p.metrics.reserveSeconds, start)
	if err != nil {
		p.metrics.claims.WithLabelValues(claimError).Inc()
		return res, fmt.Errorf("%w: %w", message.ErrStoreUnavailable, err)
	}
	return res, nil
}

// ask claims the message, or stores it.
func (p *Pipeline) ask(ctx context.Context, key idempotency.Key, req idempotency.Request, m message.Message, pol message.Policy) (idempotency.Reservation, error) {
	if pol.Accept == nil {
		return p.cfg.Store.Reserve(ctx, key, req)
	}
	return p.store(ctx, key, req, m, pol)
}

// duplicate answers a delivery that may not run. A stored outcome that cannot
// be read, such as one that a later version wrote, leaves it a duplicate: only
// the answer is missing.
func (p *Pipeline) duplicate(key idempotency.Key, res idempotency.Reservation, pol message.Policy) message.Receipt {
	receipt := message.Receipt{State: message.InFlight, RetryAfter: min(res.RetryAfter, maxRetryAfter), Mismatch: !res.FingerprintMatch, Stored: res.Stored}
	label := claimInFlight
	if res.State == idempotency.Recorded {
		receipt.State, label = message.Processed, claimProcessed
	}
	p.metrics.claims.WithLabelValues(label).Inc()
	if receipt.Mismatch {
		p.metrics.mismatches.Inc()
		p.log.Warn("other content under a known key", "route", pol.Route, "key", string(key))
	}
	var err error
	receipt.Outcome, err = message.DecodeOutcome(res.Outcome)
	if err != nil {
		p.log.Error("stored outcome is unreadable; the duplicate is answered without it", "route", pol.Route, "key", string(key), "error", err)
		receipt.Outcome = message.Outcome{Omitted: true}
	}
	return receipt
}

// run runs a message whose claim is held, and settles the claim before the
// session's lock goes to the next turn: it is recorded, or given back by failed.
// The message came at first.
func (p *Pipeline) run(work context.Context, claim idempotency.Claim, t message.Turn, pol message.Policy, first time.Time,
	failed func(ctx context.Context, c idempotency.Claim, err error),
) (message.Receipt, error) {
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	hold := p.renewer.Hold(claim, cancel)
	defer hold.Stop() // on a panic or Goexit too, else the claim would be renewed for ever
	var outcome message.Outcome
	lease, err := p.lock(ctx, t.Message.Session)
	if err == nil {
		defer lease.Release()
		outcome, err = p.turn(lease, t, pol, hold)
	}
	c := hold.Stop()
	if err != nil {
		failed(ctx, c, err)
	} else {
		if pol.FromFirst {
			c = counted(c, first)
		}
		err = p.record(ctx, c, outcome)
	}
	if errors.Is(err, idempotency.ErrNotOwner) {
		// The sender's retry meets the other owner's result.
		p.lost(c, pol)
		return message.Receipt{State: message.InFlight, RetryAfter: maxRetryAfter}, nil
	}
	return message.Receipt{State: message.New, Outcome: outcome}, err
}

// counted returns a claim whose window counts from first, when the message
// came. Confirmed moves along, or a store that counts from it would take the
// run's time off again.
func counted(c idempotency.Claim, first time.Time) idempotency.Claim {
	now := time.Now()
	since := c
	since.Confirmed = first
	c.TTL, c.Confirmed = max(since.RemainingTTL(now), idempotency.MinDuration), now
	return c
}

// lost notes that another owner has the message now: this run's result is
// dropped.
func (p *Pipeline) lost(c idempotency.Claim, pol message.Policy) {
	p.metrics.lost.Inc()
	p.log.Warn("claim lost during the run: its result is refused, and its effect may be doubled", "route", pol.Route, "key", string(c.Key))
}

// record finishes a claim. A run that succeeded is never released: if no store
// takes the record the sender still gets the answer, and the log says so.
func (p *Pipeline) record(ctx context.Context, c idempotency.Claim, outcome message.Outcome) error {
	data, err := outcome.Bounded(p.cfg.MaxStoredReply).Encode()
	if err != nil {
		return fmt.Errorf("encode outcome: %w", err)
	}
	start := time.Now()
	err = p.cfg.Store.Record(context.WithoutCancel(ctx), c, data)
	since(p.metrics.recordSeconds, start)
	if errors.Is(err, idempotency.ErrNotOwner) {
		p.metrics.stale.WithLabelValues(staleRecord).Inc()
	}
	if err == nil || errors.Is(err, idempotency.ErrNotOwner) {
		return err
	}
	p.metrics.unrecorded.Inc()
	p.log.Error("finished message could not be recorded; a redelivery after its lease would run again", "key", string(c.Key), "error", err)
	return nil
}

func (p *Pipeline) release(ctx context.Context, c idempotency.Claim) {
	start := time.Now()
	err := p.cfg.Store.Release(context.WithoutCancel(ctx), c)
	since(p.metrics.releaseSeconds, start)
	if errors.Is(err, idempotency.ErrNotOwner) {
		p.metrics.stale.WithLabelValues(staleRelease).Inc()
	} else if err != nil {
		p.log.Error("claim could not be released; it ends with its lease at the latest", "key", string(c.Key), "error", err)
	}
}
