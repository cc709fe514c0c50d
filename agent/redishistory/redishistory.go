// Package redishistory keeps what was said in each session in Redis, where
// every replica sees it.
//
// It promises what agent.History does as long as the server keeps its writes: a
// failover to a replica that lacks some, or an eviction, forgets turns, sessions
// and fences, and nothing here notices. A session is one key, so it is forgotten
// as a whole.
package redishistory

import (
	"context"
	"crypto/rand"
	_ "embed" // for the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/redact"
)

//go:embed enter.lua
var enterSource string

//go:embed begin.lua
var beginSource string

//go:embed append.lua
var appendSource string

//go:embed reset.lua
var resetSource string

// The scripts. A server that does not know one is sent its source, once.
var (
	beginScript  = redis.NewScript(enterSource + beginSource)
	appendScript = redis.NewScript(enterSource + appendSource)
	resetScript  = redis.NewScript(resetSource)
)

// Config is what a History needs beside its client.
type Config struct {
	Prefix   string        // begins every key; the environment
	MaxTurns int           // that are kept of each session
	TTL      time.Duration // how long a session outlives the last write to it
}

// History is an agent.History in Redis. Several on one server and prefix are one.
type History struct {
	client   redis.UniversalClient
	prefix   string // begins the key of a session
	index    string // the key of the index
	probe    string // the session of Ping: one of this History alone
	pings    atomic.Int64
	maxTurns int
	ttl      time.Duration
}

var (
	_ agent.History  = (*History)(nil)
	_ agent.Sessions = (*History)(nil)
)

// New returns a history on client, which stays the caller's: it is closed after
// the history. Nothing is sent yet.
func New(client redis.UniversalClient, c Config) *History {
	return &History{
		client: client, prefix: c.Prefix + "session:", index: c.Prefix + "sessions", probe: c.Prefix + "sessionping:" + rand.Text(),
		maxTurns: c.MaxTurns, ttl: c.TTL,
	}
}

// Close implements agent.History. It leaves the client open.
func (*History) Close() error { return nil }

// maxFence is the largest number that scripts tell from its neighbours.
const maxFence = 1 << 53

// Begin implements agent.History.
func (h *History) Begin(ctx context.Context, session string, fence uint64) ([]agent.Row, error) {
	rows, err := h.begin(ctx, session, fence)
	if err != nil {
		return nil, fmt.Errorf("begin a turn of session %q: %w", session, err)
	}
	return rows, nil
}

func (h *History) begin(ctx context.Context, session string, fence uint64) ([]agent.Row, error) {
	cmd, err := h.enter(ctx, beginScript, session, fence)
	if err != nil {
		return nil, err
	}
	list, err := cmd.StringSlice()
	if err != nil {
		return nil, explain(err)
	}
	if len(list) == 0 {
		return nil, agent.ErrStale
	}
	fields := make(map[string]string, len(list)/2)
	for i := 1; i < len(list); i += 2 {
		fields[list[i-1]] = list[i]
	}
	_, rows, err := parse(session, fields)
	return rows, err
}

// Append implements agent.History.
func (h *History) Append(ctx context.Context, session string, fence uint64, user, assistant agent.Row) error {
	if err := h.append(ctx, session, fence, user, assistant); err != nil {
		return fmt.Errorf("append a turn to session %q: %w", session, err)
	}
	return nil
}

func (h *History) append(ctx context.Context, session string, fence uint64, user, assistant agent.Row) error {
	text, err := encode(user, assistant)
	if err != nil {
		return err
	}
	cmd, err := h.enter(ctx, appendScript, session, fence, h.maxTurns, user.Key, text)
	if err != nil {
		return err
	}
	written, err := cmd.Bool()
	if err != nil {
		return explain(err)
	}
	if !written {
		return agent.ErrStale
	}
	return nil
}

// enter runs one of the scripts that begin with enter.lua; more follows its own
// arguments.
func (h *History) enter(ctx context.Context, s *redis.Script, session string, fence uint64, more ...any) (*redis.Cmd, error) {
	if fence > maxFence {
		return nil, fmt.Errorf("fence %d is larger than 2^53", fence)
	}
	args := append([]any{session, strconv.FormatUint(fence, 10), h.ttl.Milliseconds()}, more...)
	return s.Run(ctx, h.client, []string{h.prefix + session, h.index}, args...), nil
}

// Reset implements agent.Sessions. It is no use of the session, and the remedy
// for one whose turns are unreadable.
func (h *History) Reset(ctx context.Context, session string) error {
	found, err := resetScript.Run(ctx, h.client, []string{h.prefix + session}, h.ttl.Milliseconds()).Bool()
	if err == nil && !found {
		return fmt.Errorf("reset session %q: %w", session, agent.ErrNoSession)
	}
	if err != nil {
		return fmt.Errorf("reset session %q: %w", session, explain(err))
	}
	return nil
}

// explain returns an error of the client in words that may be shown. What it is
// about names the key; what the key holds is in none.
func explain(err error) error {
	err = redact.Error(err)
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%w: the hash of the session, or the index of sessions: %w", agent.ErrUnreadable, err)
	}
	return err
}

// Ping begins and ends a turn of a session that is no message's, and not on the
// index: whether turns can be kept shows in nothing less.
func (h *History) Ping(ctx context.Context) error {
	session, index := h.probe, h.probe+":index"
	fence := strconv.FormatInt(h.pings.Add(1), 10)
	row := rand.Text()
	life := time.Minute.Milliseconds()
	keys := []string{session, index}
	err := appendScript.Run(ctx, h.client, keys, "", fence, life, 1, row, row).Err()
	var fields []string
	if err == nil {
		fields, err = beginScript.Run(ctx, h.client, keys, "", fence, life).StringSlice()
	}
	if err == nil && !slices.Contains(fields, row) {
		err = errors.New("what was read back is not what was written")
	}
	if err != nil {
		return fmt.Errorf("ping the sessions: %w", redact.Error(err))
	}
	return nil
}
