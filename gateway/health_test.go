package gateway_test

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/client"
	"github.com/oncegate/oncegate/internal/secret"
)

func TestHealthTellsOfReplicasOnlyWithTheToken(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	cfg.AuthToken = secret.New("operator-token")
	store := idempotency.NewMemory(time.Now)
	r := newReplica(t, store)
	registry := health.NewRegistry(slog.New(slog.DiscardHandler))
	registry.Enter(health.Ready)
	s := gateway.NewServer(gateway.ServerConfig{
		Gateway: cfg, Clients: client.New(client.Config{Limit: 3, Window: time.Minute}, time.Now), Store: store, Hooks: http.HandlerFunc(ok), Pipeline: r.Pipeline,
		Health: registry, Metrics: r.metrics, Replica: "r1", Version: "v1", Log: slog.New(slog.DiscardHandler),
		Backends: func() map[string]string { return map[string]string{"idempotency": "redis"} },
		Replicas: func() []health.Sighting {
			return []health.Sighting{{Replica: health.Replica{ID: "r1"}}, {Replica: health.Replica{ID: "r2"}, Age: 1.5}}
		},
	})
	const want = `{"status":"healthy","degraded_owners":[],"backends":{"idempotency":"redis"},"replica":"r1","version":"v1","replicas":[{"replica":"r1",`
	if got := get(s.Handler(), "/health", "operator-token").Body.String(); len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("/health with the token: %s", got)
	}
	if got := get(s.Handler(), "/health", "").Body.String(); got != `{"status":"healthy","degraded_owners":[]}`+"\n" {
		t.Errorf("/health without the token: %s", got)
	}
}
