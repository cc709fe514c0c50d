package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/oncegate/oncegate/internal/secret"
)

// The kinds of agents.
const (
	KindEcho   = "echo"   // repeats what it is told
	KindOpenAI = "openai" // a chat-completions endpoint
	KindHTTP   = "http"   // POST of the wire form
	KindExec   = "exec"   // a program that gets the wire form on standard input
)

// Config is one entry of the section agents of gateway.yaml.
type Config struct {
	Kind    string         `yaml:"kind"`
	Timeout *time.Duration `yaml:"timeout,omitempty"` // of one run; default: the whole turn

	// openai
	BaseURL         string        `yaml:"base_url,omitempty"` // what stands before /chat/completions
	APIKey          secret.String `yaml:"api_key,omitempty"`
	Model           string        `yaml:"model,omitempty"`
	Instructions    string        `yaml:"instructions,omitempty"` // the system message
	Temperature     *float64      `yaml:"temperature,omitempty"`
	MaxOutputTokens *int          `yaml:"max_output_tokens,omitempty"`

	// http
	URL     string                   `yaml:"url,omitempty"`
	Headers map[string]secret.String `yaml:"headers,omitempty"`

	// exec
	Command []string                 `yaml:"command,omitempty"` // the program and its arguments; no shell
	Env     map[string]secret.String `yaml:"env,omitempty"`     // beside PATH, HOME, LANG and ONCEGATE_*, all that it gets
}

// DefaultConfig returns the settings of an entry that names none.
func DefaultConfig() Config { return Config{Kind: KindEcho} }

// Validate returns every problem, joined; each begins with the key's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	kinds := []string{KindEcho, KindOpenAI, KindHTTP, KindExec}
	if !slices.Contains(kinds, c.Kind) {
		bad("kind: %q is not one of %s", c.Kind, strings.Join(kinds, ", "))
		return errors.Join(errs...)
	}
	for _, key := range c.keys() {
		if key.set && !slices.Contains(key.kinds, c.Kind) {
			bad("%s: does nothing with kind %s", key.name, c.Kind)
		}
	}
	if c.Timeout != nil && *c.Timeout <= 0 {
		bad("timeout: %s would stop every run at once; leave the key out for gateway.turn_timeout", *c.Timeout)
	}
	switch c.Kind {
	case KindOpenAI:
		errs = append(errs, c.openAIProblems()...)
	case KindHTTP:
		errs = append(errs, checkURL("url", c.URL), checkHeaders(c.Headers))
	case KindExec:
		errs = append(errs, c.execProblems()...)
	}
	return errors.Join(errs...)
}

// key is a setting that not every kind has.
type key struct {
	name  string
	set   bool
	kinds []string
}

func (c Config) keys() []key {
	openAI, http, exec := []string{KindOpenAI}, []string{KindHTTP}, []string{KindExec}
	return []key{
		{"timeout", c.Timeout != nil, []string{KindOpenAI, KindHTTP, KindExec}},
		{"base_url", c.BaseURL != "", openAI},
		{"api_key", !c.APIKey.IsEmpty(), openAI},
		{"model", c.Model != "", openAI},
		{"instructions", c.Instructions != "", openAI},
		{"temperature", c.Temperature != nil, openAI},
		{"max_output_tokens", c.MaxOutputTokens != nil, openAI},
		{"url", c.URL != "", http},
		{"headers", len(c.Headers) > 0, http},
		{"command", len(c.Command) > 0, exec},
		{"env", len(c.Env) > 0, exec},
	}
}

func (c Config) openAIProblems() []error {
	errs := []error{checkURL("base_url", c.BaseURL)}
	if c.Model == "" {
		errs = append(errs, errors.New("model: is required with kind openai"))
	}
	if t := c.Temperature; t != nil && !(*t >= 0 && *t <= 2) {
		errs = append(errs, fmt.Errorf("temperature: %v is not between 0 and 2", *t))
	}
	if n := c.MaxOutputTokens; n != nil && *n < 1 {
		errs = append(errs, fmt.Errorf("max_output_tokens: %d leaves no room for an answer", *n))
	}
	if strings.ContainsFunc(c.APIKey.Reveal(), isControl) {
		errs = append(errs, errors.New("api_key: holds a line break or another control character"))
	}
	return errs
}

func (c Config) execProblems() []error {
	var errs []error
	if len(c.Command) == 0 || c.Command[0] == "" {
		errs = append(errs, errors.New(`command: is required with kind exec, as a list: ["/usr/local/bin/agent", "--flag"]`))
	}
	for _, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			errs = append(errs, errors.New("command: holds a NUL character"))
			break
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(c.Env[name].Reveal(), 0) {
			errs = append(errs, fmt.Errorf("env: %q is not a name of an environment variable, or its value holds a NUL character", name))
		}
	}
	return errs
}

// checkURL never quotes the URL: it may hold a password.
func checkURL(key, text string) error {
	if text == "" {
		return fmt.Errorf("%s: is required, as in https://agent.example.com/v1", key)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%s: is not an http or https URL with a host", key)
	case u.User != nil:
		return fmt.Errorf("%s: holds a user or password, which would be printed; use api_key or headers", key)
	case u.Fragment != "":
		return fmt.Errorf("%s: has a fragment, which is never sent", key)
	}
	return nil
}

// ownHeaders are set by the gateway or belong to one connection only.
var ownHeaders = []string{
	"Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Host", "Idempotency-Key", "Keep-Alive", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "X-Idempotency-Key", "X-Turn-Fence",
}

func checkHeaders(headers map[string]secret.String) error {
	var errs []error
	seen := make(map[string]string, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if other, twice := seen[strings.ToLower(name)]; twice {
			errs = append(errs, fmt.Errorf("headers: %s and %s are the same header", other, name))
		}
		seen[strings.ToLower(name)] = name
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			errs = append(errs, fmt.Errorf("headers: %q is not the name of a header", name))
		case slices.ContainsFunc(ownHeaders, func(own string) bool { return strings.EqualFold(own, name) }):
			errs = append(errs, fmt.Errorf("headers: %s is set by the gateway", name))
		case strings.ContainsFunc(headers[name].Reveal(), isControl):
			errs = append(errs, fmt.Errorf("headers: the value of %s holds a line break or another control character", name))
		}
	}
	return errors.Join(errs...)
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// The places where sessions are kept.
const (
	BackendSQLite = "sqlite"
	BackendRedis  = "redis"
)

// SessionsConfig is the section sessions of gateway.yaml.
type SessionsConfig struct {
	Backend  string        `yaml:"backend"`   // empty, until the loader fills it in: where the turn lock is
	MaxTurns int           `yaml:"max_turns"` // that are kept of each session
	TTL      time.Duration `yaml:"ttl"`       // after the last turn
}

// DefaultSessionsConfig returns the settings of a file that names none.
func DefaultSessionsConfig() SessionsConfig {
	return SessionsConfig{MaxTurns: 50, TTL: 30 * 24 * time.Hour}
}

// Validate returns every problem, joined; each begins with the key's name.
func (c SessionsConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if backends := []string{BackendSQLite, BackendRedis}; c.Backend != "" && !slices.Contains(backends, c.Backend) {
		bad("backend: %q is not one of %s", c.Backend, strings.Join(backends, ", "))
	}
	if c.MaxTurns < 1 || c.MaxTurns > 1000 {
		bad("max_turns: %d is not between 1 and 1000", c.MaxTurns)
	}
	if c.TTL < time.Second {
		bad("ttl: %s is shorter than 1s; leave the key out for the default", c.TTL)
	}
	return errors.Join(errs...)
}
