package redisclient_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redisclient"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/internal/secret"
)

func openAt(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	host, port := hostPort(t, addr)
	return open(t, config(func(c *redisconf.Config) { c.Host, c.Port = host, port }))
}

// fail calls until the breaker has opened, and returns what it says.
func fail(t *testing.T, call func(context.Context) error) error {
	t.Helper()
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := call(ctx)
		cancel()
		if errors.Is(err, redisclient.ErrOpen) {
			return err
		}
	}
	t.Fatal("ten calls have failed, and the breaker is not open")
	return nil
}

// recovers calls until one is answered.
func recovers(t *testing.T, call func(context.Context) error) {
	t.Helper()
	end, tick := time.NewTimer(10*time.Second), time.NewTicker(20*time.Millisecond)
	defer end.Stop()
	defer tick.Stop()
	for {
		err := call(t.Context())
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("after 10s: %v", err)
		}
	}
}

func set(c redis.UniversalClient) func(context.Context) error {
	return func(ctx context.Context) error { return c.Set(ctx, "{gw}:k", "v", time.Minute).Err() }
}

// The ways to call: each meets the same breaker.
func calls(c redis.UniversalClient) map[string]func(context.Context) error {
	queue := func(ctx context.Context) func(redis.Pipeliner) error {
		return func(p redis.Pipeliner) error { return p.Set(ctx, "{gw}:k", "v", time.Minute).Err() }
	}
	return map[string]func(context.Context) error{
		"command": set(c),
		"script":  func(ctx context.Context) error { return c.EvalSha(ctx, "x", []string{"{gw}:k"}).Err() },
		"pipeline": func(ctx context.Context) error {
			_, err := c.Pipelined(ctx, queue(ctx))
			return err
		},
		"transaction": func(ctx context.Context) error {
			_, err := c.TxPipelined(ctx, queue(ctx))
			return err
		},
		"watch": func(ctx context.Context) error {
			return c.Watch(ctx, func(*redis.Tx) error { return nil }, "{gw}:k")
		},
		"scan": func(ctx context.Context) error { return c.Scan(ctx, 0, "{gw}:*", 10).Err() },
		"info": func(ctx context.Context) error { return c.Info(ctx).Err() },
	}
}

// B64: the server is frozen. Three calls wait for it, the others do not.
func TestB64_CallsToAFrozenServerCostNothingOnceTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	server := redistest.StartTCP(t)
	c := openAt(t, server.Addr())
	recovers(t, set(c))
	server.Pause()
	fail(t, set(c))
	for name, call := range calls(c) {
		fastest := time.Hour // a busy machine can stop any one of them
		for range 20 {
			fail(t, set(c)) // open, and just now
			start := time.Now()
			if err := call(t.Context()); !errors.Is(err, redisclient.ErrOpen) || redisclient.Classify(err) != redisclient.Unreachable {
				t.Fatalf("%s: %v, want ErrOpen of class unreachable", name, err)
			}
			fastest = min(fastest, time.Since(start))
		}
		if fastest > 2*time.Millisecond {
			t.Errorf("%s: took %s, want less than 2ms", name, fastest)
		}
	}
	server.Resume()
	recovers(t, set(c))
}

// A trial that has to open a connection, with a password and a database.
func TestTheClientComesBackAfterARestart(t *testing.T) {
	t.Parallel()
	server := redistest.StartTCP(t, "--requirepass", "pw")
	host, port := hostPort(t, server.Addr())
	c := open(t, config(func(c *redisconf.Config) { c.Host, c.Port, c.Password, c.DB = host, port, secret.New("pw"), 3 }))
	recovers(t, set(c))
	server.Stop()
	fail(t, set(c))
	server.Restart()
	recovers(t, set(c))
}

