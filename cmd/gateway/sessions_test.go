package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/internal/redistest"
)

func TestSessions(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"sqlite", "redis"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), "state")
			text := "gateway: {state_dir: " + state + ", port: 1}\n"
			if backend == "redis" {
				text = "gateway: {state_dir: " + state + ", port: 1, push: {redis: {url: 'unix://" + redistest.Start(t).Addr() + "', prefix: 'stage:'}}}\n"
			}
			text += "sessions: {backend: " + backend + "}\n" + echoHook("session: '{{ payload.in }}'", "idempotency_key: '{{ payload.id }}'")
			file := writeFile(t, text)
			r := assembled(t, text)
			sessions := func(args ...string) result {
				t.Helper()
				return runIn(t, "", nil, append([]string{"sessions", "-c", file}, args...)...)
			}
			if got := sessions("list"); got.code != exitOK || got.out != "" || got.err != "no session is known\n" {
				t.Errorf("an empty list: %+v", got)
			}
			if got := sessions("list", "--json"); got.code != exitOK || !strings.Contains(got.out, `"sessions": []`) {
				t.Errorf("an empty list as JSON: %+v", got)
			}
			for _, body := range []string{`{"id":"1","in":"old","text":"hi"}`, `{"id":"2","in":"room:1","text":"hello"}`, `{"id":"3","in":"room:1","text":"a\u001b[2Jb"}`} {
				want(t, r.post("a", body), 200, `"ok":true`)
			}
			var list struct {
				Sessions []struct {
					Session string
					Turns   int
				}
				More bool
			}
			if got := sessions("list", "--json"); json.Unmarshal([]byte(got.out), &list) != nil || len(list.Sessions) != 2 || list.More ||
				list.Sessions[0].Session != "room:1" || list.Sessions[0].Turns != 2 {
				t.Errorf("list --json: %+v", got)
			}
			if got := sessions("list", "--limit", "1"); !strings.HasPrefix(got.out, "LAST USED ") || !strings.Contains(got.out, "room:1") || strings.Contains(got.out, "old") ||
				!strings.Contains(got.err, "more than 1; see them with --limit") {
				t.Errorf("list --limit 1: %+v", got)
			}
			if got := sessions("list", "--limit", "0"); got.code != exitUsage {
				t.Errorf("list --limit 0: %+v", got)
			}
			show := sessions("show", "room:1")
			if show.code != exitOK || !strings.Contains(show.out, `"hello"`) || !strings.Contains(show.out, "assistant, ") || strings.Contains(show.out, "\x1b") {
				t.Errorf("show: %+v", show)
			}
			var shown struct {
				Session string
				History []struct{ Role, Text, Key string }
			}
			if got := sessions("show", "room:1", "--json"); json.Unmarshal([]byte(got.out), &shown) != nil || len(shown.History) != 4 ||
				shown.History[0].Role != "user" || shown.History[0].Text != "hello" || shown.History[0].Key != "hook::a:2" {
				t.Errorf("show --json: %+v", got)
			}
			for _, command := range []string{"show", "reset"} {
				if got := sessions(command, "nobody"); got.code != exitError || !strings.Contains(got.err, `no session is named "nobody"; gateway sessions list shows the names`) {
					t.Errorf("%s of an unknown session: %+v", command, got)
				}
			}
			if got := sessions("reset", "room:1"); got.code != exitOK || got.out != "room:1 is empty: 2 turns are forgotten\n" {
				t.Errorf("reset: %+v", got)
			}
			if got := sessions("show", "room:1", "--json"); !strings.Contains(got.out, `"history": []`) {
				t.Errorf("show after the reset: %+v", got)
			}
			want(t, r.post("a", `{"id":"4","in":"room:1","text":"anew"}`), 200, "anew")
			if got := sessions("reset", "room:1", "--json"); !strings.Contains(got.out, `"forgotten_turns": 1`) {
				t.Errorf("reset --json: %+v", got)
			}
		})
	}

	t.Run("without a gateway's file nothing is made", func(t *testing.T) {
		t.Parallel()
		state := t.TempDir()
		file := writeFile(t, "gateway: {state_dir: "+state+"}\n")
		for _, args := range [][]string{{"list"}, {"show", "s"}, {"reset", "s"}} {
			if got := runIn(t, "", nil, append(append([]string{"sessions"}, args...), "-c", file)...); got.code != exitError || got.err == "" {
				t.Errorf("%v: %+v", args, got)
			}
		}
		if made, err := os.ReadDir(state); err != nil || len(made) != 0 {
			t.Errorf("made %v, %v", made, err)
		}
	})
}
