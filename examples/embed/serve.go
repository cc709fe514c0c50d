package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
)

// serve answers requests until ctx ends. Then it refuses new messages and lets
// turns under way take another 15 s.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, pipeline *gateway.Pipeline) error {
	fmt.Printf("listening on http://%s%schat\n", listener.Addr(), hooks.Prefix)
	mux := http.NewServeMux()
	mux.Handle(hooks.Prefix, handler)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // ends with Shutdown
	var failure error
	select {
	case failure = <-served:
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	drain, cancel := context.WithTimeout(closing, 15*time.Second)
	defer cancel()
	return errors.Join(failure, pipeline.Drain(drain), server.Shutdown(closing))
}
