// Package doctor makes the checks of `gateway doctor`: it looks at what the
// server would use, with the server's own loader and stores, and says what is
// wrong and what to do. Except for Prove and the script check, which use
// throw-away keys, it changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redisconf"
)

// The ids of the checks, in their order. Scripts compare them.
const (
	CheckConfig       = "config"
	CheckStateDir     = "state_dir"
	CheckDatabase     = "database"
	CheckRedis        = "redis"
	CheckRedisScripts = "redis_scripts"
	CheckProve        = "prove"
)

// DatabaseName is the file in the state directory that holds claims.
const DatabaseName = "gateway.db"

// Backends are the looks at real stores that a check needs. The caller chooses
// the drivers.
type Backends struct {
	// Database looks at an existing file without changing it. The class of
	// the error is what the remedy depends on, in the words of /health.
	Database func(ctx context.Context, path string) (class string, err error)
	// Redis connects. The error's class tells trouble that heals from trouble
	// that needs a person.
	Redis func(ctx context.Context, cfg redisconf.Config) (Redis, error)
	// Store opens the configured store itself, without a fallback.
	Store func(ctx context.Context, cfg config.Config) (idempotency.Store, error)
}

// Redis is a server that was reached.
type Redis interface {
	Version(ctx context.Context) (string, error)
	Ping(ctx context.Context) error         // a real write and read
	CheckScripts(ctx context.Context) error // the real scripts on a throw-away key
	Class(err error) string
	Close() error
}

// Doctor makes the checks on one configuration file.
type Doctor struct {
	Path     string // of the file; empty: the embedded default
	Env      config.Env
	Backends Backends
}

// Check makes every check. A check that cannot be made because another one
// failed is skipped and says so.
func (d *Doctor) Check(ctx context.Context) []health.Check {
	source := d.Path
	if source == "" {
		source = "embedded default"
	}
	cfg, err := config.Load(d.Path, d.Env)
	if err != nil {
		checks := []health.Check{{
			ID: CheckConfig, Status: health.CheckFail, Source: source, Detail: err.Error(),
			Hint: "correct the file; gateway.example.yaml shows every key",
		}}
		for _, id := range []string{CheckStateDir, CheckDatabase, CheckRedis, CheckRedisScripts} {
			checks = append(checks, skipped(id, source, "the configuration cannot be loaded"))
		}
		return checks
	}
	checks := []health.Check{{
		ID: CheckConfig, Status: health.CheckOK, Source: source,
		Detail: fmt.Sprintf("valid: %d hooks, %d agents, claims in %s", len(cfg.Hooks.Hooks), len(cfg.Agents), cfg.Hooks.Idempotency.StoreBackend),
	}}
	checks = append(checks, stateDir(cfg.Gateway.StateDir), d.database(ctx, cfg))
	return append(checks, d.redis(ctx, cfg)...)
}

func skipped(id, source, why string) health.Check {
	return health.Check{ID: id, Status: health.CheckSkipped, Source: source, Detail: why}
}

// stateDir checks that the directory, or the one it will be made in, can be
// written.
func stateDir(dir string) health.Check {
	c := health.Check{ID: CheckStateDir, Source: dir}
	fail := func(detail, hint string) health.Check {
		c.Status, c.Detail, c.Hint = health.CheckFail, detail, hint
		return c
	}
	const hint = "change its owner, or set gateway.state_dir to a directory that the gateway's user may write"
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		parent := existingParent(dir)
		if unix.Access(parent, unix.W_OK) != nil {
			return fail(fmt.Sprintf("%s does not exist and %s cannot be written", dir, parent), hint)
		}
		c.Status, c.Detail = health.CheckOK, dir+" does not exist yet; the gateway makes it when it starts"
	case err != nil:
		return fail(err.Error(), hint)
	case !info.IsDir():
		return fail(dir+" is not a directory", "move it away, or set gateway.state_dir to a directory")
	case unix.Access(dir, unix.W_OK) != nil:
		return fail(dir+" cannot be written", hint)
	default:
		c.Status, c.Detail = health.CheckOK, dir+" can be written"
	}
	return c
}

func existingParent(dir string) string {
	for {
		parent := filepath.Dir(dir)
		if _, err := os.Stat(parent); err == nil || parent == dir {
			return parent
		}
		dir = parent
	}
}

