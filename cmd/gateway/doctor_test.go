package main

import (
	"encoding/json"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redistest"
)

// diagnose runs gateway doctor and returns its checks by their ids.
func diagnose(t *testing.T, code int, args ...string) map[string]health.Check {
	t.Helper()
	got := runIn(t, "", nil, append([]string{"doctor", "--json"}, args...)...)
	var all struct{ Checks []health.Check }
	if err := json.Unmarshal([]byte(got.out), &all); err != nil {
		t.Fatalf("doctor %v: %v in %+v", args, err, got)
	}
	if got.code != code {
		t.Errorf("doctor %v: exit %d, want %d\n%s", args, got.code, code, got.out)
	}
	checks := make(map[string]health.Check)
	for _, c := range all.Checks {
		checks[c.ID] = c
	}
	return checks
}

func wantCheck(t *testing.T, checks map[string]health.Check, id string, status health.CheckStatus, part string) {
	t.Helper()
	if c := checks[id]; c.Status != status || !strings.Contains(c.Detail, part) {
		t.Errorf("check %s = %+v, want %s with %q", id, c, status, part)
	}
}

// onRedis is a configuration file for claims in a server.
func onRedis(t *testing.T, settings string) string {
	t.Helper()
	return writeFile(t, "gateway: {port: 0, state_dir: "+filepath.Join(t.TempDir(), "state")+", push: {redis: {"+settings+"}}}\nhooks: {idempotency: {"+inRedis+"}}\n")
}

func TestDoctorOnARealRedis(t *testing.T) {
	t.Parallel()
	good := redistest.Start(t, "--appendonly", "yes")
	checks := diagnose(t, exitOK, "-c", onRedis(t, "url: 'unix://"+good.Addr()+"'"))
	for id, part := range map[string]string{
		"redis": "takes writes", "redis_version": "Redis ", "redis_role": "primary", "redis_scripts": "run", "redis_eviction": "noeviction",
		"redis_persistence": "append-only file is on", "redis_clock": "agree", "redis_prefix": "all of them the gateway's",
	} {
		wantCheck(t, checks, id, health.CheckOK, part)
	}

	poor := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	if err := poor.Client().Set(t.Context(), "gateway:eu:hookidem:a:b:c:d", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	file := onRedis(t, "url: 'unix://"+poor.Addr()+"'")
	checks = diagnose(t, exitOK, "-c", file)
	wantCheck(t, checks, "redis_eviction", health.CheckWarn, "allkeys-lru")
	wantCheck(t, checks, "redis_persistence", health.CheckWarn, "is off")
	wantCheck(t, checks, "redis_prefix", health.CheckWarn, `"gateway:eu:…"`)
	diagnose(t, exitError, "-c", file, "--strict")
}

func TestDoctorOnARealReplica(t *testing.T) {
	t.Parallel()
	primary := redistest.StartTCP(t)
	host, port, _ := strings.Cut(primary.Addr(), ":")
	replica := redistest.StartTCP(t, "--replicaof", host, port)
	checks := diagnose(t, exitError, "-c", onRedis(t, fields(replica.Addr())))
	wantCheck(t, checks, "redis", health.CheckFail, "readonly: ")
	wantCheck(t, checks, "redis_role", health.CheckFail, "is a replica")
	wantCheck(t, checks, "redis_scripts", health.CheckSkipped, "cannot be used")
}

// A managed server refuses what looks into it. That fails nothing.
func TestDoctorOnAManagedRedis(t *testing.T) {
	t.Parallel()
	managed := redistest.Start(t, "--user", "gw", "on", ">password", "~*", "&*", "+@all", "-config", "-info", "-scan", "-time")
	settings := "host: " + managed.Addr() + ", username: gw, password: password"
	checks := diagnose(t, exitOK, "-c", onRedis(t, settings))
	wantCheck(t, checks, "redis", health.CheckOK, "takes writes")
	wantCheck(t, checks, "redis_scripts", health.CheckOK, "run")
	for _, id := range []string{"redis_version", "redis_role", "redis_eviction", "redis_persistence"} {
		wantCheck(t, checks, id, health.CheckSkipped, "INFO is refused: NOPERM")
	}
	wantCheck(t, checks, "redis_clock", health.CheckSkipped, "TIME is refused: NOPERM")
	wantCheck(t, checks, "redis_prefix", health.CheckSkipped, "SCAN is refused: NOPERM")
	for id, c := range checks {
		if strings.Contains(c.Detail, "gw ") {
			t.Errorf("check %s names the user: %s", id, c.Detail)
		}
	}
}

func TestB01_DoctorFailsWithoutTheRedisThatIsConfigured(t *testing.T) {
	t.Parallel()
	checks := diagnose(t, exitError, "-c", onRedis(t, "host: 127.0.0.1, port: 1"))
	wantCheck(t, checks, "redis", health.CheckFail, "unreachable: ")
	wantCheck(t, checks, "failover", health.CheckOK, "each replica claims in its own gateway.db")
}

func TestB59_DoctorFailsWhereScriptsAreRefused(t *testing.T) {
	t.Parallel()
	hardened := redistest.Start(t, "--appendonly", "yes", "--user", "gw", "on", ">password", "~*", "&*", "+@all", "-@scripting")
	checks := diagnose(t, exitError, "-c", onRedis(t, "host: "+hardened.Addr()+", username: gw, password: password"))
	wantCheck(t, checks, "redis", health.CheckOK, "takes writes")
	wantCheck(t, checks, "redis_scripts", health.CheckFail, "EVALSHA is refused: ")
}

func TestB82_DoctorFailsForReplicasThatShareNoStore(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"sqlite", "memory"} {
		file := writeFile(t, "gateway: {port: 0, replicas: 2, state_dir: "+filepath.Join(t.TempDir(), "state")+"}\nhooks: {idempotency: {store_backend: "+store+"}}\n")
		c := diagnose(t, exitError, "-c", file)["replicas"]
		if c.Status != health.CheckFail || !strings.Contains(c.Hint, "store_backend: redis") || !strings.Contains(c.Hint, "gateway.push.redis") {
			t.Errorf("%s: %+v, want a failure that names Redis as the remedy", store, c)
		}
	}
}

