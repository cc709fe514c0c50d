package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/client"
	"github.com/oncegate/oncegate/turnlock"
)

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway",
		Long: `Run the gateway until SIGINT or SIGTERM. Then it refuses new messages, finishes
what it runs, up to gateway.drain_timeout, and exits with 0. A second signal
ends it at once.`,
		Example: `  gateway serve
  gateway serve -c /etc/oncegate/gateway.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
}

func (a *app) serve(ctx context.Context) error {
	path := a.path()
	cfg, err := config.Load(path, a.env)
	if err != nil {
		return err
	}
	log := newLogger(cfg.Gateway.Log, a.err)
	l, err := gateway.Listen(ctx, cfg.Gateway)
	if err != nil {
		return err
	}
	p, err := assemble(cfg, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if path == "" {
		a.print("Try it, twice: curl -sS -H 'Content-Type: application/json' -d '{\"id\":\"1\",\"text\":\"hello\"}' http://%s/hooks/echo\n", l.Addr())
	}
	log.Info("listening", "address", l.Addr().String(), "config", orDefault(path), "replica", p.replica, "version", version())
	return p.run(ctx, func(ctx context.Context) error { return p.server.Run(ctx, l) })
}

// process is the gateway put together: the only place that knows which backend
// is behind each contract.
type process struct {
	cfg      config.Config
	log      *slog.Logger
	replica  string
	started  time.Time
	hash     string // of the configuration, as replicas compare it
	health   *health.Registry
	fleet    *health.Fleet
	redis    redis.UniversalClient // nil: none is configured
	store    *idempotency.Failover
	sessions *gateway.Sessions
	pipeline *gateway.Pipeline
	hooks    *hooks.Handler
	server   *gateway.Server

	lockBackend func() string                     // what serialises turns now
	starts      []func(ctx context.Context)       // what has to be tried before the first message
	beside      []func(ctx context.Context) error // what runs from then on, as long as the process
	closers     []func()                          // what holds idle connections
}

func assemble(cfg config.Config, log *slog.Logger) (*process, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := gateway.NewMetrics(registry)
	p := &process{
		cfg: cfg, log: log, replica: idempotency.NewReplicaID(), started: time.Now(), hash: config.Hash(cfg),
		health:      health.NewRegistry(log),
		lockBackend: func() string { return turnlock.BackendLocal },
	}
	var err error
	if p.redis, err = sharedRedis(cfg); err != nil {
		return nil, err
	}
	p.fleet = health.NewFleet(health.FleetConfig{Replicas: cfg.Gateway.Replicas, Health: p.health, Now: time.Now})
	p.store = idempotency.NewFailover(idempotency.FailoverConfig{
		Tiers:         p.tiers(),
		OnUnavailable: cfg.Hooks.Idempotency.OnUnavailable,
		Replica:       p.replica,
		Health:        p.health,
		Events: idempotency.Events{
			FailOpen: metrics.FailOpen, Slipped: metrics.Slipped, Uncarried: metrics.Uncarried, TakenOver: metrics.TakenOver,
		},
		Log:           log,
		Now:           time.Now,
		ProbeEvery:    idempotency.DefaultProbeEvery,
		TakeoverAfter: cfg.Hooks.Idempotency.TakeoverAfter,
		Self:          p.self,
		Seen:          p.fleet.Seen,
	})
	p.sessions = p.newSessions(metrics)
	p.fleet.Alone(p.self())
	p.starts = append(p.starts, p.store.Start, p.sessions.Start)
	p.beside = append(p.beside, p.store.Run, p.sessions.Run)
	p.pipeline = gateway.NewPipeline(gateway.PipelineConfig{
		Store:              p.store,
		InDoubt:            p.store.InDoubt,
		Locks:              p.locks(metrics),
		Replica:            p.replica,
		MaxConcurrentTurns: cfg.Gateway.MaxConcurrentTurns,
		QueueWait:          cfg.Gateway.QueueWait,
		TurnTimeout:        cfg.Gateway.TurnTimeout,
		MaxStoredReply:     int64(cfg.Hooks.Idempotency.MaxStoredReply),
		Metrics:            metrics,
		Log:                log,
	})
	clients := client.New(client.Config{
		TrustedProxies: cfg.Gateway.TrustedProxies,
		Limit:          cfg.Gateway.AuthFailures.Limit,
		Window:         cfg.Gateway.AuthFailures.Window,
	}, time.Now)
	p.beside = append(p.beside, p.pipeline.Run)
	p.hooks, err = hooks.New(cfg.Hooks, hooks.Deps{
		Pipeline:  p.pipeline,
		Agents:    p.agents(metrics),
		Clients:   clients,
		Token:     cfg.Gateway.AuthToken,
		Private:   cfg.Gateway.Private(),
		PublicURL: cfg.Gateway.SenderURL,
		MaxBody:   int64(cfg.Gateway.MaxBodyBytes),
		Now:       time.Now,
		Log:       log,
		Metrics:   registry,
	})
	if err != nil {
		return nil, err
	}
	p.server = gateway.NewServer(gateway.ServerConfig{
		Gateway:  cfg.Gateway,
		Clients:  clients,
		Hooks:    p.hooks,
		Pipeline: p.pipeline,
		Store:    p.store,
		Health:   p.health,
		Metrics:  registry,
		Backends: p.backends,
		Replicas: func() []health.Sighting { return p.fleet.Replicas(p.self()) },
		Replica:  p.replica,
		Version:  version(),
		Log:      log,
	})
	return p, nil
}

// backends names what is in effect now.
func (p *process) backends() map[string]string {
	return map[string]string{"idempotency": p.store.Backend(), "turn_lock": p.lockBackend(), "sessions": p.sessions.Backend()}
}

// self is what this process tells the other replicas.
func (p *process) self() health.Replica {
	r := health.Replica{
		ID: p.replica, Version: version(), Started: p.started, Seen: time.Now(), KeyFormat: idempotency.KeyFormat, Config: p.hash,
		Store: p.cfg.Hooks.Idempotency.StoreBackend, Backends: p.backends(), Unsettled: p.store.Backlog(),
		Degraded: []string{}, // none is an empty list, not null
	}
	for _, o := range p.health.Owners() {
		r.Degraded = append(r.Degraded, o.Kind+"/"+o.ID)
	}
	return r
}

// run opens the stores beside serve, which answers probes meanwhile, and takes
// everything down in the reverse order once serve has drained.
func (p *process) run(ctx context.Context, serve func(context.Context) error) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	if p.redis != nil && p.cfg.Hooks.Idempotency.StoreBackend != idempotency.BackendRedis {
		p.beside = append(p.beside, p.announce)
	}
	var wg sync.WaitGroup
	failed := make([]error, len(p.beside))
	wg.Go(func() {
		for _, start := range p.starts {
			start(background)
		}
		p.health.Enter(health.Ready)
		for i, run := range p.beside {
			wg.Go(func() { failed[i] = run(background) })
		}
	})
	err := serve(ctx)
	stop()
	wg.Wait()
	p.hooks.Close()
	for _, closeAgent := range p.closers {
		closeAgent()
	}
	if err == nil { // every claim has been settled or given back
		p.leave(ctx)
	}
	err = errors.Join(err, errors.Join(failed...), p.sessions.Close(), p.store.Close())
	if p.redis != nil {
		err = errors.Join(err, p.redis.Close())
	}
	return err
}

// leave tells the other replicas that this one is gone. If that does not reach
// them its heartbeat runs out, which is as good.
func (p *process) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := p.store.Leave(ctx); err != nil {
		p.log.Debug("heartbeat not taken back", "error", err)
	}
}

func newLogger(cfg gateway.LogConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		panic(fmt.Sprintf("log level %q passed the loader: %v", cfg.Level, err))
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
