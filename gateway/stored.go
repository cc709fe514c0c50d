package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/platform"
)

// Why a message is dead, beside idempotency.CauseOvertaken. The class of the
// last error follows where there was one.
const (
	deadAttempts   = "max_attempts"    // every attempt that it had has failed
	deadRefused    = "refused"         // another attempt would fail alike
	deadUnknown    = "unknown_outcome" // its owner died in the run, and the route does not want another one
	deadUnreadable = "unreadable"      // no version of this program wrote it
)

var deadReasons = []string{deadAttempts, deadRefused, deadUnknown, deadUnreadable, idempotency.CauseOvertaken}

// noRoute is the class of a message whose route this replica does not know, such
// as one of a newer configuration: it is tried again, here or elsewhere.
const noRoute = "no_route"

// unavailablePause is the time before a message is taken again that could not
// run for reasons that are not its own.
const unavailablePause = time.Second

// runStored runs a message that was taken, and settles it: recorded, waiting
// for its next attempt, or dead.
func (p *Pipeline) runStored(taken idempotency.Taken) {
	claim, stored := taken.Claim, taken.Claim.Stored
	var env envelope
	var saved kept
	if err := errors.Join(json.Unmarshal(stored.Body, &env), saved.decode(stored.Reply)); err != nil {
		p.bury(p.work, claim, "", deadUnreadable, err)
		return
	}
	pol, ok := p.cfg.Routes(env.Route)
	pol.Route = env.Route
	switch {
	case !ok:
		p.retry(p.work, claim, stored, pol, errNoRoute)
		return
	case stored.Attempts > pol.Accept.MaxAttempts: // its owner died in each
		p.bury(p.work, claim, env.Route, deadAttempts, errDied)
		return
	case taken.TakenOver && pol.Accept.BuryUnknown && saved.Outcome == nil:
		p.bury(p.work, claim, env.Route, deadUnknown, errDied)
		return
	}
	pol.TTL, pol.FromFirst, claim.OnUnavailable = claim.TTL, env.FromFirst, pol.OnUnavailable
	pol.Runner = p.delivering(pol, saved, &claim)
	turn := message.Turn{Message: env.Message, Key: string(claim.Key), Attempt: stored.Attempts}
	_, _ = p.run(p.work, claim, turn, pol, env.Accepted, func(ctx context.Context, c idempotency.Claim, err error) {
		p.retry(ctx, c, stored, pol, err) // and nobody waits for the answer
	})
}

var (
	errNoRoute = errors.New("gateway: no such route in this replica's configuration")
	errDied    = errors.New("gateway: the replica that ran the message is gone")
)

// retry gives a message back that did not run to its end: for another attempt
// or, where there is none left, as dead. An attempt that ended for reasons that
// are not the message's own counts as none.
func (p *Pipeline) retry(ctx context.Context, c idempotency.Claim, stored *idempotency.Stored, pol message.Policy, err error) {
	class, _ := ending(ctx, err)
	r := idempotency.Retry{Cause: class}
	maxAttempts := defaultMaxAttempts
	if pol.Accept != nil {
		maxAttempts = pol.Accept.MaxAttempts
	}
	switch class {
	case turnLost: // who has it now sees to it
		return
	case turnDrained:
		r.Uncounted = true
		p.metrics.handedOver.Inc()
	case turnBusy, turnUnavailable:
		r.Uncounted, r.After = true, unavailablePause
	default:
		r.Cause = causeOf(class, err)
		switch {
		case isRefused(err):
			p.bury(ctx, c, pol.Route, deadRefused, err)
			return
		case stored.Attempts >= maxAttempts:
			p.bury(ctx, c, pol.Route, deadAttempts, err)
			return
		}
		r.After = max(backoff(stored.Attempts), askedPause(err))
		p.metrics.retries.Inc()
	}
	err = errors.Join(err, p.settled(staleRetry, func() error { return p.taker.inbox.Retry(context.WithoutCancel(ctx), c, r) }))
	p.log.Info("message waits for another attempt", "route", pol.Route, "key", string(c.Key),
		"reason", r.Cause, "attempt", stored.Attempts, "counts", !r.Uncounted, "after", r.After.String(), "error", err)
}

// defaultMaxAttempts is for a message whose route is not known here.
const defaultMaxAttempts = 5

// backoff is the pause behind attempt n: one second, four times as long each
// time, at most five minutes, ± 20 %, so that what failed together does not come
// again together.
func backoff(n int) time.Duration {
	const longest = 5 * time.Minute
	pause := time.Second
	for ; n > 1 && pause < longest; n-- {
		pause *= 4
	}
	pause = min(pause, longest)
	return pause*4/5 + rand.N(pause*2/5)
}

// askedPause is the time for which the other side wants to be left alone.
func askedPause(err error) time.Duration {
	if e, ok := errors.AsType[*agent.Error](err); ok {
		return e.RetryAfter
	}
	if e, ok := errors.AsType[*platform.SendError](err); ok {
		return e.RetryAfter
	}
	return 0
}

// isRefused reports whether another attempt would fail alike.
func isRefused(err error) bool {
	if e, ok := errors.AsType[*platform.SendError](err); ok {
		return e.Refused
	}
	return errors.Is(err, agent.ErrRefused)
}

// causeOf names the class of a failure in the words of the counters: it is
// stored and shown, and the error itself may name what nobody should read.
func causeOf(class string, err error) string {
	if errors.Is(err, errNoRoute) {
		return noRoute
	}
	if errors.Is(err, errDied) {
		return ""
	}
	if e, ok := errors.AsType[*agent.Error](err); ok {
		return class + "/" + string(e.Kind)
	}
	if errors.Is(err, errSend) {
		return class + "/send"
	}
	return class
}

// bury makes a message dead.
func (p *Pipeline) bury(ctx context.Context, c idempotency.Claim, route, reason string, why error) {
	cause := reason
	if why != nil && reason != deadUnreadable {
		class, _ := ending(ctx, why)
		if of := causeOf(class, why); of != "" {
			cause += ": " + of
		}
	}
	err := p.settled(staleBury, func() error { return p.taker.inbox.Bury(context.WithoutCancel(ctx), c, cause) })
	if err == nil {
		p.noteDead(c.Key, route, reason, why)
	}
}

// noteDead counts a dead message and says why: nobody else will.
func (p *Pipeline) noteDead(key idempotency.Key, route, reason string, why error) {
	p.metrics.dead.WithLabelValues(reason).Inc()
	p.log.Warn("message is dead: it is kept, and runs again only by gateway messages replay", "route", route, "key", string(key), "reason", reason, "error", why)
}

// settled gives a message back. What the store did not hear ends with the lease.
func (p *Pipeline) settled(operation string, do func() error) error {
	err := do()
	if errors.Is(err, idempotency.ErrNotOwner) {
		p.metrics.stale.WithLabelValues(operation).Inc()
	} else if err != nil {
		p.log.Error("stored message could not be given back; it is taken again when its lease is over at the latest", "error", err)
	}
	return err
}
