package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/redistest"
)

// lockTTL is how long a turn lock outlives its holder here.
const lockTTL = 3 * time.Second

// speaker is an agent of kind http that remembers how it was asked.
type speaker struct {
	*httptest.Server
	mu      sync.Mutex
	runs    []asked
	running map[string]int // by session
	most    int            // turns of one session at once
	wait    func(text string, n int) <-chan struct{}
}

type asked struct {
	Key     string
	Session string
	Fence   uint64
	Message struct{ ID, Text string }
	History []struct{ Role, Text string }
}

// newSpeaker returns an agent that answers "re: " and the text, once the
// channel that wait returns for the n-th run is closed.
func newSpeaker(t *testing.T, wait func(text string, n int) <-chan struct{}) *speaker {
	s := &speaker{running: make(map[string]int), wait: wait}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var a asked
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			t.Errorf("the agent was asked %v", err)
		}
		s.mu.Lock()
		n := len(s.runs)
		s.runs = append(s.runs, a)
		s.running[a.Session]++
		s.most = max(s.most, s.running[a.Session])
		s.mu.Unlock()
		select {
		case <-s.wait(a.Message.Text, n):
		case <-r.Context().Done():
		}
		s.mu.Lock()
		s.running[a.Session]--
		s.mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"text":%q}`, "re: "+a.Message.Text)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *speaker) asked() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]asked{}, s.runs...)
}

func (s *speaker) wantOneAtATime(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != 1 {
		t.Errorf("%d turns of one session at once, want 1", s.most)
	}
}

func after(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}

var atOnce = after(0)

// talking is the configuration of a replica whose one hook asks the speaker in
// the session that the payload names.
func talking(t *testing.T, s *speaker, redis *redistest.Server) string {
	t.Helper()
	return writeConfig(t, fmt.Sprintf(`
gateway:
  host: 127.0.0.1
  port: 0
  state_dir: STATE_DIR
  turn_timeout: 30s
  log: {format: json}
  push: {redis: {%s}}
  turn_lock: {backend: redis, ttl: %s, max_wait: 60s}
hooks:
  idempotency: {store_backend: redis, takeover_after: %s}
  hooks:
    - path: chat
      signature: {scheme: github, secrets: ["%s"]}
      idempotency_key: "{{ header.X-GitHub-Delivery }}"
      session: "{{ payload.in }}"
      message: "{{ payload.text }}"
agents:
  speaker: {kind: http, url: '%s'}
