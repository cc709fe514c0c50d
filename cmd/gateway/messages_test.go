package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/internal/redistest"
	"github.com/oncegate/oncegate/message"
)

// storeFile returns a configuration file for a store, and its settings.
func storeFile(t *testing.T, backend string) (file, text string) {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	text = "gateway: {state_dir: " + state + ", port: 1}\n"
	if backend == "redis" {
		s := redistest.Start(t)
		text = "gateway: {state_dir: " + state + ", port: 1, push: {redis: {url: 'unix://" + s.Addr() + "', prefix: 'stage:'}}}\n"
	}
	text += withIdempotency("store_backend: "+backend+", claim_timeout: 5s", "idempotency_key: '{{ payload.id }}'")
	return writeFile(t, text), text
}

func TestMessages(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"sqlite", "redis"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			file, text := storeFile(t, backend)
			r := assembled(t, text)
			for _, args := range [][]string{nil, {"--json"}} {
				got := runIn(t, "", nil, append([]string{"messages", "list", "-c", file}, args...)...)
				if got.code != exitOK || got.err != "the store knows no such message\n" || (got.out == "") != (args == nil) {
					t.Errorf("an empty list with %v: %+v", args, got)
				}
			}
			for i := range 5 {
				want(t, r.post("a", fmt.Sprintf(`{"id":"m%d","text":"hello %d"}`, i, i)), 200, "hello")
			}
			running := idempotency.EncodeKey(message.Key{Platform: "hook", Channel: "a", ID: "running"})
			if _, err := r.store.Reserve(t.Context(), running, idempotency.Request{Token: "gone.secret-part", Lease: time.Minute, TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
			list := func(args ...string) (keys []string, more bool) {
				t.Helper()
				got := runIn(t, "", nil, append([]string{"messages", "list", "-c", file, "--json"}, args...)...)
				var all struct {
					Messages []messageRow
					More     bool
				}
				if err := json.Unmarshal([]byte(got.out), &all); err != nil || got.code != exitOK {
					t.Fatalf("messages list %v: %+v, %v", args, got, err)
				}
				for _, m := range all.Messages {
					keys = append(keys, m.Key)
					if m.LeftSeconds <= 0 || m.Replica == "" || strings.Contains(m.Replica, ".") {
						t.Errorf("%+v", m)
					}
				}
				return keys, all.More
			}
			if keys, more := list(); len(keys) != 6 || more {
				t.Errorf("listed %v, more %t, want all 6", keys, more)
			}
			if keys, more := list("--limit", "2"); len(keys) != 2 || !more {
				t.Errorf("listed %v, more %t, want 2 of more", keys, more)
			}
			if keys, _ := list("--state", "in_flight"); len(keys) != 1 || keys[0] != string(running) {
				t.Errorf("in flight: %v, want %s", keys, running)
			}
			if keys, _ := list("--state", "recorded"); len(keys) != 5 {
				t.Errorf("recorded: %v, want 5", keys)
			}
			if got := runIn(t, "", nil, "messages", "list", "-c", file, "--limit", "1"); !strings.HasPrefix(got.out, "STATE ") || !strings.Contains(got.err, "more than 1; see them with --limit") {
				t.Errorf("the table: %+v", got)
			}
			show := runIn(t, "", nil, "messages", "show", "hook::a:m3", "-c", file)
			if show.code != exitOK || !strings.Contains(show.out, "recorded, for another 24h0m0s") && !strings.Contains(show.out, "recorded, for another 23h59m") || !strings.Contains(show.out, `"hello 3"`) {
				t.Errorf("show: %+v", show)
			}
			var row messageRow
			if got := runIn(t, "", nil, "messages", "show", "hook::a:m3", "-c", file, "--json"); json.Unmarshal([]byte(got.out), &row) != nil ||
				row.State != "recorded" || row.Outcome == nil || row.Outcome.Reply != "hello 3" || len(row.Fingerprint) != 32 {
				t.Errorf("show --json: %+v", got)
			}
			if got := runIn(t, "", nil, "messages", "show", string(running), "-c", file); strings.Contains(got.out+got.err, "secret-part") || !strings.Contains(got.out, "in_flight") {
				t.Errorf("show of a claim: %+v, want no more of its token than the replica", got)
			}

			refused := func(part string, args ...string) {
				t.Helper()
				got := runIn(t, "", nil, append([]string{"messages", "release", "-c", file}, args...)...)
				if got.code != exitError || !strings.Contains(got.err, part) {
					t.Errorf("release %v: %+v, want it refused because %s", args, got, part)
				}
			}
			refused("is finished", "hook::a:m3", "--force")
			refused("knows no message", "hook::a:never", "--force")
			refused("say --force if that replica is gone", string(running))
			if got := runIn(t, "", nil, "messages", "release", string(running), "-c", file, "--force"); got.code != exitOK {
				t.Errorf("release --force: %+v", got)
			}
			want(t, r.post("a", `{"id":"running","text":"hi"}`), 200, "hi")
		})
	}
}

