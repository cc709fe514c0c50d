package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
)

// Pipeline is the one path of every message, whatever it came in by:
// claim → turn lock → admission slot → confirm the claim → history → run →
// history → confirm the lock → record or release.
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
	Store              idempotency.Store
	InDoubt            func(idempotency.Claim) bool // as in idempotency.RenewerConfig
	Locks              turnlock.Locker              // nil: turnlock.Local, whose waits are longer than a turn
	Replica            string                       // begins every owner token; empty: a new id. Where Store has a Replica, it must be the same
	MaxConcurrentTurns int                          // 0: 256
	QueueWait          time.Duration                // for a slot; 0: busy at once
	TurnTimeout        time.Duration                // of one run; 0: 10 minutes
	MaxStoredReply     int64                        // bytes kept for replays; 0: only empty replies are
	Metrics            *Metrics                     // nil: what is counted is shown nowhere
	Log                *slog.Logger                 // nil: nothing is logged
}

// withDefaults leaves QueueWait and MaxStoredReply alone: their zeros are
// settings that the loader accepts.
func (c PipelineConfig) withDefaults() PipelineConfig {
	usual := DefaultConfig()
	c.Replica = cmp.Or(c.Replica, idempotency.NewReplicaID())
	c.MaxConcurrentTurns = cmp.Or(c.MaxConcurrentTurns, usual.MaxConcurrentTurns)
	c.TurnTimeout = cmp.Or(c.TurnTimeout, usual.TurnTimeout)
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
	return p
}

// Run renews the claims of running turns until ctx ends.
func (p *Pipeline) Run(ctx context.Context) error { return p.renewer.Run(ctx) }

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
	case res.State == idempotency.Won:
		receipt, err = p.run(work, res.Claim, m, pol)
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
	res, err := p.cfg.Store.Reserve(context.WithoutCancel(work), key, idempotency.Request{
		Token:       idempotency.NewToken(p.cfg.Replica),
		Lease:       pol.Lease,
		TTL:         pol.TTL,
		Fingerprint: m.Fingerprint,

		OnUnavailable: pol.OnUnavailable,
	})
	since(p.metrics.reserveSeconds, start)
	if err != nil {
		p.metrics.claims.WithLabelValues(claimError).Inc()
		return res, fmt.Errorf("%w: %w", message.ErrStoreUnavailable, err)
	}
	return res, nil
}

// duplicate answers a delivery that may not run. A stored outcome that cannot
// be read, such as one that a later version wrote, leaves it a duplicate: only
// the answer is missing.
func (p *Pipeline) duplicate(key idempotency.Key, res idempotency.Reservation, pol message.Policy) message.Receipt {
	receipt := message.Receipt{State: message.InFlight, RetryAfter: min(res.RetryAfter, maxRetryAfter), Mismatch: !res.FingerprintMatch}
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
// session's lock goes to the next turn.
func (p *Pipeline) run(work context.Context, claim idempotency.Claim, m message.Message, pol message.Policy) (message.Receipt, error) {
	p.metrics.claims.WithLabelValues(claimNew).Inc()
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	hold := p.renewer.Hold(claim, cancel)
	defer hold.Stop() // on a panic or Goexit too, else the claim would be renewed for ever
	var outcome message.Outcome
	lease, err := p.lock(ctx, m.Session)
	if err == nil {
		defer lease.Release()
		outcome, err = p.turn(lease, message.Turn{Message: m, Key: string(claim.Key), Attempt: 1}, pol, hold)
	}
	c := hold.Stop()
	if err != nil {
		p.release(ctx, c)
	} else {
		if pol.FromFirst {
			// The run's time is taken off the window here. Confirmed moves
			// along, or a store that counts from it would take it off again.
			now := time.Now()
			c.TTL, c.Confirmed = max(claim.RemainingTTL(now), idempotency.MinDuration), now
		}
		err = p.record(ctx, c, outcome)
	}
	if errors.Is(err, idempotency.ErrNotOwner) {
		// Another owner has the message now: this run's result is dropped, and
		// the sender's retry meets the other one's.
		p.metrics.lost.Inc()
		p.log.Warn("claim lost during the run: its result is refused, and its effect may be doubled", "route", pol.Route, "key", string(claim.Key))
		return message.Receipt{State: message.InFlight, RetryAfter: maxRetryAfter}, nil
	}
	return message.Receipt{State: message.New, Outcome: outcome}, err
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
