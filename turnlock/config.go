package turnlock

import (
	"errors"
	"fmt"
	"time"
)

// The places where locks are kept.
const (
	BackendLocal = "local" // turns are serialised inside one replica
	BackendRedis = "redis" // over all replicas
)

// The defaults. The longest wait has to be longer than the longest turn, see
// LongestWait.
const (
	DefaultTTL     = time.Minute
	DefaultMaxWait = 15 * time.Minute
)

// Config is the section gateway.turn_lock of gateway.yaml.
type Config struct {
	Backend string        `yaml:"backend"`
	TTL     time.Duration `yaml:"ttl"`      // how long a lock in Redis outlives its holder
	MaxWait time.Duration `yaml:"max_wait"` // for a lock, before 503
}

// DefaultConfig returns the settings of a file that names none.
func DefaultConfig() Config {
	return Config{Backend: BackendLocal, TTL: DefaultTTL, MaxWait: DefaultMaxWait}
}

// LongestWait is the default of max_wait where a turn may take longer than by
// default, so that no message gives up before the turn in front of it may end.
func LongestWait(turnTimeout time.Duration) time.Duration {
	return max(DefaultMaxWait, turnTimeout+turnTimeout/2)
}

// Validate returns every problem, joined; each begins with the key's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Backend != BackendLocal && c.Backend != BackendRedis {
		bad("backend: %q is not one of %s, %s", c.Backend, BackendLocal, BackendRedis)
	}
	if c.TTL < time.Second {
		bad("ttl: %s is shorter than 1s; leave the key out for the default", c.TTL)
	}
	if c.MaxWait < time.Second {
		bad("max_wait: %s is shorter than 1s; leave the key out for the default", c.MaxWait)
	} else if c.MaxWait < c.TTL {
		bad("max_wait: %s is shorter than ttl (%s): after a crash every message would give up before the dead holder's lock ends", c.MaxWait, c.TTL)
	}
	return errors.Join(errs...)
}
