package redisclient_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

var awkwardPasswords = []string{"p@ss", "a/b", "a#b?c", "a%zz", "a:b", `"`, "plain"}

func open(t *testing.T, cfg redisconf.Config) redis.UniversalClient {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	c, err := redisclient.New(cfg, redisclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func hostPort(t *testing.T, addr string) (string, int) {
	t.Helper()
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

func config(change func(*redisconf.Config)) redisconf.Config {
	cfg := redisconf.DefaultConfig()
	change(&cfg)
	return cfg
}

func TestB69_AwkwardPasswordsReachTheServerAsTheyAre(t *testing.T) {
	t.Parallel()
	server := redistest.StartTCP(t)
	host, port := hostPort(t, server.Addr())
	for i, password := range awkwardPasswords {
		user := fmt.Sprintf("user%d", i)
		if err := server.Client().Do(t.Context(), "acl", "setuser", user, "on", ">"+password, "~*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		encoded := url.UserPassword(user, password).String()
		for form, cfg := range map[string]redisconf.Config{
			"fields": config(func(c *redisconf.Config) {
				c.Host, c.Port, c.DB, c.Username, c.Password = host, port, 3, user, secret.New(password)
			}),
			"url": config(func(c *redisconf.Config) {
				c.URL = secret.New(fmt.Sprintf("redis://%s@%s/3", encoded, server.Addr()))
			}),
		} {
			t.Run(form+" "+strconv.Quote(password), func(t *testing.T) {
				t.Parallel()
				c := open(t, cfg)
				if got, err := c.Do(t.Context(), "acl", "whoami").Text(); got != user || err != nil {
					t.Errorf("connected as %q, %v; want %s", got, err, user)
				}
				if info, err := c.Do(t.Context(), "client", "info").Text(); !strings.Contains(info, " db=3 ") {
					t.Errorf("connected to %q, %v; want db=3", info, err)
				}
			})
		}
	}
}

func TestB69_APasswordWithoutAUser(t *testing.T) {
	t.Parallel()
	server := redistest.StartTCP(t, "--requirepass", "p@ss/#")
	host, port := hostPort(t, server.Addr())
	for form, cfg := range map[string]redisconf.Config{
		"fields": config(func(c *redisconf.Config) { c.Host, c.Port, c.Password = host, port, secret.New("p@ss/#") }),
		"url":    config(func(c *redisconf.Config) { c.URL = secret.New("redis://:p%40ss%2F%23@" + server.Addr()) }),
	} {
		if err := open(t, cfg).Ping(t.Context()).Err(); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
}

func TestB69_TLSWithAPrivateAuthority(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	host, port := hostPort(t, server.Addr())
	private := &redisconf.TLS{CAFile: server.CAFile}
	for name, c := range map[string]struct {
		cfg  redisconf.Config
		want redisclient.Class
	}{
		"rediss url": {config(func(c *redisconf.Config) { c.URL, c.TLS = secret.New("rediss://"+server.Addr()), private }), ""},
		"redis url":  {config(func(c *redisconf.Config) { c.URL, c.TLS = secret.New("redis://"+server.Addr()), private }), ""},
		"fields":     {config(func(c *redisconf.Config) { c.Host, c.Port, c.TLS = host, port, private }), ""},
		"server name": {config(func(c *redisconf.Config) {
			c.Host, c.Port, c.TLS = host, port, &redisconf.TLS{CAFile: server.CAFile, ServerName: redistest.ServerName}
		}), ""},
		"other name": {config(func(c *redisconf.Config) {
			c.Host, c.Port, c.TLS = host, port, &redisconf.TLS{CAFile: server.CAFile, ServerName: "other.test"}
		}), redisclient.TLS},
		"no authority": {config(func(c *redisconf.Config) { c.URL = secret.New("rediss://" + server.Addr()) }), redisclient.TLS},
		"no TLS":       {config(func(c *redisconf.Config) { c.Host, c.Port = host, port }), redisclient.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := open(t, c.cfg).Ping(t.Context()).Err()
			if got := redisclient.Classify(err); got != c.want {
				t.Errorf("Ping = %v of class %q, want class %q", err, got, c.want)
			}
		})
	}
}

func TestABadAuthorityIsNamedByTheFirstCall(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bad, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{bad, bad + ".missing"} {
		c := open(t, redisconf.Config{Host: "127.0.0.1", Port: 1, Prefix: "gateway:", TLS: &redisconf.TLS{CAFile: file}})
		err := c.Ping(t.Context()).Err()
		if err == nil || !strings.Contains(err.Error(), "ca_file") || !strings.Contains(err.Error(), file) {
			t.Errorf("Ping = %v, want an error that names ca_file and %s", err, file)
		}
		if class := redisclient.Classify(err); class != redisclient.TLS {
			t.Errorf("class = %q, want tls: nothing heals that by itself", class)
		}
	}
}

func TestAUnixSocketByFieldAndByURL(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for form, cfg := range map[string]redisconf.Config{
		"field": config(func(c *redisconf.Config) { c.Host = server.Addr() }),
		"url":   config(func(c *redisconf.Config) { c.URL = secret.New("unix://" + server.Addr() + "?db=2") }),
	} {
		if err := open(t, cfg).Ping(t.Context()).Err(); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// A user who may do what the gateway needs, and nothing about connections.
func TestAUserWithFewPermissionsConnects(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--user", "gw", "on", ">pw", "~gw:*", "+set", "+get", "+hello", "+auth", "+select")
	c := open(t, config(func(c *redisconf.Config) { c.Host, c.Username, c.Password = server.Addr(), "gw", secret.New("pw") }))
	if err := c.Set(t.Context(), "gw:k", "v", time.Minute).Err(); err != nil {
		t.Error(err)
	}
	if err := c.Set(t.Context(), "other:k", "v", time.Minute).Err(); redisclient.Classify(err) != redisclient.Permission {
		t.Errorf("Set of a foreign key = %v, want class permission", err)
	}
}

// Not parallel: the library has one log for the whole process.
func TestTheLibrarysLogGoesWhereItIsTold(t *testing.T) {
	var out bytes.Buffer
	redisclient.LogTo(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer redisclient.LogTo(slog.New(slog.DiscardHandler))
	server := redistest.Start(t)
	server.Stop()
	if err := open(t, config(func(c *redisconf.Config) { c.Host = server.Addr() })).Ping(t.Context()).Err(); err == nil {
		t.Fatal("a stopped server answered")
	}
	if !strings.Contains(out.String(), "level=DEBUG") || !strings.Contains(out.String(), "failed to dial") {
		t.Errorf("log = %q, want the failed dial at level debug", out.String())
	}
}

func TestALostAnswerIsAskedForAgain(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	host, port := hostPort(t, proxy.Addr())
	c := open(t, config(func(c *redisconf.Config) { c.Host, c.Port = host, port }))
	proxy.CutReply("the-key")
	if err := c.Set(t.Context(), "the-key", "v", time.Minute).Err(); err != nil {
		t.Errorf("Set = %v, want the second attempt's success", err)
	}
}

func TestB65_AContextBoundsDialAndReply(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	host, port := hostPort(t, proxy.Addr())
	c := open(t, config(func(c *redisconf.Config) { c.Host, c.Port = host, port }))
	proxy.Delay(3 * time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := c.Ping(ctx).Err()
	if took := time.Since(start); err == nil || took > time.Second {
		t.Errorf("Ping = %v after %s, want an error after 100ms", err, took)
	}
}
