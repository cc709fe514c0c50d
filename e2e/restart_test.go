package e2e

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/redistest"
)

// senders post one message after the other until they are stopped, each until
// its first failure.
type senders struct {
	t        *testing.T
	front    *nginx
	halted   atomic.Bool
	wg       sync.WaitGroup
	answered atomic.Int64
	mu       sync.Mutex
	runs     map[string]string // X-Run of the first answer by delivery
}

func startSenders(t *testing.T, front *nginx, n int) *senders {
	s := &senders{t: t, front: front, runs: make(map[string]string)}
	var next atomic.Int64
	for range n {
		s.wg.Go(func() {
			for !s.halted.Load() && s.post(fmt.Sprintf("delivery-%d", next.Add(1))) {
			}
		})
	}
	t.Cleanup(func() { s.finish() })
	return s
}

func (s *senders) post(delivery string) (ok bool) {
	got := s.front.post("count", delivery, "{}")
	if got.status != 201 || got.idempotency() != "new" {
		s.t.Errorf("%s: got %s, want the target's own 201", delivery, got)
		return false
	}
	s.mu.Lock()
	s.runs[delivery] = got.header.Get("X-Run")
	s.mu.Unlock()
	s.answered.Add(1)
	return true
}

// waitFor returns when n more messages have been answered.
func (s *senders) waitFor(n int64) {
	s.t.Helper()
	until := s.answered.Load() + n
	eventually(s.t, "messages are answered", func() bool { return s.answered.Load() >= until })
}

// finish stops the senders and returns what ran.
func (s *senders) finish() map[string]string {
	s.halted.Store(true)
	s.wg.Wait()
	return s.runs
}

func TestARollingRestartBehindNginxFailsNoRequest(t *testing.T) {
	t.Parallel()
	redis, tg, slow := redistest.Start(t), newTarget(t), newTarget(t)
	tg.delay, slow.delay = 50*time.Millisecond, time.Second
	text := replaceOnce(t, config(tg.URL, redisStore(redis.Addr(), "gateway:")), "agents:", `
    - path: slow
      action: forward
      target: `+slow.URL+`
      signature: {scheme: github, secrets: ["`+hookSecret+`"]}
agents:`)
	addresses := [2]string{freeAddress(t, "127.0.0.2"), freeAddress(t, "127.0.0.3")}
	var configs [2]string
	var replicas [2]*process
	for i, address := range addresses {
		configs[i] = writeConfig(t, at(t, text, address))
		replicas[i] = start(t, configs[i])
	}
	front := startNginx(t, addresses, unchanged)
	s := startSenders(t, front, 16)
	for i, p := range replicas {
		s.waitFor(64)
		// A run that takes longer than the others keeps the replica draining.
		var wg sync.WaitGroup
		wg.Go(func() {
			if got := p.post("slow", "slow", fmt.Sprintf(`{"replica":%d}`, i)); got.status != 201 {
				t.Errorf("the delivery under way got %s, want its answer", got)
			}
		})
		eventually(t, "the slow run has begun", func() bool { return slow.runs.Load() == int64(i+1) })
		if code := p.stop(); code != 0 {
			t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
		wg.Wait()
		s.waitFor(64) // while it is away
		start(t, configs[i])
	}
	s.waitFor(64)
	runs := s.finish()
	if n := tg.runs.Load(); n != int64(len(runs)) {
		t.Errorf("%d runs of %d messages", n, len(runs))
	}
	tg.assertOncePerKey(t)
	assertDuplicates(t, front, runs)
	log := front.stopped()
	for i, address := range addresses {
		tried := fmt.Sprintf(`upstream="%s, %s" upstream_status=`, address, addresses[1-i])
		for _, status := range []string{`"503, 201"`, `"502, 201"`} { // while it drained, and when it was away
			if !strings.Contains(log, tried+status) {
				t.Errorf("no request was repeated after %s by replica %d; log:\n%s", status, i, log)
			}
		}
	}
}

// assertDuplicates posts every delivery again, and fails unless each gets the
// answer of its first run.
func assertDuplicates(t *testing.T, front *nginx, runs map[string]string) {
	t.Helper()
	next := make(chan string)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for delivery := range next {
				got := front.post("count", delivery, "{}")
				if got.status != 201 || got.idempotency() != "processed" || got.header.Get("X-Run") != runs[delivery] {
					t.Errorf("%s again: got %s of run %s, want that of run %s", delivery, got, got.header.Get("X-Run"), runs[delivery])
				}
			}
		})
	}
	for delivery := range runs {
		next <- delivery
	}
	close(next)
	wg.Wait()
}

func TestARunThatADrainStopsIsFinishedByTheOtherReplicaInTheSameRequest(t *testing.T) {
	t.Parallel()
	redis, tg := redistest.Start(t), newTarget(t)
	tg.delay = 2 * time.Second
	text := replaceOnce(t, config(tg.URL, redisStore(redis.Addr(), "gateway:")), "  state_dir:", "  drain_timeout: 100ms\n  state_dir:")
	addresses := [2]string{freeAddress(t, "127.0.0.2"), freeAddress(t, "127.0.0.3")}
	first := start(t, writeConfig(t, at(t, text, addresses[0])))
	start(t, writeConfig(t, at(t, text, addresses[1])))
	front := startNginx(t, addresses, unchanged) // which begins with the first
	var got answer
	var wg sync.WaitGroup
	wg.Go(func() { got = front.post("count", "delivery-1", "{}") })
	eventually(t, "the run has begun", func() bool { return tg.runs.Load() == 1 })
	if code := first.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	wg.Wait()
	if n := tg.runs.Load(); got.status != 201 || got.header.Get("X-Run") != "2" || n != 2 {
		t.Errorf("got %s of run %s after %d runs, want the answer of the second", got, got.header.Get("X-Run"), n)
	}
}
