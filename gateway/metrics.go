package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/agent"
)

// Metrics are the pipeline's counters. docs/operations.md lists them.
type Metrics struct {
	claims       *prometheus.CounterVec
	mismatches   prometheus.Counter
	failOpen     prometheus.Counter
	slipped      prometheus.Counter
	uncarried    prometheus.Counter
	lost         prometheus.Counter
	unrecorded   prometheus.Counter
	takenOver    prometheus.Counter
	stale        *prometheus.CounterVec
	turns        *prometheus.CounterVec
	turnSeconds  *prometheus.HistogramVec
	storeSeconds *prometheus.HistogramVec
	lockWait     prometheus.Histogram
	locksHeld    prometheus.Gauge
	locksLost    prometheus.Counter
	lockless     prometheus.Counter
	agentErrors  *prometheus.CounterVec
	forgetful    prometheus.Counter
	queueWait    prometheus.Histogram
	waiting      prometheus.Gauge
	running      prometheus.Gauge

	stored       prometheus.Gauge
	due          prometheus.Gauge
	retries      prometheus.Counter
	handedOver   prometheus.Counter
	dead         *prometheus.CounterVec
	sends        *prometheus.CounterVec
	unknownSends *prometheus.CounterVec

	reserveSeconds, recordSeconds, releaseSeconds, takeSeconds prometheus.Observer
}

// The label values of claims: what a delivery met.
const (
	claimNew       = "new"
	claimAccepted  = "accepted"
	claimInFlight  = "in_flight"
	claimProcessed = "processed"
	claimError     = "error"
)

// The label values of turns: how a run ended.
const (
	turnDone    = "done"
	turnFailed  = "failed"
	turnTimeout = "timeout"
	turnPanic   = "panic"
	turnBusy    = "busy"
	turnDrained = "drained"
	turnLost    = "lost"

	turnLockLost    = "lock_lost"
	turnUnavailable = "unavailable"
)

var turnOutcomes = []string{
	turnDone, turnFailed, turnTimeout, turnPanic, turnBusy, turnDrained, turnLost, turnLockLost, turnUnavailable,
}

// The label values of stale writes: what was refused.
const (
	staleRecord  = "record"
	staleRelease = "release"
	staleHistory = "history"
	staleRetry   = "retry"
	staleBury    = "bury"
)

// The label values of sends: how one attempt ended that is known to have.
const (
	sendDone   = "done"
	sendFailed = "failed"
)

// The label values of unknown sends: what was done about them.
const (
	sendSameKey = "same_key" // sent again under the key by which the platform knows it
	sendAgain   = "resent"   // sent again, and perhaps twice
	sendDropped = "dropped"  // not sent again, and perhaps not at all
)

