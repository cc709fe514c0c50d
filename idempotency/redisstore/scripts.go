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

//go:embed reclaim.lua
var reclaimSource string

//go:embed record.lua
var recordSource string

//go:embed release.lua
var releaseSource string

//go:embed renew.lua
var renewSource string

//go:embed settle.lua
var settleSource string

// scripts are the owner-checked changes. Each answers with a number, see change.
type scripts struct{ reclaim, record, release, renew, settle script }

func newScripts() scripts {
	return scripts{
		reclaim: newScript(reclaimSource), record: newScript(recordSource), release: newScript(releaseSource),
		renew: newScript(renewSource), settle: newScript(settleSource),
	}
}

type script struct{ source, hash string }

func newScript(source string) script {
	return script{source: source, hash: redis.NewScript(source).Hash()}
}

// eval runs the script of c. A server forgets its scripts when it restarts,
// fails over or is told to; then the source is sent, once.
func (s *Store) eval(ctx context.Context, c change) (int64, error) {
	answer, err := s.evalBy(ctx, "evalsha", c.script.hash, c)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return s.evalBy(ctx, "eval", c.script.source, c)
	}
	return answer, err
}

func (s *Store) evalBy(ctx context.Context, command, text string, c change) (int64, error) {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	args = append(args, command, text, len(c.keys))
	for _, key := range c.keys {
		args = append(args, key)
	}
	cmd := redis.NewIntCmd(ctx, append(args, c.args...)...)
	// After an error the command may still be under way and is not looked at.
	if err := s.trips.do(ctx, cmd); err != nil {
		return 0, err
	}
	return cmd.Val(), nil
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

// CheckScripts runs every script on keys of its own, which it leaves to expire
// within seconds, and remembers for Scripting whether the server refused.
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
	first := idempotency.Claim{Token: "check." + rand.Text(), Lease: window, TTL: window, Confirmed: s.now()}
	second := first
	second.Token = "check." + rand.Text()
	key := s.prefix + "check:" + first.Token
	beat := heartbeat{key: key + ".beat", text: second.Token, ttl: window}
	for _, written := range [][2]string{
		{key, string(appendValue(nil, claimed, first.Token, message.Fingerprint{}))},
		{beat.key, beat.text},
	} {
		set := redis.NewStatusCmd(ctx, "set", written[0], written[1], "px", window.Milliseconds())
		if err := s.trips.do(ctx, set); err != nil {
			return fmt.Errorf("check scripts: set: %w", redact.Error(err))
		}
	}
	taking := idempotency.Request{Token: second.Token, Lease: window}
	for _, step := range []struct {
		name   string
		change change
		want   int64
	}{
		{"renew", s.renewal(key, first), yes},
		{"reclaim", s.reclaimingDead(key, taking, first.Token, key+".owner", beat), reclaimed},
		{"record", s.recording(key, second, nil), yes},
		{"settle", s.settling(key, first, nil), slipped},
		{"release", s.releasing(key, second), no},
	} {
		answer, err := s.eval(ctx, step.change)
		if err != nil {
			return fmt.Errorf("check scripts: %s: %w", step.name, redact.Error(err))
		}
		if answer != step.want {
			return fmt.Errorf("check scripts: %s answered %d, want %d", step.name, answer, step.want)
		}
	}
	return nil
}