// database checks the file that holds claims, or takes them while Redis is
// away.
func (d *Doctor) database(ctx context.Context, cfg config.Config) health.Check {
	path := filepath.Join(cfg.Gateway.StateDir, DatabaseName)
	c := health.Check{ID: CheckDatabase, Source: path}
	if cfg.Hooks.Idempotency.StoreBackend == idempotency.BackendMemory {
		return skipped(c.ID, path, "store_backend is memory; no file is used")
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		c.Status, c.Detail = health.CheckOK, path+" does not exist yet; the gateway makes it when it starts"
		return c
	}
	if class, err := d.Backends.Database(ctx, path); err != nil {
		c.Status, c.Detail, c.Hint = health.CheckFail, class+": "+err.Error(), databaseHint(class)
		return c
	}
	c.Status, c.Detail = health.CheckOK, path+" is a sound database"
	return c
}

// databaseHint sends nobody to move away a file that is sound: its records
// would be forgotten for nothing.
func databaseHint(class string) string {
	switch class {
	case "corrupt":
		return "stop the gateway, then restore the file from a backup, or move it away to begin with an empty one; what only it recorded is forgotten then"
	case "locked":
		return "end the other process that holds the file; the file itself is sound"
	case "not_writable":
		return "let the gateway's user read and write the file and its directory"
	case "full":
		return "free some space on the file's disk"
	}
	return "keep the file and look at its disk; the system's log may say more"
}

// redis checks the server that replicas share, and the scripts that settle
// claims in it.
func (d *Doctor) redis(ctx context.Context, cfg config.Config) []health.Check {
	const source = "gateway.push.redis"
	settings := cfg.Gateway.Push.Redis
	if !settings.Configured() {
		const why = "gateway.push.redis is not configured"
		return []health.Check{skipped(CheckRedis, source, why), skipped(CheckRedisScripts, source, why)}
	}
	reach := health.Check{ID: CheckRedis, Source: source}
	server, err := d.Backends.Redis(ctx, settings)
	var version string
	if err == nil {
		defer func() { _ = server.Close() }() // nothing was left to send
		version, err = server.Version(ctx)
	}
	if err == nil {
		err = server.Ping(ctx)
	}
	if err != nil {
		reach.Status, reach.Detail = health.CheckFail, err.Error()
		reach.Hint = "start Redis, or correct gateway.push.redis"
		if server != nil {
			class := server.Class(err)
			reach.Detail, reach.Hint = class+": "+err.Error(), redisHint(class)
		}
		return []health.Check{reach, skipped(CheckRedisScripts, source, "Redis cannot be used")}
	}
	reach.Status = health.CheckOK
	reach.Detail = fmt.Sprintf("Redis %s takes writes; every key begins with %q", version, settings.Prefix)

	scripts := health.Check{ID: CheckRedisScripts, Source: source, Status: health.CheckOK, Detail: "the claim scripts run"}
	if err := server.CheckScripts(ctx); err != nil {
		scripts.Status, scripts.Detail = health.CheckWarn, "EVALSHA is refused: "+err.Error()
		scripts.Hint = "allow the commands EVALSHA and EVAL for this user; until then claims are settled with WATCH and MULTI, which costs three round trips"
	}
	return []health.Check{reach, scripts}
}

func redisHint(class string) string {
	switch class {
	case "auth":
		return "correct the user and password in gateway.push.redis"
	case "permission":
		return "allow the user the commands that docs/operations.md lists"
	case "tls":
		return "check gateway.push.redis.tls: the authority in ca_file and the server_name"
	case "unreachable":
		return "start Redis, or correct the address in gateway.push.redis"
	}
	return "look at the Redis server; it refuses writes"
}

// Failed reports whether any check failed.
func Failed(checks []health.Check) bool {
	for _, c := range checks {
		if c.Status == health.CheckFail {
			return true
		}
	}
	return false
}

// Text returns the checks for people, one per line, hints below.
func Text(checks []health.Check) string {
	var b strings.Builder
	for _, c := range checks {
		detail := strings.ReplaceAll(c.Detail, "\n", "\n"+strings.Repeat(" ", 24))
		fmt.Fprintf(&b, "%-8s %-14s %s\n", c.Status, c.ID, detail)
		if c.Hint != "" {
			fmt.Fprintf(&b, "%-23s → %s\n", "", c.Hint)
		}
	}
	return b.String()
}
