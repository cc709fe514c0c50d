// Package archtest holds the direction of imports: who may know whom.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/oncegate/oncegate/"

// allowed lists what each package may import of this module; a trailing slash
// stands for everything below. A package that is not listed fails the test, so
// that its place is decided when it is made.
var allowed = map[string][]string{
	"message":                      {},
	"health":                       {},
	"internal/secret":              {},
	"internal/bytesize":            {},
	"internal/redisconf":           {"internal/secret"},
	"internal/client":              {},
	"internal/redact":              {},
	"internal/outbound":            {},
	"internal/redisclient":         {"internal/redact", "internal/redisconf"},
	"internal/sqlitedb":            {},
	"internal/redistest":           {"internal/redistest/"},
	"internal/redistest/redisproc": {},
	"internal/archtest":            {},

	"idempotency":                 {"message", "health", "internal/bytesize"},
	"idempotency/idempotencytest": {"idempotency", "message", "health"},
	"idempotency/sqlitestore":     {"idempotency", "message", "health", "internal/"},
	"idempotency/redisstore":      {"idempotency", "message", "health", "internal/"},
	"turnlock":                    {"health"},
	"turnlock/turnlocktest":       {"turnlock"},
	"turnlock/redislock":          {"turnlock", "health", "internal/"},
	"agent":                       {"message", "internal/secret"},
	"agent/openai":                {"agent", "internal/outbound"},
	"agent/openai/openaitest":     {},
	"agent/httpagent":             {"agent", "internal/outbound", "internal/redact"},
	"agent/execagent":             {"agent"},
	"agent/historytest":           {"agent"},
	"agent/sqlitehistory":         {"agent", "internal/sqlitedb"},
	"agent/redishistory":          {"agent", "internal/redact"},

	"platform":         {"hooks/signature", "internal/secret"},
	"platform/webhook": {"platform", "hooks/payload", "hooks/signature", "internal/outbound", "internal/redact"},

	"hooks/payload":   {},
	"hooks/signature": {"internal/secret"},
	"hooks/template":  {"hooks/payload"},
	"hooks":           {"hooks/", "message", "idempotency", "internal/client", "internal/outbound", "internal/redact", "internal/secret"},
	"gateway":         {"message", "health", "idempotency", "turnlock", "agent", "platform", "internal/bytesize", "internal/redisconf", "internal/secret"},
	"config":          {"gateway", "hooks", "agent", "idempotency", "turnlock", "message", "internal/bytesize", "internal/redisconf", "internal/secret"},
	"doctor":          {"agent", "config", "gateway", "health", "hooks", "hooks/signature", "idempotency", "message", "internal/redisconf", "internal/secret", "turnlock"},
	"cmd/gateway":     {"agent", "agent/execagent", "agent/httpagent", "agent/openai", "agent/redishistory", "agent/sqlitehistory", "config", "doctor", "gateway", "health", "hooks", "hooks/signature", "idempotency", "idempotency/redisstore", "idempotency/sqlitestore", "internal/client", "internal/redact", "internal/redisclient", "internal/redisconf", "internal/secret", "internal/sqlitedb", "message", "turnlock", "turnlock/redislock"},
	"bench":           {"health", "idempotency", "idempotency/redisstore", "idempotency/sqlitestore", "internal/", "message", "turnlock", "turnlock/redislock"},
	"e2e":             {},
	"interop":         {},
}

// drivers are linked by backends alone.
var drivers = []string{"github.com/redis/go-redis/", "modernc.org/sqlite"}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestImportsGoOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, module+"...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		rules, known := allowed[name]
		if !known {
			t.Errorf("package %s has no place in the table of imports", name)
			continue
		}
		for _, imported := range p.Imports {
			inside, ours := strings.CutPrefix(imported, module)
			if ours && !slices.ContainsFunc(rules, func(rule string) bool {
				return inside == rule || strings.HasSuffix(rule, "/") && strings.HasPrefix(inside, rule)
			}) {
				t.Errorf("%s may not import %s", name, inside)
			}
		}
	}
}

func TestContractsAndConfigurationLinkNoDriver(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, module+"config", module+"gateway", module+"hooks", module+"idempotency", module+"turnlock", module+"doctor") {
		for _, dep := range p.Deps {
			if slices.ContainsFunc(drivers, func(d string) bool { return strings.HasPrefix(dep, d) }) {
				t.Errorf("%s links %s", p.ImportPath, dep)
			}
		}
	}
}

func TestTheBinaryHoldsNoTestCode(t *testing.T) {
	t.Parallel()
	for _, dep := range list(t, module+"cmd/gateway")[0].Deps {
		if dep == "testing" || strings.HasSuffix(dep, "test") && strings.HasPrefix(dep, module) || strings.Contains(dep, "miniredis") {
			t.Errorf("cmd/gateway links %s", dep)
		}
	}
}
