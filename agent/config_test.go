package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/internal/secret"
)

func secrets(pairs ...string) map[string]secret.String {
	m := map[string]secret.String{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = secret.New(pairs[i+1])
	}
	return m
}

// valid returns the smallest configuration of a kind.
func valid(kind string) agent.Config {
	c := agent.Config{Kind: kind}
	switch kind {
	case agent.KindOpenAI:
		c.BaseURL, c.Model = "https://llm.example/v1", "small"
	case agent.KindHTTP:
		c.URL = "https://agent.example/turn"
	case agent.KindExec:
		c.Command = []string{"program"}
	}
	return c
}

var kinds = []string{agent.KindEcho, agent.KindOpenAI, agent.KindHTTP, agent.KindExec}

func TestAConfigurationThatIsRight(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]agent.Config{
		"the default": agent.DefaultConfig(),
		"all of openai": {
			Kind: agent.KindOpenAI, Timeout: new(time.Nanosecond), BaseURL: "http://127.0.0.1:1?api-version=1", APIKey: secret.New("sk-1"),
			Model: "m", Instructions: "be brief\n", Temperature: new(2.0), MaxOutputTokens: new(1),
		},
		"all of http": {
			Kind: agent.KindHTTP, Timeout: new(time.Hour), URL: "HTTPS://[::1]/a?b=c",
			Headers: secrets("Authorization", "Bearer\tx é", "Accept", "", "X-Api-Key", "k"),
		},
		"all of exec": {Kind: agent.KindExec, Timeout: new(time.Hour), Command: []string{"a", "", "-b c\n"}, Env: secrets("a.b", "", "PATH", "x=y\n")},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: Validate = %v, want no problem", name, err)
		}
	}
	for _, kind := range kinds {
		if err := valid(kind).Validate(); err != nil {
			t.Errorf("the smallest of kind %s: Validate = %v, want no problem", kind, err)
		}
	}
}

func TestAConfigurationThatIsWrongNamesTheKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind   string
		change func(*agent.Config)
		want   string
	}{
		"no kind":                         {"", func(*agent.Config) {}, `kind: "" is not one of echo, openai, http, exec`},
		"a kind that is not there":        {"ehco", func(c *agent.Config) { c.Command = []string{""} }, `kind: "ehco" is not one of`},
		"a timeout of nothing":            {agent.KindHTTP, func(c *agent.Config) { c.Timeout = new(time.Duration(0)) }, "timeout: 0s would stop"},
		"a timeout before the start":      {agent.KindExec, func(c *agent.Config) { c.Timeout = new(-time.Second) }, "timeout: -1s would stop"},
		"no base_url":                     {agent.KindOpenAI, func(c *agent.Config) { c.BaseURL = "" }, "base_url: is required"},
		"no model":                        {agent.KindOpenAI, func(c *agent.Config) { c.Model = "" }, "model: is required"},
		"a temperature below 0":           {agent.KindOpenAI, func(c *agent.Config) { c.Temperature = new(-0.1) }, "temperature: -0.1 is not between"},
		"a temperature over 2":            {agent.KindOpenAI, func(c *agent.Config) { c.Temperature = new(2.1) }, "temperature: 2.1 is not between"},
		"no room for an answer":           {agent.KindOpenAI, func(c *agent.Config) { c.MaxOutputTokens = new(0) }, "max_output_tokens: 0 leaves"},
		"a key with a line break":         {agent.KindOpenAI, func(c *agent.Config) { c.APIKey = secret.New("private\n") }, "api_key: holds a line break"},
		"no url":                          {agent.KindHTTP, func(c *agent.Config) { c.URL = "" }, "url: is required"},
		"a url that is none":              {agent.KindHTTP, func(c *agent.Config) { c.URL = "http://private:x" }, "url: is not an http"},
		"a url without a host":            {agent.KindHTTP, func(c *agent.Config) { c.URL = "http://:80/private" }, "url: is not an http"},
		"a url of another scheme":         {agent.KindHTTP, func(c *agent.Config) { c.URL = "ftp://private" }, "url: is not an http"},
		"a url with a password":           {agent.KindHTTP, func(c *agent.Config) { c.URL = "http://u:private@h" }, "url: holds a user or password"},
		"a url with a fragment":           {agent.KindHTTP, func(c *agent.Config) { c.URL = "http://h/#private" }, "url: has a fragment"},
		"a header that is none":           {agent.KindHTTP, func(c *agent.Config) { c.Headers = secrets("a b", "private") }, `headers: "a b" is not the name`},
		"a header that is ours":           {agent.KindHTTP, func(c *agent.Config) { c.Headers = secrets("idempotency-KEY", "private") }, "headers: idempotency-KEY is set by the gateway"},
		"a header twice":                  {agent.KindHTTP, func(c *agent.Config) { c.Headers = map[string]secret.String{"X-A": {}, "x-a": {}} }, "headers: X-A and x-a are the same header"},
		"a fence of one's own":            {agent.KindHTTP, func(c *agent.Config) { c.Headers = secrets("x-turn-fence", "1") }, "headers: x-turn-fence is set by the gateway"},
		"a header that breaks a line":     {agent.KindHTTP, func(c *agent.Config) { c.Headers = secrets("X-A", "private\r\nb: c") }, "headers: the value of X-A holds"},
		"a header with DEL":               {agent.KindHTTP, func(c *agent.Config) { c.Headers = secrets("X-A", "private\x7f") }, "headers: the value of X-A holds"},
		"no command":                      {agent.KindExec, func(c *agent.Config) { c.Command = nil }, "command: is required"},
		"a command without a program":     {agent.KindExec, func(c *agent.Config) { c.Command = []string{"", "a"} }, "command: is required"},
		"an argument with NUL":            {agent.KindExec, func(c *agent.Config) { c.Command = []string{"a", "\x00"} }, "command: holds a NUL"},
		"a variable without a name":       {agent.KindExec, func(c *agent.Config) { c.Env = secrets("", "private") }, `env: "" is not a name`},
		"a variable with = in its name":   {agent.KindExec, func(c *agent.Config) { c.Env = secrets("A=", "private") }, `env: "A=" is not a name`},
		"a variable with NUL in its text": {agent.KindExec, func(c *agent.Config) { c.Env = secrets("A", "private\x00") }, `env: "A" is not a name`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := valid(test.kind)
			test.change(&c)
			err := c.Validate()
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("Validate = %v, want only %s…", err, test.want)
			}
			if strings.Contains(err.Error(), "private") {
				t.Errorf("Validate = %v, which quotes a secret", err)
			}
		})
	}
}