// NewMetrics registers the pipeline's metrics, every label value from zero.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		reg.MustRegister(c)
		for _, v := range values {
			c.WithLabelValues(v)
		}
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	short := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .3, 1, 5}
	long := []float64{.001, .01, .1, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	m := &Metrics{
		claims: counters("gateway_claims_total", "Deliveries by what their claim met.", "outcome",
			claimNew, claimAccepted, claimInFlight, claimProcessed, claimError),
		mismatches: counter("gateway_fingerprint_mismatches_total", "Deliveries under a known key with other content; none of them ran."),
		failOpen:   counter("gateway_fail_open_claims_total", "Claims made in a weaker store than the configured one."),
		slipped:    counter("gateway_slipped_duplicates_total", "Messages found to have run twice when a store came back."),
		uncarried:  counter("gateway_uncarried_claims_total", "Claims of an outage that can be carried into no other store."),
		lost:       counter("gateway_lost_claims_total", "Claims that went to another owner during their run."),
		unrecorded: counter("gateway_unrecorded_runs_total", "Runs that succeeded and could be recorded in no store."),
		takenOver:  counter("gateway_takeovers_total", "Claims taken over from a dead owner before their lease ended."),
		stale: counters("gateway_stale_writes_total", "Writes refused because another owner had the claim, or a later turn the session.", "operation",
			staleRecord, staleRelease, staleHistory, staleRetry, staleBury),
		turns:     counters("gateway_turns_total", "Turns by how they ended.", "outcome", turnOutcomes...),
		lockWait:  histogram("gateway_turn_lock_wait_seconds", "Wait for a session's turn lock.", long),
		locksHeld: gauge("gateway_turn_locks_held", "Sessions whose turn lock is held here."),
		locksLost: counter("gateway_lost_turn_locks_total", "Turn locks that went, or may have gone, to another turn while they were held."),
		lockless:  counter("gateway_fail_open_turns_total", "Turns that went on without the configured turn lock."),
		forgetful: counter("gateway_turns_without_history_total", "Turns of a session whose history could not be read or written."),
		queueWait: histogram("gateway_queue_wait_seconds", "Wait for an admission slot.", short),
		waiting:   gauge("gateway_turns_waiting", "Turns that wait for an admission slot."),
		running:   gauge("gateway_turns_running", "Turns that hold an admission slot."),

		stored:     gauge("gateway_stored_messages", "Accepted messages in the store: waiting, running and dead."),
		due:        gauge("gateway_due_messages", "Accepted messages whose time has come and that nobody runs."),
		retries:    counter("gateway_retries_total", "Accepted messages whose run failed and that are tried again."),
		handedOver: counter("gateway_handed_over_messages_total", "Accepted messages left to other replicas by a drain."),
		dead:       counters("gateway_dead_messages_total", "Accepted messages that became dead, by why.", "reason", deadReasons...),
		sends:      counters("gateway_sends_total", "Replies sent through channels, by how that ended.", "outcome", sendDone, sendFailed),
		unknownSends: counters("gateway_unknown_sends_total", "Replies that may have been sent already, by what was done.", "resolved",
			sendSameKey, sendAgain, sendDropped),
	}
	m.turnSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "gateway_turn_seconds", Help: "Duration of agent runs and forwards by how they ended.", Buckets: long,
	}, []string{"outcome"})
	reg.MustRegister(m.turnSeconds)
	for _, outcome := range turnOutcomes {
		m.turnSeconds.WithLabelValues(outcome)
	}
	kinds := make([]string, len(agent.Kinds))
	for i, kind := range agent.Kinds {
		kinds[i] = string(kind)
	}
	m.agentErrors = counters("gateway_agent_errors_total", "Agent runs that failed, by how.", "kind", kinds...)
	m.storeSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "gateway_store_seconds", Help: "Latency of the claim store by operation.", Buckets: short,
	}, []string{"operation"})
	reg.MustRegister(m.storeSeconds)
	m.reserveSeconds = m.storeSeconds.WithLabelValues("reserve")
	m.recordSeconds = m.storeSeconds.WithLabelValues("record")
	m.releaseSeconds = m.storeSeconds.WithLabelValues("release")
	m.takeSeconds = m.storeSeconds.WithLabelValues("take")
	return m
}

// FailOpen counts a claim made in a weaker store than the configured one.
func (m *Metrics) FailOpen() { m.failOpen.Inc() }

// Slipped counts a message that ran twice.
func (m *Metrics) Slipped() { m.slipped.Inc() }

// LockLost counts a turn lock that was lost while it was held.
func (m *Metrics) LockLost() { m.locksLost.Inc() }

// FailOpenTurn counts a turn that went on without the configured turn lock.
func (m *Metrics) FailOpenTurn() { m.lockless.Inc() }

// TakenOver counts a claim that was taken over before its lease ended.
func (m *Metrics) TakenOver() { m.takenOver.Inc() }

// Uncarried counts a claim of an outage that can be carried into no other store.
func (m *Metrics) Uncarried() { m.uncarried.Inc() }

func since(o prometheus.Observer, start time.Time) { o.Observe(time.Since(start).Seconds()) }
