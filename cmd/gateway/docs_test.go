package main

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/internal/redistest"
)

// documents returns the texts for users by their paths.
func documents(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(paths) < 4 {
		t.Fatalf("documents %v, %v", paths, err)
	}
	all := make(map[string]string)
	for _, path := range append(paths, "../../README.md", "../../CHANGELOG.md") {
		all[path] = mustReadText(t, path)
	}
	return all
}

func mustReadText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section returns what stands below a heading of the second level.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, below, found := strings.Cut(text, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("there is no heading %q", heading)
	}
	below, _, _ = strings.Cut(below, "\n## ")
	return below
}

// TestDocumentedMetricsExist compares docs/operations.md with what a process
// registers, in both directions.
func TestDocumentedMetricsExist(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	gateway.NewMetrics(registry)
	h, err := hooks.New(hooks.Config{}, hooks.Deps{Log: slog.New(slog.DiscardHandler), Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var exist []string
	for _, f := range families {
		exist = append(exist, f.GetName())
	}
	table := section(t, mustReadText(t, "../../docs/operations.md"), "Metrics")
	documented := regexp.MustCompile("`(gateway_[a-z_]+)").FindAllStringSubmatch(table, -1)
	var names []string
	for _, m := range documented {
		names = append(names, m[1])
	}
	slices.Sort(names)
	if !slices.Equal(names, exist) {
		t.Errorf("docs/operations.md names\n%s\nthe process registers\n%s", strings.Join(names, "\n"), strings.Join(exist, "\n"))
	}
}

// TestDocumentedCommandsExist looks up every command line in the documents,
// with its flags.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	code := regexp.MustCompile("(?m)`gateway ([^`\n]+)`|^ *gateway ([^`\n]+)$")
	word := regexp.MustCompile(`^[a-z][a-z-]*$`)
	commands, flags := 0, 0
	for path, text := range documents(t) {
		for _, m := range code.FindAllStringSubmatch(text, -1) {
			c := root
			for _, w := range strings.Fields(m[1] + m[2]) {
				w = strings.Trim(w, "[]")
				switch name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "="); {
				case strings.HasPrefix(w, "--"):
					flags++
					if c.Flags().Lookup(name) == nil && c.InheritedFlags().Lookup(name) == nil && name != "help" {
						t.Errorf("%s names %q: %s has no flag --%s", path, m[0], c.CommandPath(), name)
					}
				case strings.HasPrefix(w, "-") && len(w) == 2:
					flags++
					if c.Flags().ShorthandLookup(name) == nil && c.InheritedFlags().ShorthandLookup(name) == nil {
						t.Errorf("%s names %q: %s has no flag -%s", path, m[0], c.CommandPath(), name)
					}
				case word.MatchString(w) && c.HasSubCommands():
					next, _, err := c.Find([]string{w})
					if err != nil || next == c {
						t.Errorf("%s names %q: %s has no command %s", path, m[0], c.CommandPath(), w)
						break
					}
					c = next
					commands++
				}
			}
		}
	}
	if commands < 20 || flags < 3 {
		t.Errorf("found %d commands and %d flags in the documents; the pattern is wrong", commands, flags)
	}
}

// TestDocumentedFlagsExist looks up the flags that are named without their
// command.
func TestDocumentedFlagsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"help": true}
	var collect func(c *cobra.Command)
	collect = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		for _, sub := range c.Commands() {
			collect(sub)
		}
	}
	collect((&app{}).root())
	found := 0
	for path, text := range documents(t) {
		for _, m := range regexp.MustCompile("`--([a-z-]+)").FindAllStringSubmatch(text, -1) {
			found++
			if !known[m[1]] {
				t.Errorf("%s names the flag --%s, which no command has", path, m[1])
			}
		}
	}
	if found < 6 {
		t.Errorf("found %d flags in the documents; the pattern is wrong", found)
	}
}

