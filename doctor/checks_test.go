package doctor_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redisconf"
	"github.com/oncegate/oncegate/internal/secret"
)

// finding is what a check ought to say.
type finding struct {
	status health.CheckStatus
	detail string // a part of it
}

func wantFinding(t *testing.T, c health.Check, want finding) {
	t.Helper()
	bad := c.Status == health.CheckWarn || c.Status == health.CheckFail
	if c.Status != want.status || !strings.Contains(c.Detail, want.detail) || bad != (c.Hint != "") {
		t.Errorf("%+v\nwant %s with %q, and a hint where something is wrong", c, want.status, want.detail)
	}
}

func TestRedisChecks(t *testing.T) {
	t.Parallel()
	noperm := errors.New("NOPERM this user has no permissions to run it")
	for _, test := range []struct {
		name   string
		server fakeRedis
		id     string
		want   finding
	}{
		{"an old server", fakeRedis{fields: map[string]string{"redis_version": "6.2.14"}}, doctor.CheckRedisVersion, finding{"warn", "6.2.14"}},
		{"a version of words", fakeRedis{fields: map[string]string{"redis_version": "latest"}}, doctor.CheckRedisVersion, finding{"skipped", `"latest"`}},
		{"a replica that takes writes", fakeRedis{fields: map[string]string{"role": "slave"}}, doctor.CheckRedisRole, finding{"fail", "is a replica"}},
		{"a node of a cluster that is taken for a server", fakeRedis{fields: map[string]string{"cluster_enabled": "1"}}, doctor.CheckRedisRole, finding{"warn", "is a node of a cluster"}},
		{"a cluster's answer across nodes", fakeRedis{scripts: errors.New("CROSSSLOT Keys in request don't hash to the same slot")}, doctor.CheckRedisScripts, finding{"fail", "CROSSSLOT: "}},
		{"no role", fakeRedis{fields: map[string]string{"role": ""}}, doctor.CheckRedisRole, finding{"skipped", "no role"}},
		{"eviction", fakeRedis{fields: map[string]string{"maxmemory_policy": "allkeys-lru"}}, doctor.CheckRedisEviction, finding{"warn", "allkeys-lru"}},
		{"eviction without a bound", fakeRedis{fields: map[string]string{"maxmemory_policy": "allkeys-lru", "maxmemory": "0"}}, doctor.CheckRedisEviction, finding{"ok", "nothing is evicted"}},
		{"no policy", fakeRedis{fields: map[string]string{"maxmemory_policy": ""}}, doctor.CheckRedisEviction, finding{"skipped", "does not say"}},
		{"no append-only file", fakeRedis{fields: map[string]string{"aof_enabled": "0"}}, doctor.CheckRedisPersistence, finding{"warn", "is off"}},
		{"one that cannot be written", fakeRedis{fields: map[string]string{"aof_last_write_status": "err"}}, doctor.CheckRedisPersistence, finding{"fail", "cannot be written"}},
		{"silence about it", fakeRedis{fields: map[string]string{"aof_enabled": ""}}, doctor.CheckRedisPersistence, finding{"skipped", "does not say"}},
		{"B101 a clock that is 20 minutes slow", fakeRedis{skew: 20 * time.Minute}, doctor.CheckRedisClock, finding{"warn", "20m0s behind"}},
		{"B101 a clock that is 20 minutes fast", fakeRedis{skew: -20 * time.Minute}, doctor.CheckRedisClock, finding{"warn", "20m0s ahead of"}},
		{"a clock within bounds", fakeRedis{skew: 3 * time.Second}, doctor.CheckRedisClock, finding{"ok", "agree"}},
		{"an environment inside this one", fakeRedis{found: []string{"prod:hookidem:a:b:c:1", "prod:eu:hookidem:a:b:c:secret-id"}}, doctor.CheckRedisPrefix, finding{"warn", `1 of 2 keys under "prod:" are not the gateway's, such as "prod:eu:…"`}},
		{"the gateway's own keys", fakeRedis{found: []string{"prod:hookidem:a", "prod:hookmsg", "prod:hookmsg:a", "prod:replica:r", "prod:replicas", "prod:turnlock:s", "prod:turnqueue:s", "prod:turnreplicas:s", "prod:turnfence:s", "prod:session:s", "prod:sessionping:x", "prod:sessions", "prod:epoch"}}, doctor.CheckRedisPrefix, finding{"ok", "13 keys"}},
		{"B59 a lock that is refused", fakeRedis{turnLock: errors.New("NOPERM publish"), class: "permission"}, doctor.CheckRedisScripts, finding{"fail", "NOPERM publish"}},
		{"B59 sessions that are refused", fakeRedis{sessions: errors.New("NOPERM hset"), class: "permission"}, doctor.CheckRedisScripts, finding{"fail", "NOPERM hset"}},
		{"a lock and sessions that work", fakeRedis{}, doctor.CheckRedisScripts, finding{"ok", "the claim scripts run, the turn lock works, sessions can be kept"}},
		{"INFO refused: version", fakeRedis{info: noperm}, doctor.CheckRedisVersion, finding{"skipped", "INFO is refused: NOPERM"}},
		{"INFO refused: role", fakeRedis{info: noperm}, doctor.CheckRedisRole, finding{"skipped", "INFO is refused"}},
		{"INFO refused: eviction", fakeRedis{info: noperm}, doctor.CheckRedisEviction, finding{"skipped", "INFO is refused"}},
		{"INFO refused: persistence", fakeRedis{info: noperm}, doctor.CheckRedisPersistence, finding{"skipped", "INFO is refused"}},
		{"TIME refused", fakeRedis{time: noperm}, doctor.CheckRedisClock, finding{"skipped", "TIME is refused"}},
		{"SCAN refused", fakeRedis{keys: noperm}, doctor.CheckRedisPrefix, finding{"skipped", "SCAN is refused"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDoctor(t, redisConfig, t.TempDir())
			d.Backends.Redis = func(context.Context, redisconf.Config) (doctor.Redis, error) { return &test.server, nil }
			checks := d.Check(t.Context())
			wantFinding(t, find(t, checks, test.id), test.want)
			for _, c := range checks {
				if strings.Contains(c.Detail, "secret-id") {
					t.Errorf("%+v tells a whole key", c)
				}
			}
		})
	}
}

