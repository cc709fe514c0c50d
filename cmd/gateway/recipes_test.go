package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// recipe is a gateway that runs one recipe of docs/hooks.md.
type recipe struct {
	*rig
	cfg config.Config
}

var recipeBlock = regexp.MustCompile("(?s)\n### ([^\n]+)\n.*?```yaml\n(.*?)```")

// recipes loads every recipe of docs/hooks.md by the heading it stands under.
func recipes(t *testing.T) map[string]recipe {
	t.Helper()
	doc, err := os.ReadFile("../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]recipe)
	for _, m := range recipeBlock.FindAllStringSubmatch(string(doc), -1) {
		text := regexp.MustCompile(`\$\{[A-Z_]+\}`).ReplaceAllString(m[2], "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw==") + "agents: {assistant: {}}\n"
		all[m[1]] = recipe{assembled(t, text), mustParse(t, text)}
	}
	return all
}

// post sends body to a hook as its sender would, signed or with the token.
func (r recipe) post(t *testing.T, path, body string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	i := slices.IndexFunc(r.cfg.Hooks.Hooks, func(h hooks.Hook) bool { return h.Path == path })
	if i < 0 {
		t.Fatalf("the recipe has no hook %s", path)
	}
	return r.rig.post(path, body, func(req *http.Request) {
		for name, values := range header {
			req.Header[http.CanonicalHeaderKey(name)] = values
		}
		if err := r.cfg.Hooks.Hooks[i].Sign(req.Header, signature.Content{Body: []byte(body)}, secret.String{}, time.Now()); err != nil {
			t.Fatal(err)
		}
	})
}

// recorded reports whether a message is known as finished.
func (r recipe) recorded(t *testing.T, key message.Key) bool {
	t.Helper()
	res, err := r.store.Reserve(t.Context(), idempotency.EncodeKey(key), idempotency.Request{Token: "observer", Lease: time.Second, TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if res.State == idempotency.Won {
		if err := r.store.Release(t.Context(), res.Claim); err != nil {
			t.Fatal(err)
		}
	}
	return res.State == idempotency.Recorded
}

// delivery is a row of INDEX.tsv: a sender's request and what must come of it.
type delivery struct {
	file, platform, account, channel string
	header                           http.Header
	ids, texts                       []string
	runs                             bool
}

func mustReadIndex(t *testing.T) []delivery {
	t.Helper()
	data, err := os.ReadFile("testdata/payloads/INDEX.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var all []delivery
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != 9 || cells[0] == "file" {
			continue
		}
		d := delivery{file: cells[0], platform: cells[1], account: cells[3], channel: cells[4], header: make(http.Header), runs: cells[7] == "yes"}
		for part := range strings.SplitSeq(cells[2], "; ") {
			if name, value, ok := strings.Cut(part, ": "); ok && !strings.HasPrefix(value, "<") {
				d.header.Set(name, value)
			}
		}
		if cells[5] != "" {
			d.ids = strings.Split(cells[5], ",")
		}
		if cells[6] != "" {
			d.texts = strings.Split(cells[6], " | ")
		}
		all = append(all, d)
	}
	return all
}

// TestRecipesTreatEveryBodyAsItsSenderMeansIt sends the bodies of INDEX.tsv in
// its order through the recipes: what should run runs once under its key and
// with its text, and nothing else does.
func TestRecipesTreatEveryBodyAsItsSenderMeansIt(t *testing.T) {
	t.Parallel()
	all := recipes(t)
	hookOf := func(d delivery) (heading, path string) {
		switch {
		case d.file == "github-second-hook-same-comment.json":
			return "GitHub", "github/repository"
		case strings.Contains(d.file, "pr-review"):
			return "GitHub", "github/reviews"
		case d.platform == "github":
			return "GitHub", "github/comments"
		case d.platform == "gitlab":
			return "GitLab", "gitlab"
		case d.file == "stripe-connect.json":
			return "Stripe", "stripe/connect"
		case d.platform == "stripe":
			return "Stripe", "stripe"
		case strings.Contains(d.file, "event-alert"):
			return "Sentry", "sentry/alerts"
		case d.platform == "sentry":
			return "Sentry", "sentry/issues"
		case d.platform == "linear":
			return "Linear", "linear"
		case d.platform == "standardwebhooks":
			return "Standard Webhooks and Svix", "tickets"
		case strings.Contains(d.file, "form"):
			return "Zapier, Make and others without a signature", "zapier/form"
		}
		return "Zapier, Make and others without a signature", "zapier"
	}
	index := mustReadIndex(t)
	// The index has only the redelivery of this comment; the delivery came first.
	i := slices.IndexFunc(index, func(d delivery) bool { return d.file == "github-redelivery.json" })
	first := index[i]
	first.runs = true
	index = slices.Insert(index, i, first)
	runs := 0
	for _, d := range index {
		heading, path := hookOf(d)
		body, err := os.ReadFile(filepath.Join("testdata/payloads", d.file))
		if err != nil {
			t.Fatal(err)
		}
		platform := d.platform
		if platform == "generic" {
			platform = "hook"
		}
		r := all[heading]
		before := 0
		for _, id := range d.ids {
			if r.recorded(t, message.Key{Platform: platform, Account: d.account, Channel: d.channel, ID: id}) {
				before++
			}
		}
		w := r.post(t, path, string(body), d.header)
		if w.Code != 200 {
			t.Errorf("%s: answer = %d %s, want 200", d.file, w.Code, w.Body)
		}
		ran := strings.Count(w.Body.String(), `"reply":`) - strings.Count(w.Body.String(), `"deduplicated":true`)
		if !d.runs {
			if ran != 0 {
				t.Errorf("%s ran, and must not:\n%s", d.file, w.Body)
			}
			continue
		}
		runs += ran
		if ran != len(d.ids) || before != 0 {
			t.Errorf("%s ran %d messages of which %d were known, want %d new ones:\n%s", d.file, ran, before, len(d.ids), w.Body)
		}
		for _, id := range d.ids {
			if key := (message.Key{Platform: platform, Account: d.account, Channel: d.channel, ID: id}); !r.recorded(t, key) {
				t.Errorf("%s: nothing is recorded under %+v", d.file, key)
			}
		}
		for _, text := range d.texts {
			if quoted, _ := json.Marshal(text); !strings.Contains(w.Body.String(), `"reply":`+string(quoted)) {
				t.Errorf("%s: no reply to %s in %s", d.file, quoted, w.Body)
			}
		}
	}
	if want := 15; runs != want {
		t.Errorf("%d messages ran, want %d", runs, want)
	}
}

func TestSlackRecipe(t *testing.T) {
	t.Parallel()
	r := recipes(t)["Slack"]
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	command := "team_id=T1DC2JH3J&channel_id=G8PSS9T3V&user_id=U2CERLKJA&command=%2Fdeploy&text=status&trigger_id=398738663015.47445629121.803a"
	want(t, r.post(t, "slack/command", command, form), 200, `"reply":"/deploy status"`)
	want(t, r.post(t, "slack/command", command, form), 200, `"deduplicated":true`)
	action, err := os.ReadFile("testdata/payloads/slack-interactivity-block-actions.txt")
	if err != nil {
		t.Fatal(err)
	}
	want(t, r.post(t, "slack/action", string(action), form), 200, `"reply":"approve=42"`)
	if key := (message.Key{Platform: "slack", Account: "T0GW00001/A0GW00001", Channel: "C0OPS0001", ID: "action:1000.2000.abc0002"}); !r.recorded(t, key) {
		t.Errorf("nothing is recorded under %+v", key)
	}
}
