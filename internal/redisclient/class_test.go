package redisclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

// answer is the error that a server sends.
type answer string

var _ redis.Error = answer("")

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		want  redisclient.Class
		heals bool
	}{
		{answer("NOAUTH Authentication required."), redisclient.Auth, false},
		{answer("WRONGPASS invalid username-password pair or user is disabled."), redisclient.Auth, false},
		{answer("ERR invalid password"), redisclient.Auth, false},
		{answer("ERR Client sent AUTH, but no password is set"), redisclient.Auth, false},
		{answer("NOPERM this user has no permissions to run the 'evalsha' command"), redisclient.Permission, false},
		{answer("READONLY You can't write against a read only replica."), redisclient.ReadOnly, true},
		{answer("ERR Error running script: -READONLY You can't write against a read only replica."), redisclient.ReadOnly, true},
		{answer("LOADING Redis is loading the dataset in memory"), redisclient.Loading, true},
		{answer("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), redisclient.Unreachable, true},
		{answer("CLUSTERDOWN The cluster is down"), redisclient.Unreachable, true},
		{answer("ERR max number of clients reached"), redisclient.Unreachable, true},
		{answer("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), redisclient.Misconf, true},
		{answer("OOM command not allowed when used memory > 'maxmemory'."), redisclient.OOM, true},
		{answer("ERR -OOM command not allowed when used memory > 'maxmemory'. script: x"), redisclient.OOM, true},
		{answer("WRONGTYPE Operation against a key holding the wrong kind of value"), redisclient.Other, false},
		{answer("MOVED 3999 127.0.0.1:6381"), redisclient.Other, false},
		{answer("CROSSSLOT Keys in request don't hash to the same slot"), redisclient.Other, false},
		{fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", errors.Join(redis.Nil)), redisclient.Unreachable, true},
		{errors.New("redis: cluster has no nodes"), redisclient.Unreachable, true},
		{io.EOF, redisclient.Unreachable, true},
		{context.DeadlineExceeded, redisclient.Unreachable, true},
		{&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}, redisclient.Unreachable, true},
	} {
		// What is wrapped around an error holds keys, which can say anything.
		err := fmt.Errorf("reserve %q: %w", "hook::NOPERM:OOM READONLY", c.err)
		if got := redisclient.Classify(err); got != c.want || got.Heals() != c.heals {
			t.Errorf("Classify(%v) = %q, heals %t; want %q, %t", err, got, got.Heals(), c.want, c.heals)
		}
	}
	if got := redisclient.Classify(nil); got != "" {
		t.Errorf("Classify(nil) = %q", got)
	}
}

func TestClassifyWhatARealServerSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		options []string
		before  []any
		want    redisclient.Class
	}{
		{"no password given", []string{"--requirepass", "pw"}, nil, redisclient.Auth},
		{"a full memory", []string{"--maxmemory", "1"}, nil, redisclient.OOM},
		{"a replica", nil, []any{"replicaof", "127.0.0.1", "1"}, redisclient.ReadOnly},
		{"a replica without a master", []string{"--replica-serve-stale-data", "no", "--replica-read-only", "no"}, []any{"replicaof", "127.0.0.1", "1"}, redisclient.Unreachable},
		{"the wrong type", nil, []any{"lpush", "k", "x"}, redisclient.Other},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.options...)
			if c.before != nil {
				if err := server.Client().Do(t.Context(), c.before...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			client := open(t, config(func(c *redisconf.Config) { c.Host = server.Addr() }))
			err := client.Append(t.Context(), "k", "v").Err()
			if got := redisclient.Classify(err); got != c.want {
				t.Errorf("Append = %v of class %q, want %q", err, got, c.want)
			}
		})
	}
	t.Run("a wrong password", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, "--requirepass", "right")
		client := open(t, config(func(c *redisconf.Config) { c.Host, c.Password = server.Addr(), secret.New("wrong-password") }))
		err := client.Ping(t.Context()).Err()
		if got := redisclient.Classify(err); got != redisclient.Auth || strings.Contains(err.Error(), "wrong-password") {
			t.Errorf("Ping = %v of class %q, want auth without the password", err, got)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		server.Stop()
		client := open(t, config(func(c *redisconf.Config) { c.Host = server.Addr() }))
		if err := client.Ping(t.Context()).Err(); redisclient.Classify(err) != redisclient.Unreachable {
			t.Errorf("Ping = %v of class %q, want unreachable", err, redisclient.Classify(err))
		}
	})
}

// A server that does not know a command repeats its arguments, and those of
// HELLO and AUTH hold the password.
func TestAPasswordThatAServerRepeatsStaysOutOfErrors(t *testing.T) {
	t.Parallel()
	const password = "hunter2-secret"
	stub := redistest.NewStub(t)
	stub.Answer(func(r redistest.Request) string {
		return fmt.Sprintf("-ERR unknown command %s, with args beginning with: %q", r.Args[0], r.Args[1:])
	})
	host, port := hostPort(t, stub.Addr())
	c := open(t, config(func(c *redisconf.Config) { c.Host, c.Port, c.Password = host, port, secret.New(password) }))

	_, pipelined := c.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Get(t.Context(), "k").Err() })
	cmd := c.Get(t.Context(), "k")
	for _, err := range []error{pipelined, cmd.Err()} {
		if err == nil || strings.Contains(err.Error(), password) || !strings.Contains(err.Error(), "***") {
			t.Errorf("error %v, want the server's words with the password as ***", err)
		}
		if _, ok := errors.AsType[redis.Error](err); !ok {
			t.Errorf("error %v is no longer the answer of a server", err)
		}
	}
}
