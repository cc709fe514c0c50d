package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/idempotency"
)

func TestDefault(t *testing.T) {
	t.Parallel()
	c := config.Default()
	if c.Gateway.Host != "127.0.0.1" || c.Gateway.Port != 8765 || c.Gateway.StateDir != "" || !c.Gateway.AuthToken.IsEmpty() {
		t.Errorf("Default().Gateway = %+v, want 127.0.0.1:8765 without token and state directory", c.Gateway)
	}
	if got := c.Hooks.Idempotency.StoreBackend; got != idempotency.BackendSQLite {
		t.Errorf("store_backend = %q, want sqlite", got)
	}
	if got := c.Agents["assistant"]; len(c.Agents) != 1 || got.Kind != agent.KindEcho {
		t.Errorf("Default().Agents = %+v, want only assistant, an echo", c.Agents)
	}
	if h := c.Hooks.Hooks; len(h) != 1 || h[0].Path != "echo" || h[0].Agent != "assistant" {
		t.Errorf("Default().Hooks.Hooks = %+v, want only echo", h)
	}
}

func TestLocate(t *testing.T) {
	t.Chdir(t.TempDir())
	named := environ("GATEWAY_CONFIG=env.yaml")
	locate := func(flag string, env config.Env, want string) {
		t.Helper()
		if got := config.Locate(flag, env); got != want {
			t.Errorf("Locate(%q) = %q, want %q", flag, got, want)
		}
	}
	locate("", environ(), "")
	locate("", environ("GATEWAY_CONFIG="), "")
	locate("", named, "env.yaml")
	locate("flag.yaml", named, "flag.yaml")

	if err := os.Symlink("nowhere", "gateway.yaml"); err != nil {
		t.Fatal(err)
	}
	locate("", environ(), "gateway.yaml") // a broken link is not "no file"
	locate("", named, "env.yaml")
	locate("flag.yaml", environ(), "flag.yaml")
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Run("no file is the embedded default in the state directory of the environment", func(t *testing.T) {
		t.Parallel()
		c, err := config.Load("", environ("GATEWAY_AUTH_TOKEN=t0ken"))
		if err != nil || len(c.Hooks.Hooks) != 1 || c.Gateway.StateDir != "/home/gateway/.local/state/oncegate" || c.Gateway.AuthToken.Reveal() != "t0ken" {
			t.Errorf("Load(\"\") = %+v, %v; want the default", c, err)
		}
	})
	t.Run("an empty file has the defaults of every section, no hooks and no agents", func(t *testing.T) {
		t.Parallel()
		for i, text := range []string{"", "\n\n", "# nothing\n", "---\n", "{}\n", "\ufeff"} {
			c, err := config.Load(write(fmt.Sprintf("empty%d.yaml", i), text), environ())
			if err != nil || len(c.Hooks.Hooks) != 0 || len(c.Agents) != 0 || c.Gateway.Port != 8765 || c.Hooks.Idempotency != idempotency.DefaultConfig() {
				t.Errorf("Load of %q = %+v, %v; want the defaults", text, c, err)
			}
		}
	})
	for _, test := range []struct{ name, path, want string }{
		{"a missing file", filepath.Join(dir, "missing.yaml"), "does not exist"},
		{"a directory", dir, "is a directory, not a file"},
		{"a file below a file", filepath.Join(write("file", ""), "x"), "cannot be read: not a directory"},
		{"a huge file", write("huge.yaml", strings.Repeat("#", 8<<20+1)), "is larger than 8 MiB"},
		{"a program", write("program", "\x7fELF\x02\x01\x01\x00"), "has a control character; a configuration is plain text"},
	} {
		t.Run(test.name+" is one clear sentence", func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(test.path, environ())
			want := test.path + ": " + test.want
			if test.name == "a program" {
				want = test.path + ":1: " + test.want
			}
			if err == nil || err.Error() != want {
				t.Errorf("Load = %v, want %s", err, want)
			}
		})
	}
	t.Run("a file that may not be read is one clear sentence", func(t *testing.T) {
		t.Parallel()
		path := write("private.yaml", "")
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		want := path + ": cannot be read: permission denied"
		if f, err := os.Open(path); err == nil {
			_ = f.Close() // only opened to find out
			want = ""     // root may read everything
		}
		got := ""
		if _, err := config.Load(path, environ()); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("Load = %q, want %q", got, want)
		}
	})
	t.Run("a file that breaks off while it is read is one clear sentence", func(t *testing.T) {
		t.Parallel()
		const path = "/proc/self/mem" // opens, and has nothing at its beginning, for root too
		if _, err := config.Load(path, environ()); err == nil || err.Error() != path+": cannot be read: input/output error" {
			t.Errorf("Load = %v, want the input/output error", err)
		}
	})
}

