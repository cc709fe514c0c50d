package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/redisstore"
	"github.com/oncegate/oncegate/internal/redact"
	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/turnlock/redislock"
)

// redisBackend is a claim store that commands can look into.
type redisBackend interface {
	idempotency.Store
	idempotency.Lister
	doctor.Redis
}

// redisServer is a store and the client that it is on.
type redisServer struct {
	*redisstore.Store
	client redis.UniversalClient
}

// ownRedis is a redisServer whose client belongs to it alone.
type ownRedis struct {
	redisServer
	prefix string
}

// openRedis connects for a look. It returns an interface, which beside an error
// is nil in every other interface too.
func openRedis(cfg redisconf.Config) (redisBackend, error) {
	client, err := redisclient.New(cfg, redisclient.Options{})
	if err != nil {
		return nil, err
	}
	return &ownRedis{redisServer{redisstore.New(client, redisstore.Config{Prefix: cfg.Prefix}), client}, cfg.Prefix}, nil
}

// CheckTurnLock implements doctor.Redis.
func (s *ownRedis) CheckTurnLock(ctx context.Context) error {
	log := slog.New(slog.DiscardHandler)
	return redislock.New(redislock.Config{
		Client: s.client, Prefix: s.prefix, Replica: idempotency.NewReplicaID(), TTL: time.Minute, MaxWait: time.Minute, Timeout: 2 * time.Second,
		Health: health.NewRegistry(log), Now: time.Now, Log: log,
	}).Check(ctx)
}

// CheckSessions implements doctor.Redis.
func (s *ownRedis) CheckSessions(ctx context.Context) error {
	return redishistory.New(s.client, redishistory.Config{Prefix: s.prefix, MaxTurns: 1, TTL: time.Minute}).Ping(ctx)
}

// Close closes the store before its client.
func (s *ownRedis) Close() error { return errors.Join(s.Store.Close(), s.client.Close()) }

// replicaRedis is the server for a replica, on the client that its claims, its
// lock and its histories share.
func replicaRedis(client redis.UniversalClient, prefix string) redisServer {
	return redisServer{redisstore.New(client, redisstore.Config{Prefix: prefix, Replica: true}), client}
}

var _ redisBackend = (*ownRedis)(nil)

// Info implements doctor.Redis.
func (s redisServer) Info(ctx context.Context) (map[string]string, error) {
	text, err := s.client.Info(ctx).Result()
	if err != nil {
		return nil, redact.Error(err)
	}
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// Time implements doctor.Redis.
func (s redisServer) Time(ctx context.Context) (time.Time, error) {
	t, err := s.client.Time(ctx).Result()
	return t, redact.Error(err)
}

// Keys implements doctor.Redis.
func (s redisServer) Keys(ctx context.Context, prefix string, limit int) ([]string, error) {
	const count = 1000 // looked at by the server for one answer
	var keys []string
	for cursor, rounds := uint64(0), 0; ; rounds++ {
		page, next, err := s.client.Scan(ctx, cursor, prefix+"*", count).Result()
		if err != nil {
			return nil, redact.Error(err)
		}
		keys = append(keys, page...)
		if cursor = next; next == 0 || len(keys) >= limit || rounds == limit {
			return keys, nil
		}
	}
}

// Class implements doctor.Redis.
func (s redisServer) Class(err error) string { return string(redisclient.Classify(err)) }

// watchedRedis is the store of a running gateway. Its probes look after the
// scripts too: without them claims are settled as safely but slower, which
// nobody should have to find out from a latency.
type watchedRedis struct {
	redisServer
	health *health.Registry
	looked atomic.Bool
}

var (
	_ idempotency.Settler = (*watchedRedis)(nil)
	_ idempotency.Roll    = (*watchedRedis)(nil)
)

// Ping implements idempotency.Store. The first one runs the scripts on
// throw-away keys; once they were refused, so does each, until they run.
func (w *watchedRedis) Ping(ctx context.Context) error {
	err := w.redisServer.Ping(ctx)
	if err != nil && !errors.Is(err, idempotency.ErrEmptied) {
		return err
	}
	if !w.looked.Swap(true) || w.Scripting() != nil {
		_ = w.CheckScripts(ctx) // what is refused shows below; anything else, in the next probe
	}
	if w.Scripting() == nil {
		w.health.Clear(health.KindCapability, "redis:scripts")
		return err
	}
	w.health.Degrade(health.Owner{
		Kind: health.KindCapability, ID: "redis:scripts", State: health.Cold, Class: string(redisclient.Permission),
		Reason:    "redis refuses scripts (claims are settled by WATCH and MULTI)",
		RetryHint: "allow the gateway's user EVALSHA and EVAL; it is tried again by itself",
	})
	return err
}

// announce shows this process, which claims elsewhere, to the replicas in the
// Redis that its configuration names, and them to it: side by side they claim
// each message twice. It ends with ctx.
func (p *process) announce(ctx context.Context) error {
	server := replicaRedis(p.redis, p.cfg.Gateway.Push.Redis.Prefix)
	every := time.NewTicker(p.cfg.Hooks.Idempotency.TakeoverAfter / 6)
	defer every.Stop()
	for {
		if err := p.beatBeside(ctx, server); err != nil && ctx.Err() == nil {
			p.log.Debug("not shown to the replicas in redis", "error", err)
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = server.Leave(last, p.replica) // else the heartbeat runs out
			return server.Close()
		}
	}
}

func (p *process) beatBeside(ctx context.Context, server redisServer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	own := p.self()
	own.Seen = time.Now()
	all, err := server.Beat(ctx, own, p.cfg.Hooks.Idempotency.TakeoverAfter)
	if err == nil {
		p.fleet.Beside(own, all)
	}
	return err
}
