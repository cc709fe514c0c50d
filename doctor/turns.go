package doctor

import (
	"slices"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/turnlock"
)

// turns says how far the turns of a session are serialised, and who sees its
// history.
func turns(cfg config.Config, source string) health.Check {
	f := newFinding(CheckTurns, source)
	if !slices.ContainsFunc(cfg.Hooks.Hooks, func(h hooks.Hook) bool { return h.Session != "" }) {
		f.note("no hook has a session: every message runs by itself")
		return f.done("")
	}
	f.note("turn lock %s, sessions in %s", cfg.Gateway.TurnLock.Backend, cfg.Sessions.Backend)
	if replicas := cfg.Gateway.Replicas; replicas > 1 {
		if cfg.Gateway.TurnLock.Backend == turnlock.BackendLocal {
			f.warn("set gateway.turn_lock.backend to redis", "turns of a session are serialised inside each of the %d replicas, not over all", replicas)
		}
		if cfg.Sessions.Backend == agent.BackendSQLite {
			f.warn("set sessions.backend to redis, or leave it out beside turn_lock.backend redis", "each replica has a history of its own: agents forget what was said to another")
		}
	}
	if cfg.Gateway.TurnLock.Backend == turnlock.BackendRedis {
		f.note("a crashed replica holds a session for up to %s", cfg.Gateway.TurnLock.TTL)
	}
	return f.done("")
}