func TestStateDir(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, configured string
		env              []string
		want, wantErr    string
	}{
		{"the home directory", "", nil, "/home/gateway/.local/state/oncegate", ""},
		{"XDG_STATE_HOME before it", "", []string{"XDG_STATE_HOME=/xdg"}, "/xdg/oncegate", ""},
		{"a relative XDG_STATE_HOME does not count", "", []string{"XDG_STATE_HOME=xdg"}, "/home/gateway/.local/state/oncegate", ""},
		{"STATE_DIRECTORY before both", "", []string{"XDG_STATE_HOME=/xdg", "STATE_DIRECTORY=/var/lib/a"}, "/var/lib/a", ""},
		{"the first of several", "", []string{"STATE_DIRECTORY=/var/lib/a:/var/lib/b"}, "/var/lib/a", ""},
		{"the file before all", "/srv", []string{"STATE_DIRECTORY=/var/lib/a"}, "/srv", ""},
		{"a relative one as it is", "state", nil, "state", ""},
		{"the home directory by its sign", "~/state", nil, "/home/gateway/state", ""},
		{"the home directory itself", `"~"`, nil, "/home/gateway", ""},
		{"an empty one is none", `""`, nil, "/home/gateway/.local/state/oncegate", ""},
		{"no place at all", "", []string{"HOME="}, "", "is not set, and neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME is; set one of them"},
		{"no home for the sign", "~/state", []string{"HOME=", "STATE_DIRECTORY=/a"}, "", "begins with ~, but HOME is not set; write the whole path"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			text := ""
			if test.configured != "" {
				text = "gateway: {state_dir: " + test.configured + "}"
			}
			if test.wantErr != "" {
				p := mustFail(t, text, environ(test.env...))
				if len(p) != 1 || p[0].Path != "gateway.state_dir" || p[0].Reason != test.wantErr {
					t.Errorf("problems = %v, want gateway.state_dir: %s", p, test.wantErr)
				}
			} else if got := mustParse(t, text, environ(test.env...)).Gateway.StateDir; got != test.want {
				t.Errorf("state_dir = %q, want %q", got, test.want)
			}
		})
	}
}

// mustReadGood returns the configuration in testdata/good.
func mustReadGood(t *testing.T, name string, env config.Env) config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join("testdata", "good", name+".yaml"), env)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGoodFiles(t *testing.T) {
	t.Parallel()
	t.Run("the documented configuration", func(t *testing.T) {
		t.Parallel()
		c := mustReadGood(t, "documented", environ())
		if a, err := c.Gateway.Push.Redis.Address(); err != nil || a.Host != "localhost" || a.Port != 6379 {
			t.Errorf("Address() = %+v, %v; want localhost:6379", a, err)
		}
		want := hooks.DefaultHook()
		want.Path, want.Agent = "gmail", "assistant"
		if got := fmt.Sprintf("%+v", c.Hooks.Hooks); got != fmt.Sprintf("%+v", []hooks.Hook{want}) || c.Hooks.Idempotency.StoreBackend != "redis" {
			t.Errorf("Hooks = %+v, want redis and %+v", c.Hooks, want)
		}
	})
	t.Run("sections without values keep their defaults", func(t *testing.T) {
		t.Parallel()
		c := mustReadGood(t, "sections-without-values", environ())
		empty := mustParse(t, "", environ())
		if fmt.Sprintf("%+v", c) != fmt.Sprintf("%+v", empty) {
			t.Errorf("Load = %+v, want %+v", c, empty)
		}
	})
	t.Run("a hook without an agent gets the only one", func(t *testing.T) {
		t.Parallel()
		c := mustParse(t, "hooks: {hooks: [{path: a}]}\nagents: {only: }", environ())
		if got := c.Hooks.Hooks[0].Agent; got != "only" || c.Agents["only"].Kind != agent.KindEcho {
			t.Errorf("agent = %q of %+v, want only, an echo", got, c.Agents)
		}
	})
	t.Run("a forwarding hook needs no agent", func(t *testing.T) {
		t.Parallel()
		c := mustParse(t, "hooks: {hooks: [{path: a, action: forward, target: 'http://x'}]}\nagents: {a: , b: }", environ())
		if got := c.Hooks.Hooks[0].Agent; got != "" {
			t.Errorf("agent = %q, want none", got)
		}
	})
	t.Run("an optional value is set only when it is present", func(t *testing.T) {
		t.Parallel()
		c := mustParse(t, "gateway: {push: {redis: {host: h, tls: {}}}}\nagents: {a: }\n"+
			"hooks: {hooks: [{path: a}, {path: b, lease: 5s, auth: x, signature: {scheme: github, secrets: [12345678]}}]}", environ())
		without, with := c.Hooks.Hooks[0], c.Hooks.Hooks[1]
		if without.Lease != nil || without.TTL != nil || without.Auth != nil || without.Signature != nil {
			t.Errorf("hook = %+v, want nothing optional", without)
		}
		if with.Lease == nil || *with.Lease != 5*time.Second || with.Auth == nil || with.Auth.Only.Reveal() != "x" ||
			with.Signature == nil || with.Signature.Secrets[0].Reveal() != "12345678" {
			t.Errorf("hook = %+v, want lease, auth and signature", with)
		}
		if c.Gateway.Push.Redis.TLS == nil {
			t.Error("tls: {} left TLS off")
		}
	})
}

