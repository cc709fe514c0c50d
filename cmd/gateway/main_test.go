package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/internal/redistest"
)

// result is what one command line printed.
type result struct {
	out, err string
	code     int
}

// runIn runs the program with env, and HOME in a directory of the test.
func runIn(t *testing.T, stdin string, env map[string]string, args ...string) result {
	t.Helper()
	home := t.TempDir()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, streams{in: strings.NewReader(stdin), out: &out, err: &errs}, func(name string) (string, bool) {
		if name == "HOME" {
			return home, true
		}
		value, ok := env[name]
		return value, ok
	})
	return result{out: out.String(), err: errs.String(), code: code}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	good := writeFile(t, "hooks: {hooks: [{path: a}]}\nagents: {one: {}}\n")
	if got := runIn(t, "", nil, "config", "check", "-c", good); got.code != exitOK || got.out != good+" is valid: 1 hooks, 1 agents\n" {
		t.Errorf("a good file: %+v", got)
	}
	bad := writeFile(t, "gatewya: {}\nhooks: {idempotency: {lease: 0}}\n")
	got := runIn(t, "", map[string]string{"GATEWAY_CONFIG": bad}, "config", "check")
	if got.code != exitConfig || got.out != "" || strings.Count(got.err, "\n") != 2 ||
		!strings.Contains(got.err, bad+":1: gatewya: ") || !strings.Contains(got.err, bad+":2: hooks.idempotency.lease: ") {
		t.Errorf("a bad file: %+v, want both problems with their places", got)
	}
	var report struct {
		OK       bool
		Problems []struct{ File, Path, Reason string }
	}
	got = runIn(t, "", nil, "config", "check", "-c", bad, "--json")
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.code != exitConfig || report.OK || len(report.Problems) != 2 {
		t.Errorf("a bad file in JSON: %+v, %v", got, err)
	}
}

func TestConfigShowHidesSecrets(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "gateway: {auth_token: \"${TOKEN}\"}\n")
	for _, args := range [][]string{{"config", "show", "-c", file}, {"config", "show", "-c", file, "--json"}} {
		got := runIn(t, "", map[string]string{"TOKEN": "hunter2-token"}, args...)
		if got.code != exitOK || strings.Contains(got.out, "hunter2") || !strings.Contains(got.out, "***") || !strings.Contains(got.out, "max_body_bytes") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	var tree map[string]any
	if err := json.Unmarshal([]byte(runIn(t, "", nil, "config", "show", "--json").out), &tree); err != nil || tree["gateway"] == nil {
		t.Errorf("config show --json = %v, %v", tree, err)
	}
}

func TestDoctorJSONIsPure(t *testing.T) {
	t.Parallel()
	got := runIn(t, "", nil, "doctor", "--json", "--prove", "3")
	var report struct {
		Checks []map[string]string `json:"checks"`
	}
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || got.code != exitOK {
		t.Fatalf("doctor --json: %+v, %v", got, err)
	}
	for _, c := range report.Checks {
		for _, field := range []string{"id", "status", "detail", "hint", "source"} {
			if _, ok := c[field]; !ok {
				t.Errorf("check %v has no %s", c, field)
			}
		}
	}
	if n := len(report.Checks); n != 6 {
		t.Errorf("%d checks, want 6", n)
	}
}

func TestDoctorFindsARealDamagedDatabase(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	path := filepath.Join(state, "gateway.db")
	junk := bytes.Repeat([]byte("not a database, "), 256)
	if err := os.WriteFile(path, junk, 0o600); err != nil {
		t.Fatal(err)
	}
	got := runIn(t, "", map[string]string{"STATE_DIRECTORY": state}, "doctor")
	if got.code != exitError || !strings.Contains(got.out, "fail     database") || !strings.Contains(got.out, path) {
		t.Errorf("doctor on a damaged file: %+v", got)
	}
	if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, junk) {
		t.Errorf("the file was changed: %v", err)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	var v map[string]string
	got := runIn(t, "", nil, "version", "--json")
	if err := json.Unmarshal([]byte(got.out), &v); err != nil || v["version"] == "" || v["go"] == "" || got.code != exitOK {
		t.Errorf("version --json: %+v, %v", got, err)
	}
}

func TestEveryCommandHelpsWithAnExample(t *testing.T) {
	t.Parallel()
	a := &app{streams: streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "completion" {
			return // the library's own
		}
		if c.Short == "" || c.Runnable() && !c.HasSubCommands() && !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("%s: no short help, or no example of its own", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(a.root())
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := runIn(t, "", nil, "completion", shell); got.code != exitOK || got.out == "" {
			t.Errorf("completion %s: exit %d", shell, got.code)
		}
	}
	if got := runIn(t, "", nil, "__complete", "hooks", "send", ""); !strings.HasPrefix(got.out, "echo\n") {
		t.Errorf("completing a hook: %q, want the default's echo", got.out)
	}
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
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "\n## Metrics\n")
	table, _, _ = strings.Cut(table, "\n## ")
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

// TestDocumentedCommandsExist runs --help of every command line in the
// documents.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile("`gateway ([a-z]+(?: [a-z]+)?)")
	found := 0
	for _, doc := range []string{"README.md", "CHANGELOG.md", "docs/hooks.md", "docs/operations.md"} {
		text, err := os.ReadFile(filepath.Join("../..", doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			found++
			if got := runIn(t, "", nil, append(strings.Fields(m[1]), "--help")...); got.code != exitOK {
				t.Errorf("%s names %q: %s", doc, m[0], got.err)
			}
		}
	}
	if found < 8 {
		t.Errorf("found %d command lines in the documents; the pattern is wrong", found)
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
	s := redistest.Start(t, append([]string{"--user"}, strings.Fields(string(m[1]))...)...)
	file := writeFile(t, "gateway: {push: {redis: {host: "+s.Addr()+", username: gateway, password: password}}}\nhooks: {idempotency: {"+inRedis+"}}\n")
	if got := runIn(t, "", nil, "doctor", "-c", file, "--prove", "16"); got.code != exitOK || strings.Contains(got.out, "warn ") {
		t.Errorf("doctor with the documented rights: %+v", got)
	}
}
