package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed owner.lua
var ownerSource string

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
type scripts struct {
	reclaim, record, release, renew, settle script
	inbox                                   inboxScripts
}

func newScripts() scripts {
	return scripts{
		reclaim: newScript(ownerSource + reclaimSource), record: newScript(recordSource), release: newScript(releaseSource),
		renew: newScript(renewSource), settle: newScript(settleSource),
		inbox: newInboxScripts(),
	}
}

type script struct{ source, hash string }

func newScript(source string) script {
	return script{source: source, hash: redis.NewScript(source).Hash()}
}

// eval runs the script of c.
func (s *Store) eval(ctx context.Context, c change) (int64, error) {
	cmd, err := evaluate(ctx, s, redis.NewIntCmd, c.script, c.keys, c.args)
	// After an error the command may still be under way and is not looked at.
	if err != nil {
		return 0, err
	}
	return cmd.Val(), nil
}

// evaluate runs a script. A server forgets its scripts when it restarts, fails
// over or is told to; then the source is sent, once.
func evaluate[T redis.Cmder](ctx context.Context, s *Store, newCmd func(context.Context, ...any) T, sc script, keys []string, args []any) (T, error) {
	cmd := newCmd(ctx, sc.call("evalsha", sc.hash, keys, args)...)
	err := s.trips.do(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = newCmd(ctx, sc.call("eval", sc.source, keys, args)...)
		err = s.trips.do(ctx, cmd)
	}
	return cmd, err
}

// call returns the words of a command that runs the script.
func (script) call(command, text string, keys []string, args []any) []any {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, command, text, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	return append(words, args...)
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