func TestARedisThatNothingUsesIsNotAsked(t *testing.T) {
	t.Parallel()
	d := newDoctor(t, "gateway: {push: {redis: {host: h}}}\n", t.TempDir())
	d.Backends.Redis = func(context.Context, redisconf.Config) (doctor.Redis, error) {
		t.Error("it was asked")
		return nil, errors.New("down")
	}
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckRedis), finding{"skipped", "nothing is kept in gateway.push.redis"})
}

func TestGatewayCheck(t *testing.T) {
	t.Parallel()
	owner := health.Owner{Kind: "gateway", ID: "durability:idempotency", State: health.Cold, Class: "unreachable", Reason: "the exact sentence", RetryHint: "do this"}
	lasting := owner
	lasting.Class = "auth"
	full := func(change func(*health.Report)) health.Report {
		r := health.Report{Status: health.StatusHealthy, Replica: "r1", Version: "v1", Backends: map[string]string{"idempotency": "sqlite", "turn_lock": "local"}}
		change(&r)
		return r
	}
	for _, test := range []struct {
		name   string
		urls   []string
		report health.Report
		err    error
		want   finding
	}{
		{"healthy", nil, full(func(*health.Report) {}), nil, finding{"ok", "replica r1, version v1, claims in sqlite"}},
		{"not running", nil, health.Report{}, errors.New("connection refused"), finding{"skipped", "no gateway answers at http://127.0.0.1:8765: connection refused"}},
		{"not running where it should", []string{"http://h:1"}, health.Report{}, errors.New("connection refused"), finding{"fail", "http://h:1"}},
		{"trouble that heals", nil, full(func(r *health.Report) { r.Status, r.Owners = "degraded", []health.Owner{owner} }), nil, finding{"warn", "gateway / durability:idempotency is cold unreachable: the exact sentence"}},
		{"trouble that does not", nil, full(func(r *health.Report) { r.Status, r.Owners = "degraded", []health.Owner{lasting} }), nil, finding{"fail", "the exact sentence"}},
		{"B82 replicas that do not share a store", nil, full(func(r *health.Report) {
			r.Status, r.Owners = "degraded", []health.Owner{{Kind: "gateway", ID: "replicas", State: health.Cold, Class: "unshared", Reason: "the exact sentence", RetryHint: "do this"}}
		}), nil, finding{"fail", "gateway / replicas is cold unshared: the exact sentence"}},
		{"stopping", nil, full(func(r *health.Report) { r.Status = health.StatusDraining }), nil, finding{"warn", "is stopping"}},
		{"another token", nil, health.Report{Status: health.StatusHealthy}, nil, finding{"warn", "does not take this configuration's gateway.auth_token"}},
		{"another configuration", nil, full(func(r *health.Report) { r.Backends["idempotency"] = "redis" }), nil, finding{"warn", "claims in redis, the configuration says sqlite"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDoctor(t, "", t.TempDir())
			d.URLs = test.urls
			d.Backends.Health = func(context.Context, string, secret.String) (health.Report, error) { return test.report, test.err }
			wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckGateway), test.want)
		})
	}
}

