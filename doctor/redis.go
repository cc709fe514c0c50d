package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/turnlock"
)

// Redis is a server that was reached. The first four are what the gateway itself
// does; what a managed server refuses of the others is a check that cannot be
// made, not one that fails.
type Redis interface {
	Ping(ctx context.Context) error                      // a real write and read
	CheckScripts(ctx context.Context) error              // the real scripts of claims on a throw-away key
	CheckTurnLock(ctx context.Context) error             // a turn lock of its own, with a wake-up
	CheckSessions(ctx context.Context) error             // a turn of a throw-away session
	Info(ctx context.Context) (map[string]string, error) // the fields of INFO
	Time(ctx context.Context) (time.Time, error)
	Keys(ctx context.Context, prefix string, limit int) ([]string, error) // some keys that begin with prefix
	Class(err error) string
	Close() error
}

// redisSource is what the checks of Redis look at.
const redisSource = "gateway.push.redis"

// redisLooks are the checks of a server that takes writes.
var redisLooks = []string{CheckRedisVersion, CheckRedisRole, CheckRedisScripts, CheckRedisEviction, CheckRedisPersistence, CheckRedisClock, CheckRedisPrefix}

// redis checks the server that replicas share.
func (d *Doctor) redis(ctx context.Context, cfg config.Config) []health.Check {
	settings := cfg.Gateway.Push.Redis
	if !settings.Configured() {
		return skipRedis("gateway.push.redis is not configured", CheckRedis)
	}
	if cfg.Hooks.Idempotency.StoreBackend != idempotency.BackendRedis && cfg.Gateway.TurnLock.Backend != turnlock.BackendRedis && cfg.Sessions.Backend != agent.BackendRedis {
		return skipRedis("nothing is kept in gateway.push.redis: neither claims nor turn locks nor sessions", CheckRedis)
	}
	server, err := d.Backends.Redis(ctx, settings)
	if err != nil {
		return append([]health.Check{{
			ID: CheckRedis, Status: health.CheckFail, Source: redisSource, Detail: err.Error(), Hint: "start Redis, or correct gateway.push.redis",
		}}, skipRedis("Redis cannot be used")...)
	}
	defer func() { _ = server.Close() }() // nothing was left to send
	if err := server.Ping(ctx); err != nil {
		class := server.Class(err)
		checks := append([]health.Check{{
			ID: CheckRedis, Status: health.CheckFail, Source: redisSource, Detail: class + ": " + redisDetail(err), Hint: redisHint(class, err),
		}}, skipRedis("Redis cannot be used")...)
		if i := 1 + slices.Index(redisLooks, CheckRedisRole); class == "readonly" {
			checks[i] = fromInfo(ctx, server, CheckRedisRole, settings) // which says why
		}
		return checks
	}
	reached := health.Check{ID: CheckRedis, Source: redisSource, Status: health.CheckOK, Detail: fmt.Sprintf("takes writes; every key begins with %q", settings.Prefix)}
	return []health.Check{
		reached, fromInfo(ctx, server, CheckRedisVersion, settings), fromInfo(ctx, server, CheckRedisRole, settings), redisScripts(ctx, server, cfg),
		fromInfo(ctx, server, CheckRedisEviction, settings), fromInfo(ctx, server, CheckRedisPersistence, settings), d.redisClock(ctx, server), redisPrefix(ctx, server, settings.Prefix),
	}
}

func skipRedis(why string, before ...string) []health.Check {
	var checks []health.Check
	for _, id := range append(before, redisLooks...) {
		checks = append(checks, skipped(id, redisSource, why))
	}
	return checks
}

// clusterWord returns the word by which a node of a cluster says that the
// client does not know of the others, or "".
func clusterWord(err error) string {
	for _, word := range []string{"MOVED", "CROSSSLOT"} {
		if strings.Contains(err.Error(), word+" ") {
			return word
		}
	}
	return ""
}

// clusterHint is for a client that takes a node of a cluster for a whole server.
const clusterHint = "name the cluster's nodes in gateway.push.redis.cluster, instead of url or host"

// redisDetail returns the server's words, except for those that name a node.
func redisDetail(err error) string {
	if word := clusterWord(err); word != "" {
		return word + ": the server is a node of a cluster, and gateway.push.redis takes it for a whole server"
	}
	return err.Error()
}

