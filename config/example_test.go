package config_test

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/internal/secret"
)

// optional matches a line of the example that is a setting commented out.
var optional = regexp.MustCompile(`^( *)# ( *(?:- )?[a-z_]+:(?: .*)?)$`)

func mustReadExample(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../gateway.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(data), "\n")
}

// uncomment turns on the optional settings of the lines for which want returns true.
func uncomment(lines []string, want func(i int) bool) string {
	lines = slices.Clone(lines)
	for i, line := range lines {
		if want(i) {
			lines[i] = optional.ReplaceAllString(line, "$1$2")
		}
	}
	return strings.Join(lines, "\n")
}

func TestExampleEqualsTheDefaults(t *testing.T) {
	t.Parallel()
	lines := mustReadExample(t)
	c := mustParse(t, strings.Join(lines, "\n"), environ())

	wantGateway := gateway.DefaultConfig()
	wantGateway.StateDir = "/home/gateway/.local/state/oncegate"
	wantSessions := agent.DefaultSessionsConfig()
	wantSessions.Backend = agent.BackendSQLite
	wantHook := hooks.DefaultHook()
	wantHook.Path, wantHook.Agent = "github", "assistant"
	want := config.Config{
		Gateway: wantGateway, Sessions: wantSessions,
		Hooks:  hooks.Config{Idempotency: hooks.DefaultConfig().Idempotency, Hooks: []hooks.Hook{wantHook}},
		Agents: map[string]agent.Config{"assistant": agent.DefaultConfig()},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("gateway.example.yaml = %+v, want %+v", c, want)
	}
}

func TestExampleHasEveryKey(t *testing.T) {
	t.Parallel()
	text := uncomment(mustReadExample(t), func(int) bool { return true })
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	got, want := make(map[string]bool), make(map[string]bool)
	keysOfNode("", doc.Content[0], got)
	keysOfType("", reflect.TypeFor[config.Config](), want)
	for key := range maps.Keys(want) {
		if !got[key] {
			t.Errorf("gateway.example.yaml lacks %s", key)
		}
	}
}

func TestExampleOptionsLoad(t *testing.T) {
	t.Parallel()
	lines := mustReadExample(t)
	anything := func(name string) (string, bool) {
		if name == "GATEWAY_PUBLIC_URL" {
			return "https://bot.example.com", true
		}
		return "MDEyMzQ1Njc4OTAx", true // as a text, and as base64
	}
	runs := 0
	for start := 0; start < len(lines); start++ {
		end := start
		for optional.MatchString(lines[end]) {
			end++
		}
		if end == start {
			continue
		}
		runs++
		text := uncomment(lines, func(i int) bool { return start <= i && i < end })
		plain := mustParse(t, strings.Join(lines, "\n"), anything)
		got, err := config.Parse("gateway.example.yaml", []byte(text), anything)
		if err != nil {
			t.Errorf("with lines %d to %d: %v", start+1, end, err)
		} else if reflect.DeepEqual(got, plain) {
			t.Errorf("lines %d to %d change nothing", start+1, end)
		}
		start = end
	}
	if runs == 0 {
		t.Error("the example has no optional settings")
	}
}

// keysOfNode collects the paths of a document, without list indexes and with
// the names of agents and headers as "*".
func keysOfNode(path string, n *yaml.Node, keys map[string]bool) {
	keys[path] = true
	switch n.Kind {
	case yaml.SequenceNode:
		for _, v := range n.Content {
			keysOfNode(path, v, keys)
		}
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if path == ".agents" {
				key = "*"
			}
			keysOfNode(path+"."+key, n.Content[i+1], keys)
		}
	}
}

func keysOfType(path string, t reflect.Type, keys map[string]bool) {
	keys[path] = true
	switch {
	case t == reflect.TypeFor[secret.String]():
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice:
		keysOfType(path, t.Elem(), keys)
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct && t.Elem() != reflect.TypeFor[secret.String]():
		keysOfType(path+".*", t.Elem(), keys)
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			if key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); key != "" {
				keysOfType(path+"."+key, t.Field(i).Type, keys)
			}
		}
	}
}
