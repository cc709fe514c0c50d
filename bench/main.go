// Command bench measures the gateway against plain baselines. Both sides of
// every ratio run in this process's lifetime, on this machine, taking turns.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var (
		only = flag.String("only", "", "redis, lock, sqlite or http; default all")
		keys = flag.Int("keys", 10_000_000, "rows of the large SQLite table")
		bare = flag.Bool("bare", false, "serve the bare handler; the HTTP benchmark starts it so")
	)
	flag.Parse()
	if *bare {
		return exit(serveBare(ctx))
	}
	r := &report{out: os.Stdout}
	r.note("%s, %s/%s, %d CPUs", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	for _, part := range []struct {
		name  string
		bench func() error
	}{
		{"redis", func() error { return benchRedis(ctx, r) }},
		{"lock", func() error { return benchLock(ctx, r) }},
		{"sqlite", func() error { return benchSQLite(ctx, r, *keys) }},
		{"http", func() error { return benchHTTP(ctx, r) }},
	} {
		if *only != "" && *only != part.name {
			continue
		}
		if err := part.bench(); err != nil {
			return exit(fmt.Errorf("%s: %w", part.name, err))
		}
	}
	return 0
}

func exit(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}
