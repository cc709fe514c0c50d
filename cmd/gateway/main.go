// Command gateway runs the gateway and looks after it.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/oncegate/oncegate/internal/redisclient"
)

func main() {
	// The client library would print every failed dial; we log each change of
	// state once.
	redisclient.LogTo(slog.New(slog.DiscardHandler))
	os.Exit(mainWithSignals())
}

// mainWithSignals turns signals into the end of a context. After the first one
// their default handling is back, so that a second one ends the process at
// once.
func mainWithSignals() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}, os.LookupEnv)
}