// What happens inside a transaction counts as well.
func TestTheBreakerSeesTheCommandsOfATransaction(t *testing.T) {
	t.Parallel()
	stub := redistest.NewStub(t)
	c := openAt(t, stub.Addr())
	stub.Refuse("OOM command not allowed", "getrange")
	for range 3 {
		err := c.Watch(t.Context(), func(tx *redis.Tx) error { return tx.GetRange(t.Context(), "k", 0, 1).Err() }, "k")
		if redisclient.Classify(err) != redisclient.OOM {
			t.Fatalf("Watch = %v, want the server's refusal", err)
		}
	}
	// WATCH was answered each time, so that nothing failed in a row.
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("Ping = %v", err)
	}
	stub.Refuse("OOM command not allowed", "getrange", "watch")
	fail(t, calls(c)["watch"])
	err := c.Ping(t.Context()).Err()
	if !errors.Is(err, redisclient.ErrOpen) {
		t.Errorf("Ping = %v, want ErrOpen", err)
	}
}

// B71: PING and GET are fine, every write is refused.
func TestB71_AServerThatRefusesWrites(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]redisclient.Class{
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": redisclient.Misconf,
		"OOM command not allowed when used memory > 'maxmemory'.":                                          redisclient.OOM,
		"ERR Error running script: @user_script:1: -MISCONF Redis is configured to save RDB snapshots":     redisclient.Misconf,
	} {
		stub := redistest.NewStub(t)
		stub.Refuse(text, "set", "evalsha", "eval")
		c := openAt(t, stub.Addr())
		if err := c.Ping(t.Context()).Err(); err != nil {
			t.Fatalf("Ping = %v", err)
		}
		for name, call := range calls(c) {
			if name != "command" && name != "script" && name != "pipeline" {
				continue
			}
			recovers(t, func(ctx context.Context) error { return c.Ping(ctx).Err() })
			if err := call(t.Context()); redisclient.Classify(err) != want || errors.Is(err, redisclient.ErrOpen) {
				t.Errorf("%s: %v of class %s, want the server's refusal of class %s", name, err, redisclient.Classify(err), want)
			}
			if err := fail(t, call); redisclient.Classify(err) != want {
				t.Errorf("%s with the breaker open: %v, want class %s", name, err, want)
			}
		}
	}
}

// B134: trouble that only a person can end stays told from an absent server,
// with the breaker open too.
func TestB134_TheClassOfTroubleStays(t *testing.T) {
	t.Parallel()
	locked := redistest.StartTCP(t, "--requirepass", "right")
	encrypted := redistest.StartTLS(t)
	absent := redistest.StartTCP(t)
	absent.Stop()
	at := func(addr string, change func(*redisconf.Config)) redis.UniversalClient {
		host, port := hostPort(t, addr)
		return open(t, config(func(c *redisconf.Config) {
			c.Host, c.Port = host, port
			change(c)
		}))
	}
	for want, c := range map[redisclient.Class]redis.UniversalClient{
		redisclient.Auth:        at(locked.Addr(), func(c *redisconf.Config) { c.Password = secret.New("wrong") }),
		redisclient.Unreachable: at(absent.Addr(), func(*redisconf.Config) {}),
		redisclient.TLS: at(encrypted.Addr(), func(c *redisconf.Config) {
			c.TLS = &redisconf.TLS{CAFile: encrypted.CAFile, ServerName: "other.test"}
		}),
	} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			if err := set(c)(t.Context()); redisclient.Classify(err) != want || errors.Is(err, redisclient.ErrOpen) {
				t.Errorf("Set = %v of class %s", err, redisclient.Classify(err))
			}
			err := fail(t, set(c))
			if redisclient.Classify(err) != want || !strings.Contains(err.Error(), string(want)) {
				t.Errorf("with the breaker open: %v of class %s", err, redisclient.Classify(err))
			}
		})
	}
}

