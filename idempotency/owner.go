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
	o.RetryHint = Hint(best.Name, o.Class) + "; it is tried again by itself"
	if serving == nil {
		o.RetryHint = "messages are refused with 503 until the store is back; " + o.RetryHint
	}
	o.Detail, o.Lasting = best.err.Error(), best.Lasting != nil && best.Lasting(o.Class)
	f.cfg.Health.Degrade(o)
}

// Hint says what to do about trouble of a class with a store, in the words of
// /health and doctor alike. It sends nobody to move away a file that is sound.
func Hint(store, class string) string {
	hints := map[string]string{
		"unreachable":  "start Redis, or correct its address in gateway.push.redis; if it runs, see whether it answers, and whether that port speaks TLS",
		"auth":         "correct the user and password in gateway.push.redis",
		"permission":   "allow the user the keys and commands that docs/operations.md lists under Redis",
		"tls":          "correct gateway.push.redis.tls: the authority in ca_file, and server_name",
		"readonly":     "a replica answers: name the primary in gateway.push.redis, or wait for the failover to end",
		"loading":      "wait until Redis has read its data",
		"oom":          "raise maxmemory of Redis, or free some of it",
		"misconf":      "repair the disk that Redis saves to; its log says more",
		"emptied":      "wait: what this replica knows is being written into it; see why Redis lost its data",
		"corrupt":      "stop the gateway, then restore gateway.db in gateway.state_dir from a backup, or move it away to begin with an empty one",
		"locked":       "end the process that holds gateway.db in gateway.state_dir",
		"full":         "free space on the disk of gateway.state_dir",
		"not_writable": "make gateway.state_dir and gateway.db writable for the gateway's user, or choose another directory",
		"io":           "look at the disk of gateway.state_dir",
		"replaced":     "wait: the file that is at the path of gateway.db now is being opened",
	}
	if store == BackendSQLite && class == "readonly" {
		return "mount the disk of gateway.state_dir for writing, or choose another directory"
	}
	if h, ok := hints[class]; ok {
		return h
	}
	if store == BackendRedis {
		return "look at the log of Redis: it refuses what the gateway needs"
	}
	return "keep gateway.db and look at its disk; the system's log may say more"
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
