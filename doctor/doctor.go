// Package doctor makes the checks of `gateway doctor`: it looks at what the
// server would use, with the server's own loader and stores, and says what is
// wrong and what to do. Except for Fix, Prove and the script check, which use
// throw-away keys, it changes nothing.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
)

// The ids of the checks, in their order. Scripts compare them.
const (
	CheckFix              = "fix" // only with Fix
	CheckGateway          = "gateway"
	CheckConfig           = "config"
	CheckSecrets          = "secrets"
	CheckPort             = "port"
	CheckStateDir         = "state_dir"
	CheckFileSystem       = "filesystem"
	CheckDatabase         = "database"
	CheckRedis            = "redis"
	CheckRedisVersion     = "redis_version"
	CheckRedisRole        = "redis_role"
	CheckRedisScripts     = "redis_scripts"
	CheckRedisEviction    = "redis_eviction"
	CheckRedisPersistence = "redis_persistence"
	CheckRedisClock       = "redis_clock"
	CheckRedisPrefix      = "redis_prefix"
	CheckReplicas         = "replicas"
	CheckClocks           = "clocks"
	CheckFailover         = "failover"
	CheckTurns            = "turns"
	CheckTimeouts         = "timeouts"
	CheckFreshness        = "freshness"
	CheckAuthentication   = "authentication"
	CheckProve            = "prove" // only with Prove
)

// afterConfig are the checks that need a configuration.
var afterConfig = slices.Concat([]string{CheckSecrets, CheckPort, CheckStateDir, CheckFileSystem, CheckDatabase, CheckRedis},
	redisLooks, []string{CheckReplicas, CheckClocks, CheckFailover, CheckTurns, CheckTimeouts, CheckFreshness, CheckAuthentication})

// DatabaseName is the file in the state directory that holds claims.
const DatabaseName = "gateway.db"

// Backends are the looks at the real things that a check needs. The caller
// chooses the drivers.
type Backends struct {
	// Health asks a running gateway what it says of itself.
	Health func(ctx context.Context, url string, token secret.String) (health.Report, error)
	// Prove has a running gateway make one claim of a throw-away key.
	Prove func(ctx context.Context, url string, token secret.String, key string) (won bool, replica string, err error)
	// FileSystem returns the kind of the file system that holds a directory, if
	// it is one without shared memory.
	FileSystem func(dir string) (unshared string, err error)
	// Database looks at an existing file without changing it. The class of
	// the error is what the remedy depends on, in the words of /health.
	Database func(ctx context.Context, path string) (class string, err error)
	// Redis connects. The error's class tells trouble that heals from trouble
	// that needs a person.
	Redis func(ctx context.Context, cfg redisconf.Config) (Redis, error)
	// Store opens the configured store itself, without a fallback.
	Store func(ctx context.Context, cfg config.Config) (idempotency.Store, error)
}

// Doctor makes the checks on one configuration file.
type Doctor struct {
	Path     string // of the file; empty: the embedded default
	Env      config.Env
	URLs     []string // of running gateways; none: where the configuration listens
	Backends Backends
	Now      func() time.Time
}

// Check makes every check. A check that cannot be made says so and why.
func (d *Doctor) Check(ctx context.Context) []health.Check {
	source := d.source()
	cfg, err := config.Load(d.Path, d.Env)
	if err != nil {
		if checks := d.checkFromOutside(ctx, err); checks != nil {
			return checks
		}
		checks := []health.Check{d.unconfigured(ctx), {
			ID: CheckConfig, Status: health.CheckFail, Source: source, Detail: err.Error(),
			Hint: configHint(err),
		}}
		for _, id := range afterConfig {
			checks = append(checks, skipped(id, source, "the configuration cannot be loaded"))
		}
		return checks
	}
	running := d.ask(ctx, cfg)
	checks := []health.Check{running.check(cfg), {
		ID: CheckConfig, Status: health.CheckOK, Source: source,
		Detail: fmt.Sprintf("valid: %s, %s, claims in %s", plural(len(cfg.Hooks.Hooks), "hook"), plural(len(cfg.Agents), "agent"), cfg.Hooks.Idempotency.StoreBackend),
	}}
	dir, database := stateDir(cfg.Gateway.StateDir), d.database(ctx, cfg)
	checks = append(checks, secrets(cfg, source), d.port(ctx, cfg.Gateway), dir, d.fileSystem(cfg), database)
	checks = append(checks, d.redis(ctx, cfg)...)
	return append(checks, running.replicas(cfg, source), running.clocks(cfg), running.failover(cfg, dir, database),
		turns(cfg, source), timeouts(cfg, source), freshness(cfg, source), authentication(cfg, source))
}