// B54: after a failover behind one name the connections to the old primary go
// on to answer, and what they say is READONLY.
func TestB54_NoConnectionToADemotedServerSurvives(t *testing.T) {
	t.Parallel()
	const old = 8 // more than a call's attempts use up
	for _, text := range []string{
		"READONLY You can't write against a read only replica.",
		"ERR Error running script (call to f_x): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.",
	} {
		for _, form := range []string{"command", "script", "pipeline"} {
			t.Run(form+" "+text[:8], func(t *testing.T) {
				t.Parallel()
				stub := redistest.NewStub(t)
				host, port := hostPort(t, stub.Addr())
				c, err := redisclient.New(redisconf.Config{Host: host, Port: port}, redisclient.Options{PoolSize: old})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				gather(t, stub, c, old)
				made := stub.Conns()
				stub.Answer(func(r redistest.Request) string {
					switch {
					case r.Args[0] == "hello":
						return ""
					case r.Conn > made:
						return "+OK"
					}
					return "-" + text
				})
				call := calls(c)[form]
				if err := call(t.Context()); redisclient.Classify(err) != redisclient.ReadOnly {
					t.Fatalf("first attempt: %v, want READONLY", err)
				}
				for range 2 * old {
					if err := call(t.Context()); err != nil {
						t.Errorf("after it: %v, want success", err)
					}
				}
			})
		}
	}
}

// gather fills both pools of c, that of commands and that of pipelines, with n
// connections: each holds one call until all are there.
func gather(t *testing.T, stub *redistest.Stub, c redis.UniversalClient, n int) {
	t.Helper()
	for _, call := range []func() error{
		func() error { return c.Ping(t.Context()).Err() },
		func() error {
			_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Ping(t.Context()).Err() })
			return err
		},
	} {
		var all, done sync.WaitGroup
		all.Add(n)
		stub.Answer(func(r redistest.Request) string {
			if r.Args[0] == "ping" {
				all.Done()
				all.Wait()
			}
			return ""
		})
		for range n {
			done.Go(func() {
				if err := call(); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
	}
}

// Many calls meet a demoted server at once. What the first of them has had
// replaced, the last does not close.
func TestB54_NewConnectionsAreKept(t *testing.T) {
	t.Parallel()
	stub, all := redistest.NewStub(t), redisclient.NewConnections()
	dial := func() net.Conn {
		c, err := all.Dial(t.Context(), stub.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ping := func(c net.Conn) error {
		_, err := io.WriteString(c, "*1\r\n$4\r\nPING\r\n")
		return err
	}
	before, old := all.Age(), []net.Conn{dial(), dial()}
	all.GiveUp(before)
	now := dial()
	all.GiveUp(before)
	for _, c := range old {
		if err := ping(c); !errors.Is(err, net.ErrClosed) {
			t.Errorf("an old connection: %v, want that it is closed", err)
		}
	}
	if err := ping(now); err != nil {
		t.Errorf("the new connection: %v", err)
	}
}

// With TLS the client's pool cannot look at the socket by itself.
func TestB54_EncryptedConnectionsAreGivenUpToo(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	host, port := hostPort(t, server.Addr())
	c := open(t, config(func(c *redisconf.Config) { c.Host, c.Port, c.TLS = host, port, &redisconf.TLS{CAFile: server.CAFile} }))
	before := make(map[int64]bool)
	hold(t, c, 8, func(id int64) { before[id] = true })
	if err := server.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := calls(c)["pipeline"](t.Context()); redisclient.Classify(err) != redisclient.ReadOnly {
		t.Fatalf("a pipeline: %v, want READONLY", err)
	}
	// Those for single commands have said nothing, and are given up as well.
	hold(t, c, 8, func(id int64) {
		if before[id] {
			t.Errorf("connection %d is still in use", id)
		}
	})
}

// hold shows the ids of n connections of c that are in use at the same time.
func hold(t *testing.T, c redis.UniversalClient, n int, show func(id int64)) {
	t.Helper()
	if n == 0 {
		return
	}
	if err := c.Watch(t.Context(), func(tx *redis.Tx) error {
		id, err := tx.ClientID(t.Context()).Result()
		show(id)
		hold(t, c, n-1, show)
		return err
	}, "k"); err != nil {
		t.Fatal(err)
	}
}
