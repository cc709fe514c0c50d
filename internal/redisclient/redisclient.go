// Package redisclient is the one way to build a Redis client, so that every
// part of the gateway meets the same server with the same timeouts, and the
// one place that says what an error of it means.
package redisclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/oncegate/oncegate/internal/redact"
	"github.com/oncegate/oncegate/internal/redisconf"
)

// Options is what a caller may set; zero means the default. A context that
// ends earlier shortens each of the durations.
type Options struct {
	DialTimeout  time.Duration // default 1s
	ReadTimeout  time.Duration // default 2s
	WriteTimeout time.Duration // default 2s
	PoolSize     int           // connections for single commands; default 10 for each CPU
}

// New returns a client of the configured server. It dials nothing: whether the
// server is there shows at the first command. The caller closes it.
func New(cfg redisconf.Config, o Options) (redis.UniversalClient, error) {
	addr, err := cfg.Address()
	if err != nil {
		return nil, fmt.Errorf("redis client: url: %w", err)
	}
	opt := &redis.Options{
		Network:  "tcp",
		Addr:     net.JoinHostPort(addr.Host, strconv.Itoa(addr.Port)),
		Username: addr.Username,
		Password: addr.Password.Reveal(),
		DB:       addr.DB,

		DialTimeout:  orDefault(o.DialTimeout, time.Second),
		ReadTimeout:  orDefault(o.ReadTimeout, 2*time.Second),
		WriteTimeout: orDefault(o.WriteTimeout, 2*time.Second),
		PoolSize:     o.PoolSize,
		// Without it a deadline is only looked at before a command is sent.
		ContextTimeoutEnabled: true,

		// A lost reply is asked for again. The commands can bear it: a claim
		// that meets its own token has won. A dial is part of an attempt and
		// is not repeated inside it.
		MaxRetries:      2,
		MinRetryBackoff: 5 * time.Millisecond,
		MaxRetryBackoff: 50 * time.Millisecond,
		DialerRetries:   1,

		// Shorter than the silence after which load balancers and firewalls
		// forget a connection without a word.
		ConnMaxIdleTime: 4 * time.Minute,

		// Nothing here needs RESP3 and its pushes, and an old server, or a
		// user with few permissions, refuses the commands that come with them.
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if strings.HasPrefix(addr.Host, "/") {
		opt.Network, opt.Addr = "unix", addr.Host
	}
	if addr.TLS {
		if opt.TLSConfig, err = tlsConfig(addr.Host, cfg.TLS); err != nil {
			return nil, fmt.Errorf("redis client: tls: %w", err)
		}
	}
	c := redis.NewClient(opt)
	if !addr.Password.IsEmpty() {
		c.AddHook(scrubber{password: opt.Password})
	}
	return c, nil
}

// LogTo sends what the client library itself has to say to l, at level debug:
// it repeats the errors that callers get. It holds for the whole process, so
// only a main program calls it, before its first client.
func LogTo(l *slog.Logger) { redis.SetLogger(libraryLog{l}) }

type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, args ...any) {
	for i, arg := range args {
		if err, ok := arg.(error); ok {
			args[i] = redact.Error(err)
		}
	}
	l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
}

func orDefault(d, other time.Duration) time.Duration {
	if d == 0 {
		return other
	}
	return d
}

// tlsConfig returns the settings for host; section is nil where only the URL
// asks for encryption.
func tlsConfig(host string, section *redisconf.TLS) (*tls.Config, error) {
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if section == nil {
		return c, nil
	}
	if section.ServerName != "" {
		c.ServerName = section.ServerName
	}
	if section.CAFile != "" {
		pem, err := os.ReadFile(section.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s holds no PEM certificate", section.CAFile)
		}
	}
	return c, nil
}

// scrubber keeps the password out of errors: a server that does not know AUTH
// or HELLO repeats the arguments in its answer.
type scrubber struct{ password string }

var _ redis.Hook = scrubber{}

func (s scrubber) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s scrubber) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return s.scrub(next(ctx, cmd))
	}
}

func (s scrubber) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		for _, cmd := range cmds {
			if e := cmd.Err(); e != nil {
				cmd.SetErr(s.scrub(e))
			}
		}
		return s.scrub(err)
	}
}

// scrub looks at answers of a server only: nothing else has seen the password,
// and the type of a network error says what it is.
func (s scrubber) scrub(err error) error {
	if err == nil || err == redis.Nil {
		return err
	}
	if answer, ok := errors.AsType[redis.Error](err); !ok || !strings.Contains(answer.Error(), s.password) {
		return err
	}
	return reply(strings.ReplaceAll(err.Error(), s.password, "***"))
}

// reply is a server's error answer after scrubbing.
type reply string

var _ redis.Error = reply("")

func (r reply) Error() string { return string(r) }

// RedisError marks the answer of a server.
func (reply) RedisError() {}
