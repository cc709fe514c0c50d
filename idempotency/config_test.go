package idempotency_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*idempotency.Config)
		want   string
	}{
		{"defaults", func(*idempotency.Config) {}, ""},
		{"unknown store", func(c *idempotency.Config) { c.StoreBackend = "postgres" }, `store_backend: "postgres" is not one of sqlite, redis, memory`},
		{"unknown policy", func(c *idempotency.Config) { c.OnUnavailable = "maybe" }, `on_unavailable: "maybe" is not one of open, closed`},
		{"B73 zero lease", func(c *idempotency.Config) { c.Lease = 0 }, "lease: 0s is shorter than 1s; leave the key out for the default"},
		{"B73 half a second", func(c *idempotency.Config) { c.TTL = 500 * time.Millisecond }, "ttl: 500ms is shorter than 1s; leave the key out for the default"},
		{"no claim budget", func(c *idempotency.Config) { c.ClaimTimeout = 0 }, "claim_timeout: 0s is too short; use at least 1ms"},
		{"two at once", func(c *idempotency.Config) { c.Lease, c.TTL = -1, -1 },
			"lease: -1ns is shorter than 1s; leave the key out for the default\nttl: -1ns is shorter than 1s; leave the key out for the default"},
	} {
		cfg := idempotency.DefaultConfig()
		c.change(&cfg)
		got := ""
		if err := cfg.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: Validate = %q, want %q", c.name, got, c.want)
		}
	}
}
