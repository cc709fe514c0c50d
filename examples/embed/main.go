// Command embed is a chat bot with the gateway inside: it answers POST
// /hooks/chat with an agent of its own, each message once, also over a restart.
//
//	go run . -listen 127.0.0.1:8080 -state state
//	curl -H 'Content-Type: application/json' -d '{"chat":"ann","id":"1","text":"hello"}' http://127.0.0.1:8080/hooks/chat
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/message"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8080", "`address`; the hook is closed on any but a loopback one")
	state := flag.String("state", "state", "the `directory` of what is kept")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *address, *state, slog.Default()); err != nil {
		slog.Error("the bot has ended", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address, state string, log *slog.Logger) (err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // mostly the server has done so
	replica, metrics := idempotency.NewReplicaID(), gateway.NewMetrics(prometheus.DefaultRegisterer)
	claims, err := sqlitestore.Open(ctx, sqlitestore.Config{Path: filepath.Join(state, "gateway.db"), Replica: replica, Now: time.Now, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claims.Close()) }()
	sessions := newSessions(filepath.Join(state, "sessions.db"), metrics, log)
	sessions.Start(ctx)
	defer func() { err = errors.Join(err, sessions.Close()) }()
	pipeline := gateway.NewPipeline(gateway.PipelineConfig{
		Store: claims, Replica: replica, QueueWait: 5 * time.Second, MaxStoredReply: 64 << 10, Metrics: metrics, Log: log,
	})
	runner := gateway.AgentRunner{Name: "counter", Agent: counter{}, Sessions: sessions, Metrics: metrics}
	handler, err := hooks.New(chat(), hooks.Deps{
		Pipeline: pipeline, Agents: func(string) (message.Runner, bool) { return runner, true }, Log: log,
		Private: listener.Addr().(*net.TCPAddr).IP.IsLoopback(), // else the hook would need a token of its own
	})
	if err != nil {
		return err
	}
	defer handler.Close()
	// Beside the server, and longer: claims are renewed until the last turn has ended.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = pipeline.Run(work) }) // both return nil
	wg.Go(func() { _ = sessions.Run(work) })
	return serve(ctx, listener, handler, pipeline)
}
