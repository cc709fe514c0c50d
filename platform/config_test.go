package platform_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/platform"
)

func hidden(text string) *secret.String { return new(secret.New(text)) }

func TestAConfigurationThatIsRight(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]platform.Config{
		"without a secret":        {Platform: "webhook", URL: "https://receiver.example/in?a=b"},
		"on the same machine":     {Platform: "webhook", URL: "http://127.0.0.1:1"},
		"with a secret":           {Platform: "webhook", URL: "HTTPS://[::1]/", Secret: hidden("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")},
		"with a secret, no whsec": {Platform: "webhook", URL: "https://h", Secret: hidden("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")},
		"with the shortest":       {Platform: "webhook", URL: "https://h", Secret: hidden("whsec_cHJpdmF0ZTg=")},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: Validate = %v, want no problem", name, err)
		}
	}
}

func TestAConfigurationThatIsWrongNamesTheKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*platform.Config)
		want   []string
	}{
		"no platform":             {func(c *platform.Config) { c.Platform = "" }, []string{`platform: "" is not one of webhook`}},
		"another platform":        {func(c *platform.Config) { *c = platform.Config{Platform: "telegram"} }, []string{`platform: "telegram" is not one of webhook`}},
		"no url":                  {func(c *platform.Config) { c.URL = "" }, []string{"url: is required with platform webhook"}},
		"a url that is none":      {func(c *platform.Config) { c.URL = "http://private:x" }, []string{"url: is not an http or https URL"}},
		"a url without a host":    {func(c *platform.Config) { c.URL = "http://:80/private" }, []string{"url: is not an http"}},
		"a url of another scheme": {func(c *platform.Config) { c.URL = "ftp://private" }, []string{"url: is not an http"}},
		"a url with a password":   {func(c *platform.Config) { c.URL = "http://u:private@h" }, []string{"url: holds a user or password"}},
		"a url with a fragment":   {func(c *platform.Config) { c.URL = "http://h/#private" }, []string{"url: has a fragment"}},
		"no base64":               {func(c *platform.Config) { c.Secret = hidden("whsec_private!") }, []string{"secret: is not one of Standard Webhooks"}},
		"seven bytes":             {func(c *platform.Config) { c.Secret = hidden("cHJpdmF0ZQ==") }, []string{"secret: is not one"}},
		"no secret at all":        {func(c *platform.Config) { c.Secret = hidden("") }, []string{"secret: is not one"}},
		"a public key":            {func(c *platform.Config) { c.Secret = hidden("whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") }, []string{"secret: is not one"}},
		"a line break": {func(c *platform.Config) {
			c.Secret = hidden("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
		}, []string{"secret: is not one"}},
		"two at once": {func(c *platform.Config) { c.URL, c.Secret = "", hidden("private") }, []string{"url:", "secret:"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := platform.Config{Platform: platform.Webhook, URL: "https://receiver.example"}
			test.change(&c)
			err := c.Validate()
			if err == nil {
				t.Fatalf("Validate = nil, want %q", test.want)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(test.want) {
				t.Fatalf("Validate = %q, want %d problems", lines, len(test.want))
			}
			for i, prefix := range test.want {
				if !strings.HasPrefix(lines[i], prefix) {
					t.Errorf("problem %d = %s, want %s…", i, lines[i], prefix)
				}
			}
			if strings.Contains(err.Error(), "private") {
				t.Errorf("Validate = %v, which quotes a secret", err)
			}
		})
	}
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"support": "", "Team-2.b_c": "", "0": "", "wss": "", "...": "",
		"":    "must have a name",
		"ws":  "WebSocket session",
		"a:b": "may hold only", "a/b": "may hold only", "a b": "may hold only", "é": "may hold only", ".": "may hold only", "..": "may hold only", "a\n": "may hold only",
	} {
		err := platform.CheckName(name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("CheckName(%q) = %v, want %q", name, err, want)
		}
	}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"support:123456":    {"support", "123456"},
		"support:-100:7":    {"support", "-100:7"},
		"support::":         {"support", ":"},
		"team: a b":         {"team", " a b"},
		"matrix:!room:a.eu": {"matrix", "!room:a.eu"},
		"ws:session":        {"ws", "session"},
	} {
		channel, target, err := platform.ParseTarget(text)
		if err != nil || channel != want[0] || target != want[1] {
			t.Errorf("ParseTarget(%q) = %q, %q, %v; want %q", text, channel, target, err, want)
		}
	}
	for _, text := range []string{"", "support", "support:", ":123", ":"} {
		channel, target, err := platform.ParseTarget(text)
		if err == nil || channel != "" || target != "" || !strings.Contains(err.Error(), "support:123456") {
			t.Errorf("ParseTarget(%q) = %q, %q, %v; want an error with an example", text, channel, target, err)
		}
	}
}