func TestPortCheck(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := "gateway: {port: " + strconv.Itoa(l.Addr().(*net.TCPAddr).Port) + "}\n"
	d := newDoctor(t, taken, t.TempDir())
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckPort), finding{"ok", "in use by the running gateway"})
	d.Backends.Health = func(context.Context, string, secret.String) (health.Report, error) {
		return health.Report{}, errors.New("no")
	}
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckPort), finding{"fail", "address already in use"})
	d = newDoctor(t, "gateway: {port: 0}\n", t.TempDir())
	d.Backends.Health = func(context.Context, string, secret.String) (health.Report, error) {
		return health.Report{}, errors.New("no")
	}
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckPort), finding{"ok", "is free"})
}

func TestFileSystemCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDoctor(t, "", dir)
	asked := ""
	d.Backends.FileSystem = func(dir string) (string, error) { asked = dir; return "nfs", nil }
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckFileSystem), finding{"warn", "is on nfs"})
	if asked != dir {
		t.Errorf("asked about %s, want the directory in which it will be made", asked)
	}
	d.Backends.FileSystem = func(string) (string, error) { return "", errors.New("no such call") }
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckFileSystem), finding{"skipped", "does not tell"})
	d = newDoctor(t, "hooks: {idempotency: {store_backend: memory}}\n", dir)
	wantFinding(t, find(t, d.Check(t.Context()), doctor.CheckFileSystem), finding{"skipped", "memory"})
}

