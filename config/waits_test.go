package config_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/config"
)

func TestB45_AWaiterThatGivesUpBeforeADeadHoldersLockEndsIsRefused(t *testing.T) {
	t.Parallel()
	problems := mustFail(t, `gateway:
  turn_timeout: 20s
  turn_lock:
    ttl: 30s
    max_wait: 25s
`, environ())
	mustReport(t, problems, 5, "gateway.turn_lock.max_wait", "25s is shorter than ttl (30s)")
	if len(problems) != 1 {
		t.Errorf("%d problems, want one", len(problems))
	}
}

func TestTimesThatCannotWorkTogetherAreRefused(t *testing.T) {
	t.Parallel()
	problems := mustFail(t, `gateway:
  turn_timeout: 5m
  turn_lock:
    max_wait: 2m
agents:
  a: {kind: exec, command: [x], timeout: 6m}
  b: {kind: exec, command: [x], timeout: 5m}
`, environ())
	mustReport(t, problems, 4, "gateway.turn_lock.max_wait", "2m0s is shorter than gateway.turn_timeout (5m0s)")
	mustReport(t, problems, 6, "agents.a.timeout", "6m0s is longer than gateway.turn_timeout (5m0s)")
	if len(problems) != 2 {
		t.Errorf("%d problems, want two", len(problems))
	}
}

func TestTheLongestWaitFollowsTheLongestTurn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"{}\n":                                    15 * time.Minute,
		"gateway: {turn_timeout: 1m}\n":           15 * time.Minute,
		"gateway: {turn_timeout: 30m}\n":          45 * time.Minute,
		"gateway: {turn_lock: {max_wait: 11m}}\n": 11 * time.Minute,
	} {
		if got := mustParse(t, text, environ()).Gateway.TurnLock.MaxWait; got != want {
			t.Errorf("%s: max_wait %s, want %s", text, got, want)
		}
	}
}

func TestWhatIsKeptInRedisNeedsAServer(t *testing.T) {
	t.Parallel()
	problems := mustFail(t, `gateway:
  turn_lock: {backend: redis}
sessions: {backend: redis}
hooks:
  idempotency: {store_backend: redis}
`, environ())
	mustReport(t, problems, 2, "gateway.turn_lock.backend", "redis needs a server")
	mustReport(t, problems, 3, "sessions.backend", "redis needs a server")
	mustReport(t, problems, 5, "hooks.idempotency.store_backend", "redis needs a server")
	if len(problems) != 3 {
		t.Errorf("%d problems, want three", len(problems))
	}
}

func TestSessionsFollowTheTurnLock(t *testing.T) {
	t.Parallel()
	const server = "push: {redis: {url: 'redis://localhost'}}"
	for text, want := range map[string]string{
		"{}\n":                        "sqlite",
		"gateway: {" + server + "}\n": "sqlite",
		"gateway: {" + server + ", turn_lock: {backend: redis}}\n":                              "redis",
		"gateway: {" + server + ", turn_lock: {backend: redis}}\nsessions: {backend: sqlite}\n": "sqlite",
		"gateway: {" + server + "}\nsessions: {backend: redis}\n":                               "redis",
	} {
		if got := mustParse(t, text, environ()).Sessions.Backend; got != want {
			t.Errorf("%s: sessions in %s, want %s", text, got, want)
		}
	}
	if got := config.Default().Sessions.Backend; got != "sqlite" {
		t.Errorf("without a file: sessions in %s, want sqlite", got)
	}
}