// A copy of the files of an open store stands for what a kill leaves behind: the
// claim is in the log beside the file, and no process has either open.
func TestTheClaimOfAKilledReplicaIsReleased(t *testing.T) {
	t.Parallel()
	file, text := storeFile(t, "sqlite")
	alive := filepath.Join(t.TempDir(), doctor.DatabaseName)
	store, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: alive, Now: time.Now, Log: slog.New(slog.DiscardHandler), NoUpkeep: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Reserve(t.Context(), "hook::a:1", idempotency.Request{Token: "gone.1", Lease: time.Minute, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	err = os.CopyFS(mustParse(t, text).Gateway.StateDir, os.DirFS(filepath.Dir(alive)))
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	if got := runIn(t, "", nil, "messages", "release", "hook::a:1", "-c", file, "--force"); got.code != exitOK || !strings.Contains(got.out, "hook::a:1 is free") {
		t.Errorf("release --force: %+v", got)
	}
	if got := runIn(t, "", nil, "messages", "show", "hook::a:1", "-c", file); got.code != exitError || !strings.Contains(got.err, "knows no message") {
		t.Errorf("show of what is released: %+v", got)
	}
}

// overlapping is a store whose every page begins with the message that ended
// the page before.
type overlapping struct{ idempotency.Lister }

func (overlapping) List(_ context.Context, req idempotency.ListRequest) (idempotency.Page, error) {
	n, _ := strconv.Atoi(req.After) // empty: 0
	page := idempotency.Page{Entries: []idempotency.Entry{{Key: idempotency.Key(strconv.Itoa(n))}, {Key: idempotency.Key(strconv.Itoa(n + 1))}}}
	if n < 4 {
		page.Next = strconv.Itoa(n + 1)
	}
	return page, nil
}

func TestAMessageOnTwoPagesIsListedOnce(t *testing.T) {
	t.Parallel()
	a := &app{streams: streams{err: t.Output()}}
	for limit, more := range map[int]bool{5: true, 6: false, 7: false} {
		rows, got, err := a.collect(t.Context(), overlapping{}, idempotency.ListRequest{Limit: limit})
		if err != nil || got != more || len(rows) != min(limit, 6) {
			t.Errorf("at most %d: %v, more %t, %v; want those of 6 that fit", limit, rows, got, err)
		}
		for i, row := range rows {
			if row.Key != strconv.Itoa(i) {
				t.Errorf("at most %d: row %d is %s", limit, i, row.Key)
			}
		}
	}
}

func TestTheClaimOfTheRunningGatewayIsNotReleased(t *testing.T) {
	t.Parallel()
	file, text := storeFile(t, "sqlite")
	r := assembled(t, text)
	server := httptest.NewServer(r.handler)
	defer server.Close()
	key := idempotency.EncodeKey(message.Key{Platform: "hook", Channel: "a", ID: "1"})
	if _, err := r.store.Reserve(t.Context(), key, idempotency.Request{Token: idempotency.NewToken(r.replica), Lease: time.Minute, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	port := server.URL[strings.LastIndex(server.URL, ":")+1:]
	if err := os.WriteFile(file, []byte(strings.Replace(text, "port: 1", "port: "+port, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	got := runIn(t, "", nil, "messages", "release", string(key), "-c", file, "--force")
	if got.code != exitError || !strings.Contains(got.err, "is running hook::a:1 right now") {
		t.Errorf("release of what the gateway runs: %+v", got)
	}
	if keys := runIn(t, "", nil, "messages", "list", "-c", file); !strings.Contains(keys.out, string(key)) {
		t.Errorf("the claim is gone: %+v", keys)
	}
}

func TestMessagesRefuseWhatTheyCannotDo(t *testing.T) {
	t.Parallel()
	memory, _ := storeFile(t, "memory")
	fresh, _ := storeFile(t, "sqlite")
	for _, test := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"list", "-c", memory}, exitError, "inside the gateway's process"},
		{[]string{"list", "-c", fresh}, exitError, "gateway.db"},
		{[]string{"list", "-c", fresh, "--limit", "0"}, exitUsage, "at least 1"},
		{[]string{"list", "-c", fresh, "--state", "dead"}, exitUsage, "in_flight or recorded"},
		{[]string{"show", "-c", fresh}, exitUsage, "arg"},
		{[]string{"list", "-c", writeFile(t, "gatewya: {}\n")}, exitConfig, "gatewya"},
	} {
		if got := runIn(t, "", nil, append([]string{"messages"}, test.args...)...); got.code != test.code || !strings.Contains(got.err, test.part) {
			t.Errorf("messages %v: %+v, want %d with %q", test.args, got, test.code, test.part)
		}
	}
	if got := runIn(t, "", nil, "__complete", "messages", "list", "--state", ""); !strings.HasPrefix(got.out, "in_flight\nrecorded\n") {
		t.Errorf("completing a state: %q", got.out)
	}
}

// TestDocumentedRedisRightsListMessages gives a user what docs/operations.md
// says it needs, and what it says that listing needs beside it.
func TestDocumentedRedisRightsListMessages(t *testing.T) {
	t.Parallel()
	doc := mustReadText(t, "../../docs/operations.md")
	m := regexp.MustCompile(`(?m)^ACL SETUSER (gateway .*)$`).FindStringSubmatch(doc)
	if m == nil || !strings.Contains(doc, "`+scan`") {
		t.Fatal("docs/operations.md names no rights")
	}
	for rights, code := range map[string]int{m[1]: exitError, m[1] + " +scan": exitOK} {
		s := redistest.Start(t, append([]string{"--user"}, strings.Fields(rights)...)...)
		file := writeFile(t, "gateway: {push: {redis: {host: "+s.Addr()+", username: gateway, password: password}}}\nhooks: {idempotency: {"+inRedis+"}}\n")
		got := runIn(t, "", nil, "messages", "list", "-c", file)
		if got.code != code || code == exitError && !strings.Contains(got.err, "NOPERM") {
			t.Errorf("messages list with %q: %+v", rights, got)
		}
		if got := runIn(t, "", nil, "messages", "show", "a:b:c:d", "-c", file); got.code != exitError || !strings.Contains(got.err, "knows no message") {
			t.Errorf("messages show with %q: %+v", rights, got)
		}
	}
}