func TestSettingsChecks(t *testing.T) {
	t.Parallel()
	const redisOn = "gateway: {push: {redis: {host: h}}}\n"
	hook := func(keys string) string { return "agents: {a: }\nhooks: {hooks: [{path: x, " + keys + "}]}\n" }
	for _, test := range []struct {
		name, text, id string
		want           finding
	}{
		{"a short token", "gateway: {auth_token: MARKER-short}\n", doctor.CheckSecrets, finding{"warn", "gateway.auth_token has 12 bytes"}},
		{"a hook's short token", hook("auth: {alice: MARKER-short}"), doctor.CheckSecrets, finding{"warn", "hooks.hooks[0].auth.alice has 12 bytes"}},
		{"a line break", "gateway: {auth_token: \"MARKER-long-enough-for-this\\n\"}\n", doctor.CheckSecrets, finding{"warn", "gateway.auth_token has space or a line break"}},
		{"good secrets", "gateway: {auth_token: MARKER-long-enough-for-this}\n" + hook("signature: {scheme: github, secrets: [MARKER-1, MARKER-2]}"), doctor.CheckSecrets, finding{"ok", "3 secrets set"}},
		{"a lease that leaves no second try", "hooks: {idempotency: {lease: 2s, claim_timeout: 1s}}\n", doctor.CheckTimeouts, finding{"warn", "hooks.idempotency.lease of 2s"}},
		{"a hook's own lease", "hooks: {idempotency: {claim_timeout: 1s}, hooks: [{path: x, lease: 2s}]}\nagents: {a: }\n", doctor.CheckTimeouts, finding{"warn", "the lease of hook x of 2s"}},
		{"a lease that ends before a crash is noticed", redisOn + "hooks: {idempotency: {store_backend: redis, lease: 20s}}\n", doctor.CheckTimeouts, finding{"warn", "takeover_after (30s) brings nothing"}},
		{"takeover", redisOn + "hooks: {idempotency: {store_backend: redis, takeover_after: 60s}}\n", doctor.CheckTimeouts, finding{"ok", "may run again after up to 1m10s"}},
		{"a wait beyond any answer", hook("on_duplicate: wait, wait_timeout: 11m"), doctor.CheckTimeouts, finding{"warn", "hook x waits 11m0s"}},
		{"a signed time", hook("signature: {scheme: stripe, secrets: [MARKER-1]}, idempotency_key: '{{ payload.id }}'"), doctor.CheckFreshness, finding{"ok", "passes for 6m0s, its message is known for 24h0m0s"}},
		{"a signed time and content", hook("signature: {scheme: stripe, secrets: [MARKER-1]}"), doctor.CheckFreshness, finding{"ok", "passes for 6m0s, its message is known for 6m1s"}},
		{"a signed time and nothing known", hook("signature: {scheme: stripe, secrets: [MARKER-1]}, fingerprint: off"), doctor.CheckFreshness, finding{"warn", "each copy of it runs"}},
		{"no signed time", hook("signature: {scheme: github, secrets: [MARKER-1]}"), doctor.CheckFreshness, finding{"ok", "no hook's sender signs a time"}},
		{"turns where nothing has a session", "gateway: {replicas: 2}\n" + hook(""), doctor.CheckTurns, finding{"ok", "no hook has a session"}},
		{"B47 a local lock beside other replicas", "gateway: {replicas: 2}\n" + hook("session: s"), doctor.CheckTurns, finding{"warn", "inside each of the 2 replicas"}},
		{"a local lock of one replica", hook("session: s"), doctor.CheckTurns, finding{"ok", "turn lock local, sessions in sqlite"}},
		{"a shared lock and shared sessions", "gateway: {replicas: 2, push: {redis: {host: h}}, turn_lock: {backend: redis}}\n" + hook("session: s"), doctor.CheckTurns, finding{"ok", "turn lock redis, sessions in redis"}},
		{"a shared lock and sessions of each replica", "gateway: {replicas: 2, push: {redis: {host: h}}, turn_lock: {backend: redis}}\nsessions: {backend: sqlite}\n" + hook("session: s"), doctor.CheckTurns, finding{"warn", "each replica has a history of its own"}},
		{"an open hook on a private gateway", hook(""), doctor.CheckAuthentication, finding{"ok", "open to the programs of this machine"}},
		{"an open hook for strangers", "gateway: {public_url: 'https://bot.example'}\n" + hook(""), doctor.CheckAuthentication, finding{"fail", "refuses everybody"}},
		{"the gateway's token", "gateway: {auth_token: MARKER-long-enough-for-this}\n" + hook(""), doctor.CheckAuthentication, finding{"ok", "1 of 1 hook"}},
		{"B87 whsec_ under hmac", hook("signature: {scheme: hmac-hex, header: X, secrets: [whsec_MARKER]}"), doctor.CheckAuthentication, finding{"warn", "begins with whsec_"}},
		{"B87 base64 taken as text", hook("signature: {scheme: hmac-base64, header: X, secrets: [TUFSS0VSTUFSS0VSTUFSS0VSTUFSS0VSMTIzNDU2Nzg=]}"), doctor.CheckAuthentication, finding{"warn", "looks like base64"}},
		{"B87 base64 taken as text by standard", hook("signature: {scheme: standard, secret_encoding: raw, secrets: [whsec_TUFSS0VSTUFSS0VSTUFSS0VSTUFSS0VSMTIzNDU2Nzg=]}"), doctor.CheckAuthentication, finding{"warn", "looks like base64"}},
		{"B99 a window of 48 h beside records of 24 h", hook("signature: {scheme: stripe, secrets: [MARKER-1], max_age: 48h}, idempotency_key: '{{ payload.id }}'"), doctor.CheckConfig, finding{"fail", "48h1m0s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			checks := newDoctor(t, test.text, t.TempDir()).Check(t.Context())
			wantFinding(t, find(t, checks, test.id), test.want)
			if text := doctor.Text(checks); strings.Contains(text, "MARKER") || strings.Contains(text, "TUFS") {
				t.Errorf("a secret is told:\n%s", text)
			}
		})
	}
}