func TestB134_DoctorTellsRefusalsApart(t *testing.T) {
	t.Parallel()
	locked := redistest.StartTCP(t, "--requirepass", "right")
	secured := redistest.StartTLS(t)
	for settings, class := range map[string]string{
		fields(locked.Addr()) + ", password: wrong": "auth: ",
		"host: 127.0.0.1, port: 1":                  "unreachable: ",
		fields(secured.Addr()) + ", tls: {ca_file: '" + secured.CAFile + "', server_name: other.test}": "tls: ",
	} {
		wantCheck(t, diagnose(t, exitError, "-c", onRedis(t, settings)), "redis", health.CheckFail, class)
	}
}

func TestDoctorAsksTheRunningGateway(t *testing.T) {
	t.Parallel()
	text := "gateway: {auth_token: a-token-of-some-length, state_dir: STATE}\n" + echoHook()
	r := assembled(t, text)
	server := httptest.NewServer(r.handler)
	defer server.Close()
	port := server.URL[strings.LastIndex(server.URL, ":")+1:]
	file := func(token string) string {
		return writeFile(t, "gateway: {auth_token: "+token+", port: "+port+", state_dir: "+r.state+"}\n"+echoHook())
	}
	checks := diagnose(t, exitOK, "-c", file("a-token-of-some-length"))
	wantCheck(t, checks, "gateway", health.CheckOK, "replica "+r.replica)
	wantCheck(t, checks, "port", health.CheckOK, "in use by the running gateway")
	wantCheck(t, diagnose(t, exitError, "-c", file("a-token-of-some-length"), "--url", "http://127.0.0.1:1"), "port", health.CheckOK, "in use by the running gateway")
	wantCheck(t, checks, "database", health.CheckOK, "is a sound database")
	checks = diagnose(t, exitOK, "-c", file("another-token-of-that-length"))
	wantCheck(t, checks, "gateway", health.CheckWarn, "does not take this configuration's gateway.auth_token")
	wantCheck(t, diagnose(t, exitError, "--url", "http://127.0.0.1:1"), "gateway", health.CheckFail, "no gateway answers at http://127.0.0.1:1")
	closed := assembled(t, "gateway: {state_dir: /dev/null/state}\n"+withIdempotency("on_unavailable: closed"))
	degraded := httptest.NewServer(closed.handler)
	defer degraded.Close()
	wantCheck(t, diagnose(t, exitError, "--url", degraded.URL), "gateway", health.CheckFail, "durable idempotency store unavailable (running in-memory)")
}

