package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/internal/bytesize"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/turnlock"
)

// Config is the section gateway of gateway.yaml.
type Config struct {
	Host               string          `yaml:"host"`
	Port               int             `yaml:"port"` // 0: any free one
	AuthToken          secret.String   `yaml:"auth_token"`
	PublicURL          string          `yaml:"public_url"`      // what senders call
	TrustedProxies     []netip.Prefix  `yaml:"trusted_proxies"` // whose X-Forwarded-For is believed
	AuthFailures       AuthFailures    `yaml:"auth_failures"`
	StateDir           string          `yaml:"state_dir"` // holds gateway.db
	Replicas           int             `yaml:"replicas"`  // processes that the operator runs, this one included
	MaxBodyBytes       bytesize.Size   `yaml:"max_body_bytes"`
	MaxConcurrentTurns int             `yaml:"max_concurrent_turns"`
	QueueWait          time.Duration   `yaml:"queue_wait"` // for a slot, before the answer is 503
	TurnTimeout        time.Duration   `yaml:"turn_timeout"`
	DrainTimeout       time.Duration   `yaml:"drain_timeout"`
	Log                LogConfig       `yaml:"log"`
	Push               PushConfig      `yaml:"push"`
	TurnLock           turnlock.Config `yaml:"turn_lock"`
}

// AuthFailures says how often a client may fail to authenticate.
type AuthFailures struct {
	Limit  int           `yaml:"limit"`
	Window time.Duration `yaml:"window"` // from the first failure
}

// LogConfig says how much is logged, and how.
type LogConfig struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text, json
}

// PushConfig holds the Redis that replicas share.
type PushConfig struct {
	Redis redisconf.Config `yaml:"redis"`
}

// DefaultConfig returns the settings of a file that names none. StateDir is
// empty: where state goes depends on the environment, which the loader reads.
func DefaultConfig() Config {
	return Config{
		Host:               "127.0.0.1",
		Port:               8765,
		AuthFailures:       AuthFailures{Limit: 20, Window: time.Minute},
		Replicas:           1,
		MaxBodyBytes:       bytesize.MiB,
		MaxConcurrentTurns: 256,
		QueueWait:          5 * time.Second,
		TurnTimeout:        10 * time.Minute,
		DrainTimeout:       15 * time.Second,
		Log:                LogConfig{Level: "info", Format: "text"},
		Push:               PushConfig{Redis: redisconf.DefaultConfig()},
		TurnLock:           turnlock.DefaultConfig(),
	}
}

// Validate returns every problem of the section's own keys, joined; each
// begins with the key's name. The sections inside validate themselves.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Host == "" {
		bad("host: must not be empty; 0.0.0.0 listens on every address")
	} else if !c.Loopback() && c.AuthToken.IsEmpty() {
		bad("auth_token: is required because host %q is not a loopback address; set it, or listen on 127.0.0.1", c.Host)
	}
	if c.Port < 0 || c.Port > 65535 {
		bad("port: %d is not between 0 and 65535", c.Port)
	}
	if err := checkPublicURL(c.PublicURL); err != nil {
		errs = append(errs, err)
	}
	for i, p := range c.TrustedProxies {
		if p.Bits() == 0 {
			bad("trusted_proxies[%d]: %s is everybody, so that a client could name any address as its own; name the proxies", i, p)
		}
	}
	if c.AuthFailures.Limit < 1 {
		bad("auth_failures.limit: %d is below 1", c.AuthFailures.Limit)
	}
	if c.AuthFailures.Window < time.Second {
		bad("auth_failures.window: %s is shorter than 1s; leave the key out for the default", c.AuthFailures.Window)
	}
	if c.Replicas < 1 {
		bad("replicas: %d is below 1; count this one too", c.Replicas)
	}
	if c.MaxBodyBytes < 1 {
		bad("max_body_bytes: must be at least 1")
	}
	if c.MaxConcurrentTurns < 1 {
		bad("max_concurrent_turns: %d is below 1", c.MaxConcurrentTurns)
	}
	if c.QueueWait < 0 {
		bad("queue_wait: %s is negative", c.QueueWait)
	}
	if c.TurnTimeout <= 0 {
		bad("turn_timeout: %s would stop every turn at once; leave the key out for the default", c.TurnTimeout)
	}
	if c.DrainTimeout < 0 {
		bad("drain_timeout: %s is negative", c.DrainTimeout)
	}
	if levels := []string{"debug", "info", "warn", "error"}; !slices.Contains(levels, c.Log.Level) {
		bad("log.level: %q is not one of %s", c.Log.Level, strings.Join(levels, ", "))
	}
	if formats := []string{"text", "json"}; !slices.Contains(formats, c.Log.Format) {
		bad("log.format: %q is not one of %s", c.Log.Format, strings.Join(formats, ", "))
	}
	return errors.Join(errs...)
}

// Loopback reports whether the gateway listens for its own machine only.
func (c Config) Loopback() bool {
	ip := net.ParseIP(c.Host)
	return c.Host == "localhost" || ip != nil && ip.IsLoopback()
}

// Private reports whether nobody but its own machine can reach the gateway. One
// with a public URL or proxies is meant for others, whatever it listens on.
func (c Config) Private() bool {
	return c.Loopback() && c.PublicURL == "" && len(c.TrustedProxies) == 0
}
