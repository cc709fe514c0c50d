package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/execagent"
	"github.com/oncegate/oncegate/agent/httpagent"
	"github.com/oncegate/oncegate/agent/openai"
	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/agent/sqlitehistory"
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
	"github.com/oncegate/oncegate/turnlock"
	"github.com/oncegate/oncegate/turnlock/redislock"
)

// fileTimeout is the budget of one claim in SQLite: hundreds of ordinary commits,
// and less than a sender waits while another process holds the file.
const fileTimeout = 2 * time.Second

// sharedRedis returns the one client for claims, turn lock and sessions, nil
// where no server is configured.
func sharedRedis(cfg config.Config) (redis.UniversalClient, error) {
	if !cfg.Gateway.Push.Redis.Configured() {
		return nil, nil
	}
	return redisclient.New(cfg.Gateway.Push.Redis, redisclient.Options{})
}

// tiers returns the configured claim store, with the weaker ones that serve
// while it is away behind it.
func (p *process) tiers() []idempotency.Tier {
	cfg, backend := p.cfg, p.cfg.Hooks.Idempotency.StoreBackend
	shared := idempotency.Tier{
		Name: idempotency.BackendRedis,
		Open: func(context.Context) (idempotency.Store, error) {
			return &watchedRedis{redisServer: replicaRedis(p.redis, cfg.Gateway.Push.Redis.Prefix), health: p.health}, nil
		},
		Timeout:  cfg.Hooks.Idempotency.ClaimTimeout,
		Classify: func(err error) string { return string(redisclient.Classify(err)) },
		Lasting:  func(class string) bool { return !redisclient.Class(class).Heals() },

		Heartbeats: true,
	}
	sqlite := idempotency.Tier{
		Name: idempotency.BackendSQLite,
		Open: func(ctx context.Context) (idempotency.Store, error) {
			return openSQLite(ctx, cfg, sqlitestore.Config{Replica: p.replica, Shadow: backend == idempotency.BackendRedis, Log: p.log})
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
		return []idempotency.Tier{shared, sqlite, memory}
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

// locks returns the configured turn lock.
func (p *process) locks(metrics *gateway.Metrics) turnlock.Locker {
	c := p.cfg.Gateway.TurnLock
	if c.Backend != turnlock.BackendRedis {
		return turnlock.NewLocal(time.Now, c.MaxWait)
	}
	shared := redislock.New(redislock.Config{
		Client: p.redis, Prefix: p.cfg.Gateway.Push.Redis.Prefix, Replica: p.replica,
		TTL: c.TTL, MaxWait: c.MaxWait, Timeout: p.cfg.Hooks.Idempotency.ClaimTimeout,
		Health: p.health,
		Events: redislock.Events{Lost: metrics.LockLost, FailOpen: metrics.FailOpenTurn},
		Now:    time.Now, Log: p.log,
	})
	p.starts = append(p.starts, shared.Start)
	p.beside = append(p.beside, shared.Run)
	p.lockBackend = shared.Backend
	return shared
}

// newSessions returns the configured place of histories, not open yet.
func (p *process) newSessions(metrics *gateway.Metrics) *gateway.Sessions {
	c := p.cfg.Sessions
	settings := gateway.SessionsConfig{Backend: c.Backend, Health: p.health, Metrics: metrics, Log: p.log}
	if c.Backend == agent.BackendRedis {
		settings.Open = func(context.Context) (gateway.History, error) {
			return redishistory.New(p.redis, redishistory.Config{Prefix: p.cfg.Gateway.Push.Redis.Prefix, MaxTurns: c.MaxTurns, TTL: c.TTL}), nil
		}
		settings.Timeout = p.cfg.Hooks.Idempotency.ClaimTimeout
		settings.Classify = func(err error) string { return string(redisclient.Classify(err)) }
		settings.Hint = health.RedisHint
	} else {
		settings.Open = func(ctx context.Context) (gateway.History, error) {
			history, err := sqlitehistory.Open(ctx, historyFile(p.cfg, p.log))
			if err != nil {
				return nil, err // and not a nil pointer in the interface
			}
			return history, nil
		}
		settings.Reopen = func(err error) bool { return errors.Is(err, sqlitedb.ErrReplaced) }
		settings.Timeout = fileTimeout
		settings.Classify = sqlitedb.Classify
		settings.Hint = func(class string) string { return health.FileHint(sessionsFile, class) }
	}
	return gateway.NewSessions(settings)
}

// sessionsFile is the database of histories in the state directory. It is not
// that of the claims, whose commits would wait for it.
const sessionsFile = "sessions.db"

func historyFile(cfg config.Config, log *slog.Logger) sqlitehistory.Config {
	return sqlitehistory.Config{
		Path: filepath.Join(cfg.Gateway.StateDir, sessionsFile), MaxTurns: cfg.Sessions.MaxTurns, TTL: cfg.Sessions.TTL, Log: log,
	}
}

// agents returns the look-up of the configured agents' runners by their names;
// the loader has given a hook that names none the only agent there is.
func (p *process) agents(metrics *gateway.Metrics) func(name string) (message.Runner, bool) {
	runners := make(map[string]message.Runner, len(p.cfg.Agents))
	for name, c := range p.cfg.Agents {
		runners[name] = gateway.AgentRunner{Name: name, Agent: p.newAgent(c), Sessions: p.sessions, Metrics: metrics}
	}
	return func(name string) (message.Runner, bool) {
		runner, ok := runners[name]
		return runner, ok
	}
}

// newAgent returns an agent of one of the kinds that the loader accepts.
func (p *process) newAgent(c agent.Config) agent.Agent {
	switch c.Kind {
	case agent.KindOpenAI:
		a := openai.New(c)
		p.closers = append(p.closers, a.Close)
		return a
	case agent.KindHTTP:
		a := httpagent.New(c)
		p.closers = append(p.closers, a.Close)
		return a
	case agent.KindExec:
		return execagent.New(c, p.log.With("component", "agent"))
	}
	return agent.Echo{}
}