`, socket(redis), lockTTL, takeoverAfter, hookSecret, s.URL))
}

func (p *process) say(session, id, text string) answer {
	return p.post("chat", id, fmt.Sprintf(`{"in":%q,"text":%q}`, session, text))
}

// mustSay sends the message again and again, as a sender that retries does.
func (p *process) mustSay(t *testing.T, session, id, text string) answer {
	t.Helper()
	var a answer
	within(t, 20*time.Second, "answer to "+id, func() bool {
		a = p.say(session, id, text)
		return a.status == http.StatusOK
	})
	return a
}

// history asks the command for what was said in a session.
func history(t *testing.T, config, session string) (rows []struct{ Role, Text, Key string }) {
	t.Helper()
	out, errs, code := gateway(t, "", "sessions", "show", session, "--json", "-c", config)
	var s struct {
		History []struct{ Role, Text, Key string }
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
		t.Fatalf("sessions show: %d %s %s", code, out, errs)
	}
	return s.History
}

// wantTurns wants the history to hold these messages and their answers, in
// strict alternation and each once.
func wantTurns(t *testing.T, config, session string, texts ...string) {
	t.Helper()
	var got, want []string
	for _, row := range history(t, config, session) {
		got = append(got, row.Role+": "+row.Text)
	}
	for _, text := range texts {
		want = append(want, "user: "+text, "assistant: re: "+text)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("history\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestB47B50B53TurnsOfASessionRunOneAtATimeInArrivalOrderOnTwoReplicas(t *testing.T) {
	t.Parallel()
	const messages = 40
	redis := redistest.Start(t)
	s := newSpeaker(t, func(_ string, n int) <-chan struct{} {
		if n%7 == 0 {
			return after(400 * time.Millisecond) // so that a queue gathers
		}
		return after(60 * time.Millisecond)
	})
	config := talking(t, s, redis)
	replicas := []*process{start(t, config), start(t, talking(t, s, redis))}
	for _, p := range replicas {
		if backends := p.health(t).Backends; backends["turn_lock"] != "redis" || backends["sessions"] != "redis" {
			t.Errorf("backends %v, want the lock and the sessions in redis", backends)
		}
	}
	var wg sync.WaitGroup
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range messages {
		wg.Go(func() {
			if got := replicas[i%2].say("room", fmt.Sprint("m-", i), fmt.Sprint("text ", i)); got.status != http.StatusOK || !strings.Contains(got.body, fmt.Sprintf(`"re: text %d"`, i)) {
				t.Errorf("message %d: %s", i, got)
			}
		})
		<-tick.C
	}
	wg.Wait()
	s.wantOneAtATime(t)
	runs := s.asked()
	if len(runs) != messages {
		t.Fatalf("%d runs, want %d", len(runs), messages)
	}
	fence := uint64(0)
	for i, run := range runs {
		if run.Message.Text != fmt.Sprint("text ", i) {
			t.Errorf("run %d is of %q", i, run.Message.Text)
		}
		if run.Fence <= fence {
			t.Errorf("run %d has fence %d after %d", i, run.Fence, fence)
		}
		fence = run.Fence
		if len(run.History) != 2*i {
			t.Errorf("run %d was told %d rows, want all %d before it", i, len(run.History), 2*i)
		}
	}
	var texts []string
	for i := range messages {
		texts = append(texts, fmt.Sprint("text ", i))
	}
	wantTurns(t, config, "room", texts...)
	if out, _, _ := gateway(t, "", "sessions", "list", "--json", "-c", config); strings.Count(out, `"session":`) != 1 {
		t.Errorf("sessions %s, want one", out)
	}
}

func TestB40B45AHolderThatIsKilledHoldsItsSessionForTheLifeOfTheLock(t *testing.T) {
	t.Parallel()
	redis, forever := redistest.Start(t), make(chan struct{})
	s := newSpeaker(t, func(_ string, n int) <-chan struct{} {
		if n == 0 {
			return forever
		}
		return atOnce
	})
	defer close(forever)
	config := talking(t, s, redis)
	a, b := start(t, config), start(t, talking(t, s, redis))
	go a.say("room", "m-1", "first")
	eventually(t, "the first turn runs", func() bool { return len(s.asked()) == 1 })
	a.kill()
	killed := time.Now()
	if got := b.say("room", "m-2", "second"); got.status != http.StatusOK {
		t.Errorf("the next turn: %s", got)
	}
	if waited := time.Since(killed); waited > lockTTL+2*time.Second {
		t.Errorf("the next turn waited %s, want %s at most", waited, lockTTL+2*time.Second)
	}
	b.mustSay(t, "room", "m-1", "first") // once takeover_after is over
	wantTurns(t, config, "room", "second", "first")
}

func TestB40AHolderThatWasFrozenWritesNothingAndAnswersNothing(t *testing.T) {
	t.Parallel()
	redis, free := redistest.Start(t), make(chan struct{})
	s := newSpeaker(t, func(_ string, n int) <-chan struct{} {
		if n == 0 {
			return free
		}
		return atOnce
	})
	config := talking(t, s, redis)
	a, b := start(t, config), start(t, talking(t, s, redis))
	first := make(chan answer, 1)
	go func() { first <- a.say("room", "m-1", "first") }()
	eventually(t, "the first turn runs", func() bool { return len(s.asked()) == 1 })
	a.pause()
	close(free) // the agent's answer waits for the frozen gateway
	if got := b.say("room", "m-2", "second"); got.status != http.StatusOK {
		t.Errorf("the next turn: %s", got)
	}
	a.resume()
	if got := <-first; got.status == http.StatusOK {
		t.Errorf("the turn that was frozen past its lock was answered: %s", got)
	}
	wantTurns(t, config, "room", "second")
	a.mustSay(t, "room", "m-1", "first")
	wantTurns(t, config, "room", "second", "first")
	if got := a.get("/metrics"); !strings.Contains(got.body, "gateway_lost_turn_locks_total 1") {
		t.Errorf("the lost lock was not counted")
	}
}

func TestB56KeysThatVanishFromRedisGiveOneUserRowAndOneReply(t *testing.T) {
	t.Parallel()
	redis, free := redistest.Start(t), make(chan struct{})
	s := newSpeaker(t, func(_ string, n int) <-chan struct{} {
		if n == 0 {
			return free
		}
		return atOnce
	})
	config := talking(t, s, redis)
	a, b := start(t, config), start(t, talking(t, s, redis))
	first := make(chan answer, 1)
	go func() { first <- a.say("room", "m-1", "hello") }()
	eventually(t, "the first turn runs", func() bool { return len(s.asked()) == 1 })
	if n := redis.Client().Del(t.Context(), "gateway:turnlock:room", "gateway:hookidem:hook::chat:m-1").Val(); n != 2 {
		t.Fatalf("%d keys were there, want the claim and the lock", n)
	}
	second := b.say("room", "m-1", "hello")
	close(free)
	replies := 0
	for _, got := range []answer{<-first, second} {
		if got.status == http.StatusOK {
			replies++
		}
	}
	if replies != 1 {
		t.Errorf("%d replies, want 1", replies)
	}
	wantTurns(t, config, "room", "hello")
	if got := a.get("/metrics"); !strings.Contains(got.body, "gateway_lost_turn_locks_total 1") && !strings.Contains(got.body, `gateway_stale_writes_total{operation="history"} 1`) {
		t.Errorf("the anomaly was not counted")
	}
}

func TestB57AnEvictingRedisIsNamedAndDoublesNoEffect(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
	free := make(chan struct{})
	s := newSpeaker(t, func(_ string, n int) <-chan struct{} {
		if n == 0 {
			return free
		}
		return atOnce
	})
	config := talking(t, s, redis)
	a, b := start(t, config), start(t, talking(t, s, redis))
	if out, _, _ := gateway(t, "", "doctor", "-c", config); !strings.Contains(out, "allkeys-lru") {
		t.Errorf("doctor does not name the policy:\n%s", out)
	}
	first := make(chan answer, 1)
	go func() { first <- a.say("room", "m-1", "hello") }()
	eventually(t, "the first turn runs", func() bool { return len(s.asked()) == 1 })
	look, junk := redis.Client(), strings.Repeat("x", 10_000)
	gone := func() bool {
		return look.Exists(t.Context(), "gateway:turnlock:room", "gateway:hookidem:hook::chat:m-1").Val() < 2
	}
	for i := 0; i < 5000 && !gone(); i++ {
		look.Set(t.Context(), fmt.Sprint("junk:", i), junk, 0)
	}
	if !gone() {
		t.Fatal("nothing was evicted")
	}
	answers := []answer{b.say("room", "m-1", "hello")}
	close(free)
	answers = append(answers, <-first)
	replies := 0
	for _, got := range answers {
		if got.status == http.StatusOK && !strings.Contains(got.body, "deduplicated") {
			replies++
		}
	}
	if replies != 1 {
		t.Errorf("%d replies, want 1: %v", replies, answers)
	}
}

func TestRedisAwayEachReplicaSerialisesItsOwnTurnsAndNothingStaysLocked(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := newSpeaker(t, func(string, int) <-chan struct{} { return after(200 * time.Millisecond) })
	config := talking(t, s, redis)
	a := start(t, config)
	redis.Pause()
	within(t, 4*time.Second, "the lock is degraded", func() bool {
		for _, o := range a.health(t).Owners {
			if o.Kind == "capability" && o.ID == "turn_lock:redis" && o.State == "stale" && o.Reason == "distributed turn lock unavailable" {
				return a.health(t).Backends["turn_lock"] == "local"
			}
		}
		return false
	})
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			if got := a.say("room", fmt.Sprint("m-", i), "hello"); got.status != http.StatusOK {
				t.Errorf("without Redis: %s", got)
			}
		})
	}
	wg.Wait()
	s.wantOneAtATime(t)
	redis.Resume()
	within(t, 8*time.Second, "everything is healthy again", func() bool {
		r := a.health(t)
		return r.Status == "healthy" && r.Backends["turn_lock"] == "redis"
	})
	start := time.Now()
	if got := a.say("room", "m-9", "back"); got.status != http.StatusOK {
		t.Errorf("with Redis back: %s", got)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %s, as if somebody held the session", took)
	}
	wantTurns(t, config, "room", "back")
}