// TestEveryKeyIsDocumented compares the tables of docs/configuration.md with
// what the loader accepts, in both directions, and with the keys that other
// documents name in full.
func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	accepted := make(map[string]bool)
	for _, key := range keys(reflect.TypeFor[config.Config](), "") {
		accepted[key] = true
	}
	delete(accepted, "hooks.hooks[].auth{}") // told with hooks.hooks[].auth
	documented := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.{}\\[\\]]+)` \\|").FindAllStringSubmatch(mustReadText(t, "../../docs/configuration.md"), -1) {
		documented[m[1]] = true
	}
	if got, want := slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(accepted)); !slices.Equal(got, want) {
		t.Errorf("docs/configuration.md has\n%s\nthe loader accepts\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	named := regexp.MustCompile("`((?:gateway|hooks)\\.[a-z_.]+[a-z])`")
	for path, text := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if strings.HasSuffix(m[1], ".db") || strings.HasSuffix(m[1], ".env") || strings.HasSuffix(m[1], ".yaml") {
				continue // a file in the state directory
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(accepted)), func(key string) bool { return key == m[1] || strings.HasPrefix(key, m[1]+".") }) {
				t.Errorf("%s names the key %s, which the loader does not know", path, m[1])
			}
		}
	}
}

// TestDocumentedReasonsExist looks in the sources for every reason of a
// degraded owner that docs/operations.md lists.
func TestDocumentedReasonsExist(t *testing.T) {
	t.Parallel()
	var sources strings.Builder
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			sources.WriteString(mustReadText(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	table := section(t, mustReadText(t, "../../docs/operations.md"), "Degraded owners")
	reasons := regexp.MustCompile("(?m)^\\|[^|]*\\| `(?:cold|stale)` \\| `([^`]+)`").FindAllStringSubmatch(table, -1)
	if len(reasons) < 4 {
		t.Fatalf("found %d reasons; the pattern is wrong", len(reasons))
	}
	for _, m := range reasons {
		if !strings.Contains(sources.String(), `"`+m[1]+`"`) {
			t.Errorf("docs/operations.md lists the reason %q, which nothing gives", m[1])
		}
	}
}

// TestDocumentedConfigurationsLoad loads every YAML block of the documents
// that is a configuration.
func TestDocumentedConfigurationsLoad(t *testing.T) {
	t.Parallel()
	anything := func(string) (string, bool) { return "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cw==", true }
	found := 0
	for path, text := range documents(t) {
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1) {
			found++
			block := m[1]
			if !strings.Contains(block, "\nagents:") {
				block += "agents: {assistant: {}}\n"
			}
			if _, err := config.Parse(path, []byte(block), anything); err != nil {
				t.Errorf("%v in\n%s", err, block)
			}
		}
	}
	if found < 8 {
		t.Errorf("found %d configurations in the documents; the pattern is wrong", found)
	}
}

// TestDocumentedRedisRightsSuffice gives a user what docs/operations.md says it
// needs, and nothing else.
func TestDocumentedRedisRightsSuffice(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^ACL SETUSER (gateway .*)$`).FindSubmatch(doc)
	if m == nil {
		t.Fatal("docs/operations.md names no rights")
	}
	s := redistest.Start(t, append([]string{"--appendonly", "yes", "--user"}, strings.Fields(string(m[1]))...)...)
	text := "gateway: {push: {redis: {host: " + s.Addr() + ", username: gateway, password: password}}, turn_lock: {backend: redis}}\n" + withIdempotency(inRedis, "session: s")
	file := writeFile(t, text)
	if got := runIn(t, "", nil, "doctor", "-c", file, "--prove", "16"); got.code != exitOK || strings.Contains(got.out, "warn ") {
		t.Errorf("doctor with the documented rights: %+v", got)
	}
	r := assembled(t, text)
	var wg sync.WaitGroup
	for i := range 5 { // one after the other, each under the lock
		wg.Go(func() { want(t, r.post("a", fmt.Sprintf(`{"text":"hi %d"}`, i)), 200, "hi") })
	}
	wg.Wait()
	if owners := r.health.Owners(); len(owners) != 0 {
		t.Errorf("degraded with the documented rights: %+v", owners)
	}
	if got := runIn(t, "", nil, "sessions", "list", "-c", file, "--json"); got.code != exitOK || !strings.Contains(got.out, `"turns": 5`) {
		t.Errorf("sessions with the documented rights: %+v", got)
	}
	channel := "gateway:turnwake:" + r.replica
	soon, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for len(s.Client().PubSubChannels(t.Context(), channel).Val()) == 0 {
		select {
		case <-soon.Done():
			t.Fatal("the gateway may not hear on its channel")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestB59_DoctorFailsWhereTheLockOrSessionsAreRefused(t *testing.T) {
	t.Parallel()
	for right, refused := range map[string]string{
		"publish": "give back a turn lock: ", "subscribe": "hear wake-ups of the turn lock: ", "zadd": "acquire a turn lock: ", "hincrby": "ping the sessions: ",
	} {
		s := redistest.Start(t, "--user", "gateway", "on", ">password", "~*", "&*", "+@all", "-"+right)
		file := writeFile(t, "gateway: {push: {redis: {host: "+s.Addr()+", username: gateway, password: password}}, turn_lock: {backend: redis}}\n"+withIdempotency(inRedis, "session: s"))
		if got := runIn(t, "", nil, "doctor", "-c", file); got.code != exitError || !strings.Contains(got.out, "redis_scripts     "+refused) || !strings.Contains(got.out, "allow the user the keys, channels and commands") {
			t.Errorf("doctor without the right to %s: %+v", right, got)
		}
	}
}
