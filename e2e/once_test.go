package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/internal/redistest"
)

// config returns a gateway.yaml with GitHub hooks: to an agent that echoes, by
// delivery and by repository, and to a target that counts. store is the rest.
func config(target, store string) string {
	return `
gateway:
  port: 0
  state_dir: STATE_DIR
  log: {format: json}
` + store + `
  hooks:
    - path: github
      signature: {scheme: github, secrets: ["` + hookSecret + `"]}
      platform: github
      idempotency_key: "{{ header.X-GitHub-Delivery }}"
      message: "{{ payload.comment.body }}"
    - path: repository
      signature: {scheme: github, secrets: ["` + hookSecret + `"]}
      account: "{{ payload.repository.id }}"
      idempotency_key: "{{ header.X-GitHub-Delivery }}"
    - path: count
      action: forward
      target: ` + target + `
      response_headers: [X-Run, Content-Type]
      signature: {scheme: github, secrets: ["` + hookSecret + `"]}
      idempotency_key: "{{ header.X-GitHub-Delivery }}"
agents:
  assistant: {kind: echo}
`
}

// redisStore keeps claims in Redis. The budget is that of a test machine which
// runs a dozen processes on two cores: with the default one a pause would send
// a claim to the replica's own store, and rightly fail the count of runs.
func redisStore(addr, prefix string) string {
	return fmt.Sprintf(`
  push: {redis: {url: "unix://%s", prefix: "%s"}}
hooks:
  idempotency: {store_backend: redis, claim_timeout: 5s}
`, addr, prefix)
}

const sqliteStore = `
hooks:
  idempotency: {store_backend: sqlite}
`

// bodies returns the GitHub deliveries in testdata by name.
func bodies(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/github-*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no bodies: %v", err)
	}
	found := make(map[string]string)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(filepath.Base(f), ".json")] = string(data)
	}
	return found
}

func TestEachGitHubBodyRunsOnceOnTwoReplicas(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	cfg := writeConfig(t, config(newTarget(t).URL, redisStore(redis.Addr(), "gateway:")))
	a, b := start(t, cfg), start(t, writeConfig(t, config(newTarget(t).URL, redisStore(redis.Addr(), "gateway:"))))
	for name, body := range bodies(t) {
		var both [2]answer
		var wg sync.WaitGroup
		for i, p := range []*process{a, b} {
			wg.Go(func() { both[i] = p.mustPost(t, "github", name, body) })
		}
		wg.Wait()
		fresh := 0
		for _, got := range both {
			if got.idempotency() == "new" {
				fresh++
			}
		}
		if fresh != 1 {
			t.Errorf("%s: %d runs, want 1:\n%s\n%s", name, fresh, both[0], both[1])
		}
		again := a.mustPost(t, "github", name, body)
		if again.idempotency() != "processed" || !strings.Contains(again.body, `"deduplicated":true`) || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: a later delivery got %s", name, again)
		}
	}
}

func TestAMessageWithoutIdentityRunsEachTime(t *testing.T) {
	t.Parallel()
	p := start(t, writeConfig(t, config(newTarget(t).URL, sqliteStore)))
	for range 2 {
		if got := p.post("repository", "ping-1", bodies(t)["github-ping"]); got.status != 200 || got.idempotency() != "none" {
			t.Errorf("a body without its key parts got %s, want 200 none", got)
		}
	}
}

const (
	ids      = 100
	repeats  = 10
	parallel = 50
)

// postMany posts every id ten times in random order, fifty at once, each time
// to a random replica, and again as long as the answer is 409.
func postMany(t *testing.T, body string, replicas ...*process) {
	t.Helper()
	deliveries := make([]string, 0, ids*repeats)
	for i := range ids {
		for range repeats {
			deliveries = append(deliveries, fmt.Sprintf("delivery-%d", i))
		}
	}
	rand.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	next := make(chan string)
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for delivery := range next {
				p := replicas[rand.IntN(len(replicas))]
				if got := p.mustPost(t, "count", delivery, body); got.status != 201 || got.header.Get("X-Run") == "" {
					t.Errorf("%s: got %s, want the target's own 201", delivery, got)
				}
			}
		})
	}
	for _, delivery := range deliveries {
		next <- delivery
	}
	close(next)
	wg.Wait()
}

func TestB02B14HundredMessagesOnTwoReplicasRunOnceAcrossACrash(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	text := config(tg.URL, redisStore(redis.Addr(), "gateway:"))
	body := bodies(t)["github-redelivery"]
	cfgA, cfgB := writeConfig(t, text), writeConfig(t, text)
	a, b := start(t, cfgA), start(t, cfgB)
	postMany(t, body, a, b)
	if n := tg.runs.Load(); n != ids {
		t.Fatalf("%d runs of %d messages on two replicas", n, ids)
	}
	a.kill()
	b.kill()
	postMany(t, body, start(t, cfgA), start(t, cfgB))
	if n := tg.runs.Load(); n != ids {
		t.Errorf("%d runs of %d messages after a crash of both replicas", n, ids)
	}
	tg.assertOncePerKey(t)
}

func TestB02HundredMessagesOnSQLiteRunOnceAcrossACrash(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	cfg := writeConfig(t, config(tg.URL, sqliteStore))
	body := bodies(t)["github-redelivery"]
	p := start(t, cfg)
	postMany(t, body, p)
	if n := tg.runs.Load(); n != ids {
		t.Fatalf("%d runs of %d messages", n, ids)
	}
	p.kill()
	postMany(t, body, start(t, cfg))
	if n := tg.runs.Load(); n != ids {
		t.Errorf("%d runs of %d messages after a crash", n, ids)
	}
	tg.assertOncePerKey(t)
}

func TestB72TwoEnvironmentsOnOneRedisStayApart(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	for _, prefix := range []string{"prod:", "stage:"} {
		p := start(t, writeConfig(t, config(tg.URL, redisStore(redis.Addr(), prefix))))
		p.mustPost(t, "count", "delivery-1", bodies(t)["github-redelivery"])
	}
	if n := tg.runs.Load(); n != 2 {
		t.Errorf("%d runs, want one in each environment", n)
	}
}