func redisHint(class string, err error) string {
	if clusterWord(err) != "" {
		return clusterHint
	}
	return health.RedisHint(class)
}

// infoChecks read the fields of INFO.
var infoChecks = map[string]func(info map[string]string, settings redisconf.Config) health.Check{
	CheckRedisVersion:     redisVersion,
	CheckRedisRole:        redisRole,
	CheckRedisEviction:    redisEviction,
	CheckRedisPersistence: redisPersistence,
}

func fromInfo(ctx context.Context, server Redis, id string, settings redisconf.Config) health.Check {
	info, err := server.Info(ctx)
	if err != nil {
		return refused(id, "INFO", err)
	}
	return infoChecks[id](info, settings)
}

// refused is a check that the server does not let this user make.
func refused(id, what string, err error) health.Check {
	return skipped(id, redisSource, fmt.Sprintf("%s is refused: %v", what, err))
}

func redisVersion(info map[string]string, _ redisconf.Config) health.Check {
	version := info["redis_version"]
	c := health.Check{ID: CheckRedisVersion, Source: redisSource, Status: health.CheckOK, Detail: "Redis " + version}
	major, _, _ := strings.Cut(version, ".")
	switch n, err := strconv.Atoi(major); {
	case err != nil:
		return skipped(c.ID, redisSource, fmt.Sprintf("INFO says no version that can be read: %q", version))
	case n < 7:
		c.Status, c.Detail = health.CheckWarn, c.Detail+" answers each duplicate in two round trips instead of one"
		c.Hint = "use Redis 7 or later"
	}
	return c
}

// redisRole wants a primary. Any node of a cluster may be the one that answers
// INFO; the client knows which of them takes a key.
func redisRole(info map[string]string, settings redisconf.Config) health.Check {
	c := health.Check{ID: CheckRedisRole, Source: redisSource, Status: health.CheckOK, Detail: "is a primary"}
	clustered := info["cluster_enabled"] == "1"
	switch role := info["role"]; {
	case clustered && settings.Cluster != nil:
		c.Detail = "is a cluster, whose primaries take the writes"
	case clustered:
		c.Status, c.Detail = health.CheckWarn, "is a node of a cluster: it refuses the keys that other nodes hold"
		c.Hint = clusterHint
	case role == "master":
	case role == "slave":
		c.Status, c.Detail = health.CheckFail, "is a replica: it takes no claims, or loses those that it takes"
		c.Hint = "set gateway.push.redis to the primary"
	default:
		return skipped(c.ID, redisSource, fmt.Sprintf("INFO says no role that is known: %q", role))
	}
	return c
}

func redisScripts(ctx context.Context, server Redis, cfg config.Config) health.Check {
	c := health.Check{ID: CheckRedisScripts, Source: redisSource, Status: health.CheckOK, Detail: "the claim scripts run"}
	if err := server.CheckScripts(ctx); err != nil {
		c.Status, c.Detail = health.CheckFail, "EVALSHA is refused: "+redisDetail(err)
		c.Hint = "allow the commands EVALSHA and EVAL for this user; until then claims are settled with WATCH and MULTI, which costs three round trips"
		if clusterWord(err) != "" {
			c.Hint = clusterHint
		}
		return c
	}
	for _, use := range []struct {
		configured bool
		works      string
		check      func(context.Context) error
	}{
		{cfg.Gateway.TurnLock.Backend == turnlock.BackendRedis, "the turn lock works", server.CheckTurnLock},
		{cfg.Sessions.Backend == agent.BackendRedis, "sessions can be kept", server.CheckSessions},
	} {
		if !use.configured {
			continue
		}
		if err := use.check(ctx); err != nil {
			c.Status, c.Detail, c.Hint = health.CheckFail, redisDetail(err), redisHint(server.Class(err), err)
			return c
		}
		c.Detail += ", " + use.works
	}
	return c
}