func TestReferencesInNumbersAndBooleans(t *testing.T) {
	t.Parallel()
	c := mustParse(t, `
gateway: {port: "${PORT}", max_body_bytes: "${SIZE:-2KiB}", queue_wait: "${N}s", max_concurrent_turns: "1${N}"}
hooks: {hooks: [{path: a, require_key: "${YES}", lease: "${N}"}]}
agents: {a: }`, environ("PORT=80", "N=7", "YES=true"))
	g, h := c.Gateway, c.Hooks.Hooks[0]
	got := fmt.Sprint(g.Port, g.MaxBodyBytes, g.QueueWait, g.MaxConcurrentTurns, h.RequireKey, *h.Lease)
	if want := "80 2KiB 7s 17 true 7s"; got != want {
		t.Errorf("values = %s, want %s", got, want)
	}
}

func TestYAML(t *testing.T) {
	t.Parallel()
	c := mustParse(t, `
gateway: {turn_timeout: 5400, trusted_proxies: [10.0.0.0/8, "2001:db8::7"], max_body_bytes: 1000, push: {redis: {host: h, password: p, tls: {}}}}
hooks:
  idempotency: {lease: 90s, ttl: 7d, claim_timeout: 250ms}
  hooks: [{path: a, account: "0123", session: "$${x}", lease: 1h, agent: m, auth: s}]
agents: {z: , a: , m: {kind: echo}}`, environ())
	got, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	const want = `gateway:
  host: 127.0.0.1
  port: 8765
  auth_token: ""
  public_url: ""
  trusted_proxies:
    - 10.0.0.0/8
    - 2001:db8::7/128
  auth_failures:
    limit: 20
    window: 1m
  state_dir: /home/gateway/.local/state/oncegate
  replicas: 1
  max_body_bytes: 1000
  max_concurrent_turns: 256
  queue_wait: 5s
  turn_timeout: 1h30m
  drain_timeout: 15s
  log:
    level: info
    format: text
  push:
    redis:
      host: h
      password: '***'
      tls: {}
      prefix: 'gateway:'
  turn_lock:
    backend: local
    ttl: 1m
    max_wait: 2h15m
sessions:
  backend: sqlite
  max_turns: 50
  ttl: 720h
hooks:
  idempotency:
    store_backend: sqlite
    lease: 1m30s
    ttl: 168h
    on_unavailable: open
    claim_timeout: 250ms
    takeover_after: 30s
    max_stored_reply: 64KiB
  hooks:
    - path: a
      agent: m
      action: agent
      auth: '***'
      platform: hook
      account: "0123"
      caller_key: false
      accept_idempotency_key: false
      require_key: false
      session: $${x}
      on_duplicate: conflict
      wait_timeout: 10s
      lease: 1h
      soft_failure: true
agents:
  a:
    kind: echo
  m:
    kind: echo
  z:
    kind: echo
`
	if string(got) != want {
		t.Errorf("YAML() =\n%s\nwant\n%s", got, want)
	}
	again, err := mustParse(t, string(got), environ()).YAML()
	if err != nil || string(again) != want {
		t.Errorf("YAML() of its own output =\n%s\n%v, want the same", again, err)
	}
}
