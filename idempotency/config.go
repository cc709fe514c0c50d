package idempotency

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/internal/bytesize"
)

// What happens to a message while the configured store is away.
const (
	Open   = "open"   // a weaker store serves, and /health says so
	Closed = "closed" // the message is refused with 503 and comes again
)

// MinTakeoverAfter leaves a heartbeat, at a sixth of it, half a second.
const MinTakeoverAfter = 3 * time.Second

// MinDuration is the shortest lease or record window that makes sense: below
// it a claim ends before an ordinary run does.
const MinDuration = time.Second

// Config is the section hooks.idempotency of gateway.yaml.
type Config struct {
	StoreBackend   string        `yaml:"store_backend"`
	Lease          time.Duration `yaml:"lease"`
	TTL            time.Duration `yaml:"ttl"`
	OnUnavailable  string        `yaml:"on_unavailable"`
	ClaimTimeout   time.Duration `yaml:"claim_timeout"`  // budget of one claim in Redis, retries and dial included
	TakeoverAfter  time.Duration `yaml:"takeover_after"` // without a heartbeat for so long a replica is dead
	MaxStoredReply bytesize.Size `yaml:"max_stored_reply"`
}

// DefaultConfig returns the settings of a file that names none.
func DefaultConfig() Config {
	return Config{
		StoreBackend:   BackendSQLite,
		Lease:          900 * time.Second,
		TTL:            24 * time.Hour,
		OnUnavailable:  Open,
		ClaimTimeout:   300 * time.Millisecond,
		TakeoverAfter:  30 * time.Second,
		MaxStoredReply: 64 * bytesize.KiB,
	}
}

// Validate returns every problem, joined; each begins with the key's name.
func (c Config) Validate() error {
	var errs []error
	oneOf := func(key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("%s: %q is not one of %s", key, value, strings.Join(allowed, ", ")))
		}
	}
	oneOf("store_backend", c.StoreBackend, BackendSQLite, BackendRedis, BackendMemory)
	oneOf("on_unavailable", c.OnUnavailable, Open, Closed)
	errs = append(errs, CheckDuration("lease", c.Lease), CheckDuration("ttl", c.TTL))
	if c.ClaimTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("claim_timeout: %s is too short; use at least 1ms", c.ClaimTimeout))
	}
	if c.TakeoverAfter < MinTakeoverAfter {
		errs = append(errs, fmt.Errorf("takeover_after: %s is shorter than %s, in which a replica that is merely slow would look dead; leave the key out for the default", c.TakeoverAfter, MinTakeoverAfter))
	}
	if c.MaxStoredReply < 0 {
		errs = append(errs, errors.New("max_stored_reply: must not be negative"))
	}
	return errors.Join(errs...)
}

// CheckDuration refuses a lease or record window below MinDuration. Zero is no
// way to say "for ever" or "default": leave the key out for the default.
func CheckDuration(key string, d time.Duration) error {
	if d >= MinDuration {
		return nil
	}
	return fmt.Errorf("%s: %s is shorter than %s; leave the key out for the default", key, d, MinDuration)
}
