package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent/openai/openaitest"
	"github.com/oncegate/oncegate/internal/redistest"
)

// agentEffects are the effects of agents, sessions and the turn lock.
var agentEffects = map[string]func(*testing.T){
	"gateway.turn_lock.backend": func(t *testing.T) {
		want(t, assembled(t, echoHook()).get("/health"), 200, `"turn_lock":"local"`)
		s := redistest.StartTCP(t)
		r := assembled(t, "gateway: {push: {redis: {"+fields(s.Addr())+"}}, turn_lock: {backend: redis}}\n"+echoHook("session: s"))
		want(t, r.get("/health"), 200, `"turn_lock":"redis"`)
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		if n := s.Client().Exists(t.Context(), "gateway:turnfence:s").Val(); n != 1 {
			t.Error("the turn took no lock in Redis")
		}
	},
	"gateway.turn_lock.ttl": func(t *testing.T) {
		s := redistest.StartTCP(t)
		url, arrived, release := blocking(t)
		r := assembled(t, "gateway: {push: {redis: {"+fields(s.Addr())+"}}, turn_lock: {backend: redis, ttl: 77s}}\n"+
			echoHook("session: s", "action: forward", "target: "+url))
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.post("a", `{"text":"hi"}`)
		}()
		<-arrived
		if left := s.Client().PTTL(t.Context(), "gateway:turnlock:s").Val(); left > 77*time.Second || left < 60*time.Second {
			t.Errorf("the lock lives for another %s, want about 77s", left)
		}
		release()
		<-done
	},
	"gateway.turn_lock.max_wait": func(t *testing.T) {
		url, arrived, release := blocking(t)
		r := assembled(t, "gateway: {turn_timeout: 700ms, turn_lock: {ttl: 1s, max_wait: 1s}}\n"+echoHook("session: s", "action: forward", "target: "+url))
		codes := make(chan int, 2)
		go r.post("a", `{"text":"1"}`)
		<-arrived // and holds the lock until its time is over
		for _, text := range []string{"2", "3"} {
			go func() { codes <- r.post("a", `{"text":"`+text+`"}`).Code }()
		}
		if got := []int{<-codes, <-codes}; !slices.Contains(got, 503) || !slices.Contains(got, 504) {
			t.Errorf("the turns behind it got %d; want one to run after it (504), one to wait for too long (503)", got)
		}
		release()
	},

	"sessions.backend": func(t *testing.T) {
		s := redistest.StartTCP(t)
		server := "gateway: {push: {redis: {" + fields(s.Addr()) + "}}}\nsessions: {backend: %s}\n"
		for backend, keys := range map[string]int64{"sqlite": 0, "redis": 1} {
			r := assembled(t, fmt.Sprintf(server, backend)+echoHook("session: s"))
			want(t, r.get("/health"), 200, `"sessions":"`+backend+`"`)
			want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
			if n := s.Client().Exists(t.Context(), "gateway:session:s").Val(); n != keys {
				t.Errorf("%s: %d histories in Redis, want %d", backend, n, keys)
			}
			s.Client().FlushAll(t.Context())
		}
	},
	"sessions.max_turns": func(t *testing.T) {
		model := openaitest.Start(t)
		r := assembled(t, "sessions: {max_turns: 2}\n"+asks("kind: openai, base_url: '"+model.URL()+"', model: m", "session: s"))
		for i := range 5 {
			want(t, r.post("a", fmt.Sprintf(`{"text":"question %d"}`, i)), 200, fmt.Sprint("question ", i))
		}
		requests := model.Requests()
		if last := requests[len(requests)-1].Messages; len(last) != 5 || !strings.Contains(last[0].Content, "question 2") {
			t.Errorf("the model was told %v, want the last two turns and the question", last)
		}
	},
	"sessions.ttl": func(t *testing.T) {
		s := redistest.StartTCP(t)
		r := assembled(t, "gateway: {push: {redis: {"+fields(s.Addr())+"}}}\nsessions: {backend: redis, ttl: 77s}\n"+echoHook("session: s"))
		want(t, r.post("a", `{"text":"hi"}`), 200, "hi")
		if left := s.Client().PTTL(t.Context(), "gateway:session:s").Val(); left > 77*time.Second || left < 60*time.Second {
			t.Errorf("the session lives for another %s, want about 77s", left)
		}
	},

	"agents{}.kind": func(t *testing.T) {
		want(t, assembled(t, asks("kind: echo")).post("a", `{"text":"hi"}`), 200, `"reply":"hi"`)
		want(t, assembled(t, asks("kind: exec, command: [/bin/echo, ran]")).post("a", `{"text":"hi"}`), 200, `"reply":"ran"`)
	},
	"agents{}.timeout": func(t *testing.T) {
		start := time.Now()
		want(t, assembled(t, asks("kind: exec, command: [/bin/sleep, '60'], timeout: 100ms")).post("a", `{"text":"hi"}`), 504, "run timed out")
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("took %s", took)
		}
	},
	"agents{}.base_url": func(t *testing.T) {
		model := openaitest.Start(t)
		want(t, assembled(t, asks("kind: openai, base_url: '"+model.URL()+"/', model: m")).post("a", `{"text":"hi"}`), 200, `"reply":"hi"`)
	},
	"agents{}.api_key": func(t *testing.T) {
		model := openaitest.Start(t)
		model.RequireKey("sk-test") // fails the test otherwise
		want(t, assembled(t, asks("kind: openai, base_url: '"+model.URL()+"', model: m, api_key: sk-test")).post("a", `{"text":"hi"}`), 200, `"reply":"hi"`)
	},
	"agents{}.model": toldToTheModel("model: some-model", func(r openaitest.Request) bool { return r.Fields["model"] == "some-model" }),
	"agents{}.instructions": toldToTheModel("model: m, instructions: Be brief.", func(r openaitest.Request) bool {
		return r.Messages[0].Role == "system" && r.Messages[0].Content == "Be brief."
	}),
	"agents{}.temperature": toldToTheModel("model: m, temperature: 0.25", func(r openaitest.Request) bool {
		return r.Fields["temperature"] == 0.25
	}),
	"agents{}.max_output_tokens": toldToTheModel("model: m, max_output_tokens: 77", func(r openaitest.Request) bool {
		return r.Fields["max_tokens"] == 77.0
	}),
	"agents{}.url": func(t *testing.T) {
		url := target(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // what is missing of it shows below
			if r.URL.Path != "/turn" || !strings.Contains(string(body), `"text":"hi"`) {
				t.Errorf("%s got %s", r.URL.Path, body)
			}
			_, _ = io.WriteString(w, `{"text":"from the service"}`)
		})
		want(t, assembled(t, asks("kind: http, url: '"+url+"/turn'")).post("a", `{"text":"hi"}`), 200, `"reply":"from the service"`)
	},
	"agents{}.headers{}": func(t *testing.T) {
		url := target(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, `{"text":%q}`, r.Header.Get("X-Mine"))
		})
		want(t, assembled(t, asks("kind: http, url: '"+url+"', headers: {X-Mine: '42'}")).post("a", `{"text":"hi"}`), 200, `"reply":"42"`)
	},
	"agents{}.command": func(t *testing.T) {
		want(t, assembled(t, asks("kind: exec, command: [/bin/echo, two, words]")).post("a", `{"text":"hi"}`), 200, `"reply":"two words"`)
	},
	"agents{}.env{}": func(t *testing.T) {
		want(t, assembled(t, asks("kind: exec, command: [/bin/sh, -c, 'echo $MINE'], env: {MINE: '42'}")).post("a", `{"text":"hi"}`), 200, `"reply":"42"`)
	},
}

// asks is a configuration whose hook on path a asks an agent.
func asks(agent string, keys ...string) string {
	return strings.Replace(echoHook(keys...), "one: {}", "one: {"+agent+"}", 1)
}

func toldToTheModel(settings string, told func(openaitest.Request) bool) func(*testing.T) {
	return func(t *testing.T) {
		model := openaitest.Start(t)
		want(t, assembled(t, asks("kind: openai, base_url: '"+model.URL()+"', "+settings)).post("a", `{"text":"hi"}`), 200, `"reply":"hi"`)
		if requests := model.Requests(); len(requests) != 1 || !told(requests[0]) {
			t.Errorf("with %s the model was told %+v", settings, requests)
		}
	}
}