func TestASettingOfAnotherKindIsAProblem(t *testing.T) {
	t.Parallel()
	for key, test := range map[string]struct {
		set   func(*agent.Config)
		kinds string
	}{
		"timeout":           {func(c *agent.Config) { c.Timeout = new(time.Second) }, "openai http exec"},
		"base_url":          {func(c *agent.Config) { c.BaseURL = "http://h" }, "openai"},
		"api_key":           {func(c *agent.Config) { c.APIKey = secret.New("k") }, "openai"},
		"model":             {func(c *agent.Config) { c.Model = "m" }, "openai"},
		"instructions":      {func(c *agent.Config) { c.Instructions = "i" }, "openai"},
		"temperature":       {func(c *agent.Config) { c.Temperature = new(0.0) }, "openai"},
		"max_output_tokens": {func(c *agent.Config) { c.MaxOutputTokens = new(1) }, "openai"},
		"url":               {func(c *agent.Config) { c.URL = "http://h" }, "http"},
		"headers":           {func(c *agent.Config) { c.Headers = secrets("X-A", "b") }, "http"},
		"command":           {func(c *agent.Config) { c.Command = []string{"a"} }, "exec"},
		"env":               {func(c *agent.Config) { c.Env = secrets("A", "b") }, "exec"},
	} {
		for _, kind := range kinds {
			c := valid(kind)
			test.set(&c)
			err := c.Validate()
			if strings.Contains(test.kinds, kind) {
				if err != nil {
					t.Errorf("%s with kind %s: Validate = %v, want no problem", key, kind, err)
				}
				continue
			}
			if want := key + ": does nothing with kind " + kind; err == nil || err.Error() != want {
				t.Errorf("%s with kind %s: Validate = %v, want %s", key, kind, err, want)
			}
		}
	}
}

func TestAllProblemsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	err := agent.Config{
		Kind: agent.KindHTTP, Timeout: new(time.Duration(0)), Model: "m", Command: []string{"a"},
		Headers: secrets("Te", "a", "Host", "b", "X-A", "\n"),
	}.Validate()
	if err == nil {
		t.Fatal("Validate = nil, want the problems")
	}
	want := []string{"model:", "command:", "timeout:", "url:", "headers: Host", "headers: Te", "headers: the value of X-A"}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d problems, want %d:\n%v", len(lines), len(want), err)
	}
	for i, prefix := range want {
		if !strings.HasPrefix(lines[i], prefix) {
			t.Errorf("problem %d = %s, want %s…", i, lines[i], prefix)
		}
	}
}

func TestSessionsConfig(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*agent.SessionsConfig)
		want   []string
	}{
		"the default":             {func(*agent.SessionsConfig) {}, nil},
		"the bounds":              {func(c *agent.SessionsConfig) { c.Backend, c.MaxTurns, c.TTL = agent.BackendRedis, 1000, time.Second }, nil},
		"the other bounds":        {func(c *agent.SessionsConfig) { c.Backend, c.MaxTurns = agent.BackendSQLite, 1 }, nil},
		"another backend":         {func(c *agent.SessionsConfig) { c.Backend = "memory" }, []string{`backend: "memory" is not one of`}},
		"no turns":                {func(c *agent.SessionsConfig) { c.MaxTurns = 0 }, []string{"max_turns: 0 is not"}},
		"too many":                {func(c *agent.SessionsConfig) { c.MaxTurns = 1001 }, []string{"max_turns: 1001 is not"}},
		"a ttl under a second":    {func(c *agent.SessionsConfig) { c.TTL = time.Second - 1 }, []string{"ttl: 999.999999ms is shorter"}},
		"all of it wrong at once": {func(c *agent.SessionsConfig) { *c = agent.SessionsConfig{Backend: "x"} }, []string{"backend:", "max_turns:", "ttl:"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agent.DefaultSessionsConfig()
			test.change(&c)
			var got []string
			if err := c.Validate(); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if len(got) != len(test.want) {
				t.Fatalf("Validate = %q, want %d problems", got, len(test.want))
			}
			for i, prefix := range test.want {
				if !strings.HasPrefix(got[i], prefix) {
					t.Errorf("problem %d = %s, want %s…", i, got[i], prefix)
				}
			}
		})
	}
}
