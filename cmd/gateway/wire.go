package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/sqlitedb"
	"github.com/oncegate/oncegate/message"
)

// fileTimeout is the budget of one claim in SQLite: hundreds of ordinary commits,
// and less than a sender waits while another process holds the file.
const fileTimeout = 2 * time.Second

// tiers returns the configured claim store, with the weaker ones that serve
// while it is away behind it.
func tiers(cfg config.Config, replica string, registry *health.Registry, log *slog.Logger) []idempotency.Tier {
	backend := cfg.Hooks.Idempotency.StoreBackend
	redis := idempotency.Tier{
		Name: idempotency.BackendRedis,
		Open: func(context.Context) (idempotency.Store, error) {
			return openWatched(cfg.Gateway.Push.Redis, replica, registry)
		},
		Timeout:  cfg.Hooks.Idempotency.ClaimTimeout,
		Classify: func(err error) string { return string(redisclient.Classify(err)) },
		Lasting:  func(class string) bool { return !redisclient.Class(class).Heals() },

		Heartbeats: true,
	}
	sqlite := idempotency.Tier{
		Name: idempotency.BackendSQLite,
		Open: func(ctx context.Context) (idempotency.Store, error) {
			return openSQLite(ctx, cfg, sqlitestore.Config{Replica: replica, Shadow: backend == idempotency.BackendRedis, Log: log})
		},
		Timeout:  fileTimeout,
		Classify: sqlitedb.Classify,
		Lasting:  sqlitedb.Lasting,
	}
	memory := idempotency.Tier{
		Name:     idempotency.BackendMemory,
		Open:     func(context.Context) (idempotency.Store, error) { return idempotency.NewMemory(time.Now), nil },
		Classify: func(error) string { return "" },
	}
	switch backend {
	case idempotency.BackendRedis:
		return []idempotency.Tier{redis, sqlite, memory}
	case idempotency.BackendSQLite:
		return []idempotency.Tier{sqlite, memory}
	}
	return []idempotency.Tier{memory}
}

// openSQLite opens the file of the state directory. Without a replica's id it
// is opened for a look, not for claims of messages.
func openSQLite(ctx context.Context, cfg config.Config, settings sqlitestore.Config) (idempotency.Store, error) {
	settings.Path, settings.Now = filepath.Join(cfg.Gateway.StateDir, doctor.DatabaseName), time.Now
	store, err := sqlitestore.Open(ctx, settings)
	if err != nil {
		return nil, err // and not a nil pointer in the interface
	}
	return store, nil
}

// backends are doctor's looks at the real stores.
func backends(log *slog.Logger) doctor.Backends {
	return doctor.Backends{
		Health:     askHealth,
		Prove:      askProve,
		FileSystem: sqlitedb.Unshared,
		Database:   checkDatabase,
		Redis:      func(_ context.Context, cfg redisconf.Config) (doctor.Redis, error) { return openRedis(cfg) },
		Store: func(ctx context.Context, cfg config.Config) (idempotency.Store, error) {
			return openStore(ctx, cfg, log)
		},
	}
}

// openStore opens the configured store itself, without a weaker one behind it.
func openStore(ctx context.Context, cfg config.Config, log *slog.Logger) (idempotency.Store, error) {
	switch cfg.Hooks.Idempotency.StoreBackend {
	case idempotency.BackendRedis:
		return openRedis(cfg.Gateway.Push.Redis)
	case idempotency.BackendSQLite:
		return openSQLite(ctx, cfg, sqlitestore.Config{Log: log})
	}
	return idempotency.NewMemory(time.Now), nil
}

// checkDatabase reads the whole file in search of damage.
func checkDatabase(ctx context.Context, path string) (class string, err error) {
	db, err := sqlitedb.OpenReadOnly(ctx, path)
	if err != nil {
		return sqlitedb.Classify(err), err
	}
	var result string
	err = sqlitedb.Explain(path, db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result))
	err = errors.Join(err, db.Close())
	if err == nil && result != "ok" {
		return "corrupt", fmt.Errorf("%s is damaged: %s", path, result)
	}
	return sqlitedb.Classify(err), err
}

// agents returns the look-up of the configured agents' runners by their names;
// the loader has given a hook that names none the only agent there is.
func agents(configured map[string]agent.Config) func(name string) (message.Runner, bool) {
	return func(name string) (message.Runner, bool) {
		if _, ok := configured[name]; !ok {
			return nil, false
		}
		return gateway.AgentRunner{Name: name, Agent: agent.Echo{}}, true
	}
}
