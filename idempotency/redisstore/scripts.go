package redisstore

import (
	"context"
	"crypto/rand"
	_ "embed" // for the scripts
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/redact"
	"github.com/oncegate/oncegate/message"
)

//go:embed record.lua
var recordSource string

//go:embed release.lua
var releaseSource string

//go:embed renew.lua
var renewSource string

// scripts are the owner-checked changes. Each takes one key and answers 1 for
// yes and 0 for not the caller's.
type scripts struct{ record, release, renew script }

func newScripts() scripts {
	return scripts{record: newScript(recordSource), release: newScript(releaseSource), renew: newScript(renewSource)}
}

type script struct{ source, hash string }

func newScript(source string) script {
	return script{source: source, hash: redis.NewScript(source).Hash()}
}

// eval runs script on key. A server forgets its scripts when it restarts,
// fails over or is told to; then the source is sent, once.
func (s *Store) eval(ctx context.Context, script script, key string, args ...any) (bool, error) {
	yes, err := s.evalBy(ctx, "evalsha", script.hash, key, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return s.evalBy(ctx, "eval", script.source, key, args)
	}
	return yes, err
}

func (s *Store) evalBy(ctx context.Context, command, text, key string, args []any) (bool, error) {
	cmd := redis.NewIntCmd(ctx, append([]any{command, text, 1, key}, args...)...)
	// After an error the command may still be under way and is not looked at.
	if err := s.trips.do(ctx, cmd); err != nil {
		return false, err
	}
	return cmd.Val() == 1, nil
}

// refused reports whether err says that this user, or anybody, may not run
// scripts; not what a script itself was refused.
func refused(err error) bool {
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return false
	}
	text := strings.ToLower(answer.Error())
	return strings.Contains(text, "eval") && (strings.Contains(text, "noperm") || strings.Contains(text, "unknown command"))
}

// Scripting returns nil, or the server's words once it has refused to run
// scripts. Claims are then settled by WATCH and MULTI: as safely, in three
// round trips instead of a shared one. CheckScripts looks again.
func (s *Store) Scripting() error {
	if err := s.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// CheckScripts runs the scripts that settle claims on a key of its own, which
// it leaves to expire within seconds, and remembers for Scripting whether the
// server refused.
func (s *Store) CheckScripts(ctx context.Context) error {
	err := s.checkScripts(ctx)
	switch {
	case err == nil:
		s.refusal.Store(nil)
	case refused(err):
		s.refusal.Store(&err)
	}
	return err
}

func (s *Store) checkScripts(ctx context.Context) error {
	const window = 5 * time.Second
	claim := idempotency.Claim{Token: "check." + rand.Text(), Lease: window, TTL: window, Confirmed: s.now()}
	key := s.prefix + "check:" + claim.Token
	value := string(appendValue(nil, claimed, claim.Token, message.Fingerprint{}))
	set := redis.NewStatusCmd(ctx, "set", key, value, "px", window.Milliseconds())
	if err := s.trips.do(ctx, set); err != nil {
		return fmt.Errorf("check scripts: set: %w", redact.Error(err))
	}
	for _, step := range []struct {
		name   string
		change change
		want   bool
	}{
		{"renew", s.renewal(key, claim), true},
		{"record", s.recording(key, claim, nil), true},
		{"release", s.releasing(key, claim), false},
	} {
		yes, err := s.eval(ctx, step.change.script, key, step.change.args...)
		if err != nil {
			return fmt.Errorf("check scripts: %s: %w", step.name, redact.Error(err))
		}
		if yes != step.want {
			return fmt.Errorf("check scripts: %s answered %t, want %t", step.name, yes, step.want)
		}
	}
	return nil
}
