package config_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/config"
)

var update = flag.Bool("update", false, "write testdata/bad/*.want anew")

// environ returns an Env of NAME=value pairs beside a home directory.
func environ(pairs ...string) config.Env {
	vars := map[string]string{"HOME": "/home/gateway"}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		vars[name] = value
	}
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}

// mustFail returns the problems of a configuration.
func mustFail(t *testing.T, text string, env config.Env) []config.Problem {
	t.Helper()
	_, err := config.Parse("gateway.yaml", []byte(text), env)
	e, ok := errors.AsType[*config.Error](err)
	if !ok {
		t.Fatalf("Parse(%q) = %v, want a *config.Error", text, err)
	}
	return e.Problems
}

func mustParse(t *testing.T, text string, env config.Env) config.Config {
	t.Helper()
	c, err := config.Parse("gateway.yaml", []byte(text), env)
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return c
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob = %v, %v; want files", files, err)
	}
	env := environ("EMPTY=", "WORD=hunter2", "FIVE=5")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse(filepath.Base(file), data, env)
			if err == nil {
				t.Fatal("Parse succeeded, want an error")
			}
			got, golden := err.Error()+"\n", strings.TrimSuffix(file, ".yaml")+".want"
			if strings.Contains(got, "hunter2") {
				t.Errorf("the error shows a secret:\n%s", got)
			}
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
