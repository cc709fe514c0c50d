// Package redisclient is the one way to build a Redis client, so that every
// part of the gateway meets the same server with the same timeouts, and the
// one place that says what an error of it means.
package redisclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// New returns a client of the configured server, primary behind Sentinels, or
// cluster. It fails for a URL that cannot be read, and dials nothing: whether a
// server is there, and the files of the section tls, shows at the first
// command. Those files are read for each connection, so that they can be
// replaced. The caller closes the client.
//
// A breaker stands before it: see ErrOpen.
func New(cfg redisconf.Config, o Options) (redis.UniversalClient, error) {
	addr, err := cfg.Address()
	if err != nil {
		return nil, fmt.Errorf("redis client: url: %w", err)
	}
	conns := newConnections(orDefault(o.DialTimeout, time.Second))
	if addr.TLS {
		conns.tls = func() (*tls.Config, error) { return tlsConfig(cfg.TLS) }
	}
	opt, guard := settings(addr, o), newBreaker()
	opt.Dialer = conns.dial
	replies := answers{password: opt.Password, conns: conns}
	switch {
	case cfg.Cluster != nil:
		opt.Addrs = cfg.Cluster.Addrs
		return newCluster(opt.Cluster(), cfg.Prefix, guard, replies), nil
	case cfg.Sentinel != nil:
		opt.Addrs, opt.MasterName = cfg.Sentinel.Addrs, cfg.Sentinel.Master
		return hooked(redis.NewFailoverClient(opt.Failover()), guard, replies.ofOneServer()), nil
	}
	opt.Addrs = []string{net.JoinHostPort(addr.Host, strconv.Itoa(addr.Port))}
	if strings.HasPrefix(addr.Host, "/") {
		opt.Addrs = []string{addr.Host}
	}
	return hooked(redis.NewClient(opt.Simple()), guard, replies.ofOneServer()), nil
}

// hooked returns c with hooks, of which the first sees a call first and its
// answer last.
func hooked(c *redis.Client, hooks ...redis.Hook) *redis.Client {
	for _, h := range hooks {
		c.AddHook(h)
	}
	return c
}

// settings are the same for every kind of client.
func settings(addr redisconf.Address, o Options) *redis.UniversalOptions {
	return &redis.UniversalOptions{
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
		// A name that has come to mean another server is looked up again, though
		// the old one goes on to answer. Spread, so that not all dial at once.
		ConnMaxLifetime:       30 * time.Minute,
		ConnMaxLifetimeJitter: 5 * time.Minute,

		// Nothing here needs RESP3 and its pushes, and an old server, or a
		// user with few permissions, refuses the commands that come with them.
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
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

// tlsConfig returns the settings of section, which is nil where only the URL
// asks for encryption. Without a name of the server's, that is the dialled host.
func tlsConfig(section *redisconf.TLS) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if section == nil {
		return c, nil
	}
	c.ServerName = section.ServerName
	if section.CAFile != "" {
		pem, err := os.ReadFile(section.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls: %w: ca_file: %w", errTLSSettings, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: %w: ca_file: %s holds no PEM certificate", errTLSSettings, section.CAFile)
		}
	}
	return c, nil
}