func TestFix(t *testing.T) {
	t.Parallel()
	const named = "gateway: {auth_token: '${GATEWAY_AUTH_TOKEN:-}'}\n"
	env := func(dir string) string { return filepath.Join(dir, "state", "gateway.env") }

	t.Run("makes the directory and a token that only its owner reads, and uses it", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{named, "gateway: {host: 0.0.0.0, auth_token: '${GATEWAY_AUTH_TOKEN}'}\n"} {
			dir := t.TempDir()
			d := newDoctor(t, text, dir)
			c := d.Fix()
			if c.Status != health.CheckOK || c.ID != doctor.CheckFix || !strings.Contains(c.Detail, "wrote a new token to "+env(dir)) || !strings.Contains(c.Hint, "EnvironmentFile=") {
				t.Errorf("%+v", c)
			}
			for path, mode := range map[string]os.FileMode{filepath.Dir(env(dir)): 0o700, env(dir): 0o600} {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
					t.Errorf("%s: %v, %v, want mode %o", path, info, err, mode)
				}
			}
			token, _ := strings.CutPrefix(strings.TrimSpace(mustReadText(t, env(dir))), "GATEWAY_AUTH_TOKEN=")
			if len(token) < 43 {
				t.Errorf("the token has %d characters", len(token))
			}
			checks := d.Check(t.Context())
			if got := find(t, checks, doctor.CheckSecrets); got.Detail != "1 secret set" {
				t.Errorf("after it: %+v", got)
			}
			if strings.Contains(doctor.Text(append(checks, c)), token) {
				t.Error("the token is told")
			}
		}
	})
	t.Run("a second run keeps what is there", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		newDoctor(t, named, dir).Fix()
		before := mustReadText(t, env(dir))
		d := newDoctor(t, named, dir)
		if c := d.Fix(); c.Status != health.CheckOK || !strings.Contains(c.Detail, "has a token already") {
			t.Errorf("%+v", c)
		}
		if after := mustReadText(t, env(dir)); after != before {
			t.Error("the file was written again")
		}
		if got := find(t, d.Check(t.Context()), doctor.CheckSecrets); got.Detail != "1 secret set" {
			t.Errorf("after it: %+v", got)
		}
	})
	for name, test := range map[string]struct {
		text string
		want finding
	}{
		"a token that is set needs none":      {"gateway: {auth_token: long-enough-for-everybody}\n", finding{"ok", "made "}},
		"a file that names no variable":       {"gateway: {port: 1}\n", finding{"warn", "does not take it from GATEWAY_AUTH_TOKEN"}},
		"a file with other problems is left":  {"gatewya: {}\n", finding{"warn", "nothing was made"}},
		"a directory that cannot be made":     {named + "hooks: {hooks: []}\n", finding{"fail", "cannot be made"}},
		"a file without a token in its place": {named, finding{"fail", "holds no token"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			switch name {
			case "a directory that cannot be made":
				dir = os.DevNull
			case "a file without a token in its place":
				if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(env(dir), []byte("OTHER=1\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			wantFinding(t, newDoctor(t, test.text, dir).Fix(), test.want)
			if _, err := os.Stat(env(dir)); err == nil && name != "a file without a token in its place" {
				t.Error("a token was written")
			}
		})
	}
}

func TestProveThroughGateways(t *testing.T) {
	t.Parallel()
	silent := func(int, int) {}
	d := newDoctor(t, "gateway: {auth_token: operator-token-of-some-length}\n", t.TempDir())
	d.URLs = []string{"http://one", "http://two"}
	shared := make(chan string, 10) // keys that were won
	won := make(map[string]bool)
	lock := make(chan struct{}, 1)
	d.Backends.Prove = func(_ context.Context, url string, token secret.String, key string) (bool, string, error) {
		if token.Reveal() != "operator-token-of-some-length" {
			return false, "", errors.New("no token")
		}
		lock <- struct{}{}
		defer func() { <-lock }()
		first := !won[key]
		won[key] = true
		if first {
			shared <- key
		}
		return first, url, nil
	}
	if c := d.Prove(t.Context(), 8, silent); c.Status != health.CheckOK || c.Detail != "10 rounds of 8 claims at once by 2 replicas: one winner per round" || len(shared) != 10 {
		t.Errorf("%+v after %d keys", c, len(shared))
	}
	d.Backends.Prove = func(_ context.Context, url string, _ secret.String, key string) (bool, string, error) {
		lock <- struct{}{}
		defer func() { <-lock }()
		first := !won[url+key] // each replica has a store of its own
		won[url+key] = true
		return first, url, nil
	}
	if c := d.Prove(t.Context(), 8, silent); c.Status != health.CheckFail || !strings.Contains(c.Detail, "map[2:10], 2 replicas took part") || !strings.Contains(c.Hint, "do not share a store") {
		t.Errorf("%+v", c)
	}
	d.Backends.Prove = func(context.Context, string, secret.String, string) (bool, string, error) {
		return false, "", errors.New("/api/prove answers 401")
	}
	if c := d.Prove(t.Context(), 8, silent); c.Status != health.CheckFail || !strings.HasPrefix(c.Detail, "round 1 of 10: http://") || !strings.HasSuffix(c.Detail, ": /api/prove answers 401") {
		t.Errorf("%+v", c)
	}
}

func TestStrictMakesAWarningAFailure(t *testing.T) {
	t.Parallel()
	warned := []health.Check{{Status: health.CheckOK}, {Status: health.CheckWarn}, {Status: health.CheckSkipped}}
	if doctor.Failed(warned, false) || !doctor.Failed(warned, true) {
		t.Error("a warning fails without --strict, or does not with it")
	}
	if fine := warned[:1]; doctor.Failed(fine, true) || doctor.Failed(append(fine, health.Check{Status: health.CheckSkipped}), true) {
		t.Error("what is ok or skipped fails")
	}
}

func TestTheHintForAMissingTokenIsOneThatHelps(t *testing.T) {
	t.Parallel()
	for text, hint := range map[string]string{
		"gateway: {host: 0.0.0.0}\n":                                      "write auth_token: ${GATEWAY_AUTH_TOKEN} into the section gateway",
		"gateway: {host: 0.0.0.0, auth_token: '${GATEWAY_AUTH_TOKEN}'}\n": "let gateway doctor --fix make a token",
		"gatewya: {}\n": "correct the file",
	} {
		d := newDoctor(t, text, t.TempDir())
		d.Backends.Health = func(context.Context, string, secret.String) (health.Report, error) {
			return health.Report{}, errors.New("connection refused")
		}
		if c := find(t, d.Check(t.Context()), doctor.CheckConfig); !strings.Contains(c.Hint, hint) {
			t.Errorf("%s: %+v, want %q", text, c, hint)
		}
	}
}

func TestADatabaseThatCannotBeWrittenIsNotSound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "read-only")
	if err := os.WriteFile(own, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	// Only a file system that nobody may write stops root.
	files := []string{own, "/proc/sys/kernel/ostype", "/sys/kernel/uevent_seqnum"}
	i := slices.IndexFunc(files, func(path string) bool { return unix.Access(path, unix.W_OK) != nil })
	if i < 0 {
		t.Fatal("this user may write everywhere, so the check cannot be made to fail")
	}
	if err := os.Symlink(files[i], filepath.Join(dir, "state", doctor.DatabaseName)); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, find(t, newDoctor(t, "", dir).Check(t.Context()), doctor.CheckDatabase), finding{"fail", "not_writable: "})
}
