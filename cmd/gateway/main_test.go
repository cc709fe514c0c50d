package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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

func TestB133_DoctorJSONIsPureAndItsIDsStay(t *testing.T) {
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
	ids := strings.Fields(mustReadText(t, "../../doctor/testdata/ids.txt"))
	for i, id := range append(ids, "prove") {
		if i >= len(report.Checks) || report.Checks[i]["id"] != id || !slices.Contains([]string{"ok", "warn", "fail", "skipped"}, report.Checks[i]["status"]) {
			t.Errorf("check %d is not %s with a known status: %v", i, id, report.Checks)
		}
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
		if c.Short == "" || !strings.Contains(c.Example, c.CommandPath()) {
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
