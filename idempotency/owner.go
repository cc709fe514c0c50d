package idempotency

import (
	"slices"
	"strings"

	"github.com/oncegate/oncegate/health"
)

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
	case best.up && f.owing():
		f.cfg.Health.Degrade(health.Owner{
			Kind: health.KindGateway, ID: ownerID, State: health.Stale, Class: "unsettled", Reason: reasonBehind(best.Name),
			RetryHint: "the local store holds messages of an outage that cannot be read now; run gateway doctor, they are carried as soon as they can be",
		})
		return
	case best.up && len(f.behind) > 0:
		f.cfg.Health.Degrade(health.Owner{
			Kind: health.KindGateway, ID: ownerID, State: health.Stale, Class: "unsettled", Reason: reasonRedisStale,
			RetryHint: "other replicas still carry messages of an outage into redis, look at their /health: " + strings.Join(f.behind, ", "),
		})
		return
	case best.up:
		f.cfg.Health.Clear(health.KindGateway, ownerID)
		return
	case best.err == nil: // still being opened by Start
		return
	}
	o := health.Owner{Kind: health.KindGateway, ID: ownerID, State: health.Cold, Class: best.class(best.err)}
	serving := f.firstUp("")
	switch {
	case best.Name != BackendRedis, serving != nil && serving.Name == BackendMemory:
		o.Reason = reasonMemory
	case best.worked:
		o.State, o.Reason = health.Stale, reasonRedisStale
	default:
		o.Reason = reasonRedisCold
	}
	o.RetryHint = hint(best.Name, o.Class) + "; it is tried again by itself"
	if serving == nil {
		o.RetryHint = "messages are refused with 503 until the store is back; " + o.RetryHint
	}
	o.Detail, o.Lasting = best.err.Error(), best.Lasting != nil && best.Lasting(o.Class)
	f.cfg.Health.Degrade(o)
}

// hint says what to do about trouble of a class with a store.
func hint(store, class string) string {
	if store == BackendRedis {
		return health.RedisHint(class)
	}
	return health.FileHint("gateway.db", class)
}

// owing reports whether a weaker store that cannot be read may hold messages
// that the configured one lacks. The caller holds mu.
func (f *Failover) owing() bool {
	return slices.ContainsFunc(f.tiers[1:], func(t *tier) bool { return !t.up && t.store() != nil && t.hasRecords() })
}

// reasonBehind is the sentence for messages that the configured store lacks.
func reasonBehind(store string) string {
	if store == BackendRedis {
		return reasonRedisStale
	}
	return reasonMemory
}

// seen takes what the replicas say of themselves. As long as a living one has
// messages that only it knows, a redelivery to this one may run again.
func (f *Failover) seen(own health.Replica, all []health.Replica) {
	var behind []string
	for _, r := range all {
		if r.ID != own.ID && r.Unsettled > 0 {
			behind = append(behind, r.ID)
		}
	}
	slices.Sort(behind)
	f.mu.Lock()
	f.behind = behind
	f.report()
	f.mu.Unlock()
	if f.cfg.Seen != nil {
		f.cfg.Seen(own, all)
	}
}