func redisEviction(info map[string]string, _ redisconf.Config) health.Check {
	c := health.Check{ID: CheckRedisEviction, Source: redisSource, Status: health.CheckOK}
	switch policy := info["maxmemory_policy"]; {
	case policy == "":
		return skipped(c.ID, redisSource, "INFO does not say the eviction policy")
	case policy == "noeviction":
		c.Detail = "noeviction: a full server refuses claims instead of forgetting records"
	case info["maxmemory"] == "0":
		c.Detail = policy + " without a maxmemory: nothing is evicted"
	default:
		c.Status, c.Detail = health.CheckWarn, policy+": a full server forgets records, and their messages run again when they are redelivered"
		c.Hint = "set maxmemory-policy noeviction, or give the gateway a server of its own"
	}
	return c
}

func redisPersistence(info map[string]string, _ redisconf.Config) health.Check {
	c := health.Check{ID: CheckRedisPersistence, Source: redisSource, Status: health.CheckOK}
	switch info["aof_enabled"] {
	case "1":
		c.Detail = "the append-only file is on; with appendfsync everysec a crash loses a second"
		if status := info["aof_last_write_status"]; status != "" && status != "ok" {
			c.Status, c.Detail, c.Hint = health.CheckFail, "the append-only file cannot be written", "look at the server's disk and log"
		}
	case "0":
		c.Status = health.CheckWarn
		c.Detail = "the append-only file is off: a restart forgets what the last snapshot lacks, or everything, and those messages run again when they are redelivered"
		c.Hint = "set appendonly yes, or accept that"
	default:
		return skipped(c.ID, redisSource, "INFO does not say whether the append-only file is on")
	}
	return c
}

// clockSkew is how far apart the clocks of this machine and of Redis may be.
const clockSkew = 5 * time.Second

// redisClock compares the clocks: that of this machine decides whether a signed
// time is fresh.
func (d *Doctor) redisClock(ctx context.Context, server Redis) health.Check {
	before := d.Now()
	there, err := server.Time(ctx)
	if err != nil {
		return refused(CheckRedisClock, "TIME", err)
	}
	c := health.Check{ID: CheckRedisClock, Source: redisSource, Status: health.CheckOK}
	took := d.Now().Sub(before)
	skew := there.Sub(before.Add(took / 2))
	c.Detail = "this machine's clock and that of Redis agree within " + clockSkew.String()
	if skew.Abs() > clockSkew+took/2 {
		c.Status, c.Detail = health.CheckWarn, fmt.Sprintf("this machine's clock is %s %s that of Redis", skew.Abs().Round(time.Second), direction(skew))
		c.Hint = "set both clocks by NTP; signed requests are refused, or accepted for too long, by a clock that is wrong"
	}
	return c
}

// families are what the gateway's keys begin with behind the prefix.
var families = []string{
	"hookidem:", "hookmsg:", "replica:", "turnlock:", "turnqueue:", "turnreplicas:", "turnfence:", "session:", "sessionping:",
}

// singles are the gateway's keys that belong to no family.
var singles = []string{"hookmsg", "replicas", "epoch", "sessions"}

// sampled is how many keys redisPrefix looks at.
const sampled = 5000

// redisPrefix looks for keys under the prefix that the gateway would not write:
// those of another environment whose prefix begins with this one, or of
// another program.
func redisPrefix(ctx context.Context, server Redis, prefix string) health.Check {
	keys, err := server.Keys(ctx, prefix, sampled)
	if err != nil {
		return refused(CheckRedisPrefix, "SCAN", err)
	}
	c := health.Check{ID: CheckRedisPrefix, Source: redisSource, Status: health.CheckOK}
	strangers, example := 0, ""
	for _, key := range keys {
		if rest := strings.TrimPrefix(key, prefix); !isOurs(rest) {
			if strangers++; example == "" {
				example, _, _ = strings.Cut(rest, ":")
			}
		}
	}
	c.Detail = fmt.Sprintf("%s under %q looked at, all of them the gateway's", plural(len(keys), "key"), prefix)
	if strangers > 0 {
		c.Status = health.CheckWarn
		c.Detail = fmt.Sprintf("%d of %s under %q are not the gateway's, such as %q", strangers, plural(len(keys), "key"), prefix, prefix+example+":…")
		c.Hint = "another environment or program uses this prefix; give each its own gateway.push.redis.prefix, none the beginning of another"
	}
	return c
}

func isOurs(rest string) bool {
	for _, single := range singles {
		if rest == single {
			return true
		}
	}
	for _, family := range families {
		if strings.HasPrefix(rest, family) {
			return true
		}
	}
	return false
}
