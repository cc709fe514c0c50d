package redisclient

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// ErrOpen is the error of a call that was not sent, because the calls before
// it failed: the caller need not wait for a server that is away. Classify says
// how they failed.
var ErrOpen = errors.New("the breaker is open")

const (
	tolerated = 2                      // failures in a row after which calls still are sent
	pause     = 500 * time.Millisecond // then until one call is sent to see what has become of the server
)

// openError is ErrOpen with what opened the breaker.
type openError struct{ class Class }

func (e *openError) Error() string {
	return fmt.Sprintf("not sent to Redis, since the calls before it failed (%s); one is tried every %s", e.class, pause)
}

func (e *openError) Is(target error) bool { return target == ErrOpen }

// breaker stops the calls of one client while they fail. It has to be the
// client's first hook, so that a call counts once with all its attempts.
type breaker struct {
	gate *gobreaker.TwoStepCircuitBreaker[any]
	last atomic.Pointer[openError] // what calls get while the gate is closed to them
}

var _ redis.Hook = (*breaker)(nil)

func newBreaker() *breaker {
	b := new(breaker)
	b.gate = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Timeout:      pause,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures > tolerated },
		IsExcluded:   func(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) },
		IsSuccessful: b.judge,
	})
	return b
}

// judge reports whether a call got an answer, be it a refusal of this one call.
// The gate asks about no call that began before it last opened, so what failed
// last is what opened it.
func (b *breaker) judge(err error) bool {
	if !unserved(err) {
		return true
	}
	b.last.Store(&openError{Classify(err)})
	return false
}

// unserved reports whether err means that the server serves nobody for now.
func unserved(err error) bool {
	if err == nil || err == redis.Nil {
		return false
	}
	class := Classify(err)
	return class != Permission && class != Other
}

// enter returns what has to be called with the outcome, or why the call must
// not be sent. A call that comes too late says nothing about the server.
func (b *breaker) enter(ctx context.Context) (func(error), error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	done, err := b.gate.Allow()
	if err != nil {
		return nil, b.last.Load()
	}
	return done, nil
}

// DialHook implements redis.Hook.
func (b *breaker) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (b *breaker) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) (err error) {
		if passes(cmd) {
			return next(ctx, cmd)
		}
		done, err := b.enter(ctx)
		if err != nil {
			return err
		}
		defer func() { done(err) }()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (b *breaker) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		if passes(cmds[0]) {
			return next(ctx, cmds)
		}
		done, err := b.enter(ctx)
		if err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		defer func() { done(worst(err, cmds)) }()
		return next(ctx, cmds)
	}
}

// passes reports whether cmd is part of another call, which counts: the client
// opens a connection with these, and UNWATCH gives one back as it was.
func passes(cmd redis.Cmder) bool {
	switch cmd.Name() {
	case "hello", "auth", "select", "unwatch":
		return true
	}
	return false
}

// worst returns the error of a pipeline that says most about the server.
func worst(err error, cmds []redis.Cmder) error {
	if err == nil || unserved(err) {
		return err
	}
	for _, cmd := range cmds {
		if e := cmd.Err(); unserved(e) {
			return e
		}
	}
	return err
}