// The secrets of a service stand in its environment, not in that of the person
// who asks.
func TestB130_AHealthyGatewayWhoseSecretsAreSetElsewhereIsNotFoundFaultWith(t *testing.T) {
	t.Parallel()
	r := assembled(t, "gateway: {auth_token: a-token-of-some-length}\n"+echoHook())
	server := httptest.NewServer(r.handler)
	defer server.Close()
	file := writeFile(t, "gateway: {auth_token: '${TOKEN}', port: "+server.URL[strings.LastIndex(server.URL, ":")+1:]+", state_dir: "+r.state+"}\n"+
		echoHook("auth: '${HOOK_TOKEN}'"))
	checks := diagnose(t, exitOK, "-c", file, "--strict")
	wantCheck(t, checks, "gateway", health.CheckOK, "is healthy")
	wantCheck(t, checks, "config", health.CheckSkipped, "needs TOKEN, HOOK_TOKEN, not set here")
	wantCheck(t, checks, "redis", health.CheckSkipped, "needs TOKEN")
	server.Close()
	wantCheck(t, diagnose(t, exitError, "-c", file), "config", health.CheckFail, "TOKEN is not set")
}

func TestDoctorProvesThroughRunningGateways(t *testing.T) {
	t.Parallel()
	const token = "auth_token: a-token-of-some-length"
	file := writeFile(t, "gateway: {"+token+"}\n")
	s := redistest.Start(t)
	shared := "gateway: {" + token + ", push: {redis: {url: 'unix://" + s.Addr() + "'}}}\nhooks: {idempotency: {" + inRedis + "}}\n"
	alone := "gateway: {" + token + "}\nhooks: {idempotency: {store_backend: memory}}\n"
	urls := func(text string) []string {
		var args []string
		for range 2 {
			server := httptest.NewServer(assembled(t, text).handler)
			t.Cleanup(server.Close)
			args = append(args, "--url", server.URL)
		}
		return args
	}
	checks := diagnose(t, exitOK, append(urls(shared), "-c", file, "--prove", "20")...)
	wantCheck(t, checks, "prove", health.CheckOK, "10 rounds of 20 claims at once by 2 replicas: one winner per round")
	checks = diagnose(t, exitError, append(urls(alone), "-c", file, "--prove", "20")...)
	wantCheck(t, checks, "prove", health.CheckFail, "rounds by winners map[2:10], 2 replicas took part")
	wrong := writeFile(t, "gateway: {auth_token: another-token-of-that-length}\n")
	checks = diagnose(t, exitError, append(urls(shared), "-c", wrong, "--prove", "2")...)
	wantCheck(t, checks, "prove", health.CheckFail, "does not take this configuration's gateway.auth_token")
}

func TestDoctorFixMakesAGatewayStart(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	file := writeFile(t, "gateway: {host: 0.0.0.0, port: 0, auth_token: '${GATEWAY_AUTH_TOKEN}', state_dir: "+state+"}\n")
	wantCheck(t, diagnose(t, exitError, "-c", file), "config", health.CheckFail, "GATEWAY_AUTH_TOKEN")
	checks := diagnose(t, exitOK, "-c", file, "--fix")
	wantCheck(t, checks, "fix", health.CheckOK, "gateway.env")
	wantCheck(t, checks, "config", health.CheckOK, "valid")
	token, _ := strings.CutPrefix(strings.TrimSpace(mustReadText(t, filepath.Join(state, "gateway.env"))), "GATEWAY_AUTH_TOKEN=")
	if got := runIn(t, "", map[string]string{"GATEWAY_AUTH_TOKEN": token}, "config", "check", "-c", file); got.code != exitOK {
		t.Errorf("with the token: %+v", got)
	}
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--prove", "1"}, {"--url", "localhost:8765"}, {"--url", "http://MARKER:pw@h"}, {"--url", "ftp://h"}, {"extra"}, {"--nothing"}} {
		if got := runIn(t, "", nil, append([]string{"doctor"}, args...)...); got.code != exitUsage || got.out != "" || strings.Contains(got.err, "MARKER") {
			t.Errorf("doctor %v: %+v, want exit 2", args, got)
		}
	}
}

// TestDocumentedChecksExist compares the table of docs/operations.md with the
// ids of gateway doctor, in both directions.
func TestDocumentedChecksExist(t *testing.T) {
	t.Parallel()
	table := section(t, mustReadText(t, "../../docs/operations.md"), "Doctor")
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}
	ids := strings.Fields("fix " + mustReadText(t, "../../doctor/testdata/ids.txt") + " prove")
	if got, want := strings.Join(documented, " "), strings.Join(ids, " "); got != want {
		t.Errorf("docs/operations.md lists %s, gateway doctor makes %s", got, want)
	}
}