// configHint sends to --fix only who lacks what it makes.
func configHint(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, tokenVariable):
		return "set " + tokenVariable + ", or let gateway doctor --fix make a token"
	case strings.Contains(text, "gateway.auth_token: is required"):
		return "write auth_token: ${" + tokenVariable + "} into the section gateway, and let gateway doctor --fix make a token"
	}
	return "correct the file; gateway.example.yaml shows every key"
}

func (d *Doctor) source() string {
	if d.Path == "" {
		return "embedded default"
	}
	return d.Path
}

func skipped(id, source, why string) health.Check {
	return health.Check{ID: id, Status: health.CheckSkipped, Source: source, Detail: why}
}

// finding is a check to which several places contribute: the worst of them
// decides.
type finding struct {
	health.Check
	details, hints []string
}

func newFinding(id, source string) *finding {
	return &finding{Check: health.Check{ID: id, Source: source, Status: health.CheckOK}}
}

func (f *finding) note(format string, args ...any) {
	f.details = append(f.details, fmt.Sprintf(format, args...))
}

func (f *finding) warn(hint, format string, args ...any) {
	f.add(health.CheckWarn, hint, format, args...)
}
func (f *finding) fail(hint, format string, args ...any) {
	f.add(health.CheckFail, hint, format, args...)
}

func (f *finding) add(status health.CheckStatus, hint, format string, args ...any) {
	f.note(format, args...)
	if f.Status != health.CheckFail {
		f.Status = status
	}
	if !slices.Contains(f.hints, hint) {
		f.hints = append(f.hints, hint)
	}
}

// done returns the check; ok is what to say where nothing was found.
func (f *finding) done(ok string) health.Check {
	if len(f.details) == 0 {
		f.details = []string{ok}
	}
	f.Detail, f.Hint = strings.Join(f.details, "\n"), strings.Join(f.hints, "; ")
	return f.Check
}

// Failed reports whether any check failed or, with strict, warned.
func Failed(checks []health.Check, strict bool) bool {
	return slices.ContainsFunc(checks, func(c health.Check) bool {
		return c.Status == health.CheckFail || strict && c.Status == health.CheckWarn
	})
}

// Text returns the checks for people, one per line, hints below. Checks that
// are skipped in a row for one reason share a line.
func Text(checks []health.Check) string {
	var b strings.Builder
	for i := 0; i < len(checks); {
		c, n := checks[i], 1
		for c.Status == health.CheckSkipped && i+n < len(checks) && checks[i+n].Status == c.Status && checks[i+n].Detail == c.Detail {
			n++
		}
		if n > 1 {
			c.ID, c.Detail = plural(n, "check"), c.Detail+": "+ids(checks[i:i+n])
		}
		detail := strings.ReplaceAll(c.Detail, "\n", "\n"+strings.Repeat(" ", 27))
		fmt.Fprintf(&b, "%-8s %-17s %s\n", c.Status, c.ID, detail)
		if c.Hint != "" {
			fmt.Fprintf(&b, "%-26s → %s\n", "", c.Hint)
		}
		i += n
	}
	return b.String()
}

func ids(checks []health.Check) string {
	var all []string
	for _, c := range checks {
		all = append(all, c.ID)
	}
	return strings.Join(all, ", ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
