package config_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/config"
)

// mustReport wants one of the problems at path, on line, with all of words.
func mustReport(t *testing.T, problems []config.Problem, line int, path string, words ...string) {
	t.Helper()
	for _, p := range problems {
		found := p.Path == path && p.Line == line
		for _, word := range words {
			found = found && strings.Contains(p.Reason, word)
		}
		if found {
			return
		}
	}
	t.Errorf("no problem on line %d at %s with %q in:\n%v", line, path, words, &config.Error{Problems: problems})
}

func TestB69_PasswordsWithSpecialCharactersAreTakenLiterally(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"p@ss", "a/b", "a#b?c", "a%zz", "a:b", `"`, "'", "pa$USER", "*a", "x y"} {
		t.Run("B69 password "+password+" as a field", func(t *testing.T) {
			t.Parallel()
			for _, written := range []string{"'" + strings.ReplaceAll(password, "'", "''") + "'", "${PASSWORD}"} {
				text := "gateway:\n  push:\n    redis:\n      host: h\n      username: acl\n      db: 3\n      password: " + written
				a, err := mustParse(t, text, environ("PASSWORD="+password)).Gateway.Push.Redis.Address()
				if err != nil || a.Password.Reveal() != password || a.Host != "h" || a.Port != 6379 || a.DB != 3 || a.Username != "acl" {
					t.Errorf("password %s: Address() = %+v with password %q, %v; want %q", written, a, a.Password.Reveal(), err, password)
				}
			}
		})
	}
	t.Run("B69 a URL and the fields give the same address", func(t *testing.T) {
		t.Parallel()
		byURL := mustParse(t, `gateway: {push: {redis: {url: "rediss://acl:p%40s%2Fs@h:6380/3", tls: {ca_file: ca.pem}}}}`, environ())
		byField := mustParse(t, `gateway: {push: {redis: {host: h, port: 6380, db: 3, username: acl, password: p@s/s, tls: {ca_file: ca.pem}}}}`, environ())
		got, err := byURL.Gateway.Push.Redis.Address()
		want, err2 := byField.Gateway.Push.Redis.Address()
		if err != nil || err2 != nil || got != want {
			t.Errorf("Address() = %+v, %v by URL, %+v, %v by fields", got, err, want, err2)
		}
	})
	t.Run("B69 an unescaped URL is an error with a hint and without the password", func(t *testing.T) {
		t.Parallel()
		for _, password := range []string{"hunter/2", "hunter#2?c", "hunter%zz"} {
			for _, written := range []string{"redis://acl:" + password + "@h:6379/3", "${REDIS_URL}"} {
				text := "gateway:\n  push:\n    redis:\n      url: " + written
				problems := mustFail(t, text, environ("REDIS_URL=redis://acl:"+password+"@h:6379/3"))
				mustReport(t, problems, 4, "gateway.push.redis.url", "percent-encode", "host, username, password")
				if all := (&config.Error{Problems: problems}).Error(); strings.Contains(all, "hunter") {
					t.Errorf("the error shows the password: %s", all)
				}
			}
		}
	})
}

func TestB73_ADurationIsNeverZeroByMistake(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"900": 15 * time.Minute, `"900"`: 15 * time.Minute, "900s": 15 * time.Minute, "15m": 15 * time.Minute,
		"24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "1s": time.Second, "1500ms": 1500 * time.Millisecond,
	} {
		c := mustParse(t, "hooks: {idempotency: {lease: "+text+", ttl: "+text+"}}", environ())
		if i := c.Hooks.Idempotency; i.Lease != want || i.TTL != want {
			t.Errorf("%s = lease %s, ttl %s; want %s", text, i.Lease, i.TTL, want)
		}
	}
	for text, reason := range map[string]string{
		"900 seconds": "is not a duration", "0.5": "is not a duration", "1e3": "is not a duration", "15M": "is not a duration", "15 m": "is not a duration",
		"+5s": "is not a duration", "1d-5h": "is not a duration", "1d5": "is not a duration", `""`: "is not a duration", "12:30": "is not a duration", "d": "is not a duration",
		"-5s": "is a negative duration", "-900": "is a negative duration", "0": "is shorter than 1s", "0s": "is shorter than 1s", "999ms": "is shorter than 1s",
		"~": "has no value", "9999999999999": "is too long", "106752d": "is too long", "106751d24h": "is too long",
	} {
		problems := mustFail(t, "hooks:\n  idempotency:\n    lease: "+text+"\n    ttl: "+text, environ())
		mustReport(t, problems, 3, "hooks.idempotency.lease", reason)
		mustReport(t, problems, 4, "hooks.idempotency.ttl", reason)
	}
}

func TestB118_IdsKeepEveryDigit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1234567890123456789": "1234567890123456789", `"1234567890123456789"`: "1234567890123456789", "0123": "0123", "0x1F": "0x1F", "1_000": "1_000",
		"-1001234567890": "-1001234567890", "123456789012345678901234567890": "123456789012345678901234567890", `"1.234567e+18"`: "1.234567e+18", "'1.5'": "1.5",
	} {
		c := mustParse(t, "hooks: {hooks: [{path: a, platform: "+text+", account: "+text+", channel: "+text+"}]}\nagents: {a: }", environ())
		if h := c.Hooks.Hooks[0]; h.Platform != want || h.Account != want || h.Channel != want {
			t.Errorf("%s = %q, %q, %q; want %q", text, h.Platform, h.Account, h.Channel, want)
		}
	}
	for _, text := range []string{"1.234567e+18", "1e18", "1.5", "-1.0", ".5", ".inf"} {
		problems := mustFail(t, "hooks:\n  hooks:\n    - path: a\n      channel: "+text+"\nagents: {a: }", environ())
		mustReport(t, problems, 4, "hooks.hooks[0].channel", text, "quote")
	}
	t.Run("B118 an id through an alias is as strict", func(t *testing.T) {
		t.Parallel()
		problems := mustFail(t, "hooks:\n  hooks:\n    - path: a\n      session: &id 1.5e3\n      channel: *id\nagents: {a: }", environ())
		mustReport(t, problems, 5, "hooks.hooks[0].channel", "1.5e3", "quote")
	})
}

func TestB119_AnUnresolvedReferenceIsNeverAValue(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text, path string
		line             int
	}{
		{"a section's own value", "gateway:\n  auth_token: REF", "gateway.auth_token", 2},
		{"a nested value", "gateway:\n  push:\n    redis:\n      url: REF", "gateway.push.redis.url", 4},
		{"an item of a list", "hooks:\n  hooks:\n    - path: a\n      signature:\n        scheme: github\n        secrets:\n          - REF", "hooks.hooks[0].signature.secrets[0]", 7},
		{"a value of a map", "hooks:\n  hooks:\n    - path: a\n      headers:\n        X-Key: REF", "hooks.hooks[0].headers.X-Key", 5},
		{"an optional value", "hooks:\n  hooks:\n    - path: a\n      auth: REF", "hooks.hooks[0].auth", 4},
		{"an entry of a map of sections", "agents:\n  a:\n    kind: REF", "agents.a.kind", 3},
		{"a number", "gateway:\n  port: REF", "gateway.port", 2},
	} {
		t.Run("B119 "+test.name, func(t *testing.T) {
			t.Parallel()
			with := func(ref string) string { return strings.ReplaceAll(test.text, "REF", ref) }
			mustReport(t, mustFail(t, with("${HOOK_SECRET}"), environ()), test.line, test.path, "HOOK_SECRET", "is not set")
			mustReport(t, mustFail(t, with("${env:X}"), environ("X=x", "env=x")), test.line, test.path, "${NAME}")
		})
	}
	t.Run("B119 set, it is the value", func(t *testing.T) {
		t.Parallel()
		c := mustParse(t, `
gateway: {auth_token: "${HOOK_SECRET}"}
hooks:
  hooks:
    - {path: a, auth: "${HOOK_SECRET}", signature: {scheme: github, secrets: ["${HOOK_SECRET}", "${UNSET:-default-secret}", "${EMPTY:-default-secret}"]}}
    - {path: b, action: forward, target: "http://x", headers: {X-Key: "Bearer ${HOOK_SECRET}"}}
agents: {a: }`, environ("HOOK_SECRET=s3cret-value", "EMPTY="))
		h := c.Hooks.Hooks
		got := []string{c.Gateway.AuthToken.Reveal(), h[0].Auth.Only.Reveal(), h[1].Headers["X-Key"].Reveal()}
		for _, s := range h[0].Signature.Secrets {
			got = append(got, s.Reveal())
		}
		want := []string{"s3cret-value", "s3cret-value", "Bearer s3cret-value", "s3cret-value", "default-secret", "default-secret"}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("values = %q, want %q", got, want)
		}
	})
}

func TestB120_EveryOtherDollarIsLiteral(t *testing.T) {
	t.Parallel()
	env := environ("NESTED=x${HOME}y", "LINES=a\nb: c # d", "DOLLARS=$$$HOME", "QUOTE=\"'", "EMPTY=", "V=v")
	for text, want := range map[string]string{
		"pa$USERword": "pa$USERword", "test$$pass": "test$$pass", "a${": "a${", "${}": "${}", "$": "$", "a$": "a$", "$V": "$V", "{V}": "{V}", "${V": "${V",
		"$${V}": "${V}", "a$${V}b": "a${V}b", "$$${V}": "$${V}", "$${": "${", "$${V}${V}": "${V}v", "${V}${V}$": "vv$", "${}${V}": "${}v",
		"${NESTED}": "x${HOME}y", "${LINES}": "a\nb: c # d", "${DOLLARS}": "$$$HOME", "${QUOTE}": "\"'", "${EMPTY}": "", "${UNSET:-}": "", "${UNSET:-a:-b $V}": "a:-b $V",
	} {
		c := mustParse(t, "gateway:\n  auth_token: '"+text+"'\nhooks:\n  hooks:\n    - path: a\n      session: '"+text+"'\nagents: {a: }", env)
		if got := c.Gateway.AuthToken.Reveal(); got != want {
			t.Errorf("secret %s = %q, want %q", text, got, want)
		}
		if got := c.Hooks.Hooks[0].Session; got != want {
			t.Errorf("text %s = %q, want %q", text, got, want)
		}
	}
	t.Run("B120 keys are not expanded", func(t *testing.T) {
		t.Parallel()
		c := mustParse(t, `agents: {"${V}": }`, env)
		if _, ok := c.Agents["${V}"]; !ok {
			t.Errorf("agents = %v, want one named ${V}", c.Agents)
		}
	})
}

func TestB121_AnUnknownKeyIsReportedWithLineAndSuggestion(t *testing.T) {
	t.Parallel()
	problems := mustFail(t, `gateway:
  turn_lock:
    tll: 60s
idempotancy:
  ttl: 24h
hooks:
  idempotencey: {}
  hooks:
    - path: a
      allow_form: [1]
      idempotency-key: x
agents:
  a: {knid: echo}
`, environ())
	mustReport(t, problems, 3, "gateway.turn_lock.tll", "did you mean ttl?")
	mustReport(t, problems, 4, "idempotancy", "did you mean hooks.idempotency?", "valid here: gateway, sessions, hooks, agents")
	mustReport(t, problems, 7, "hooks.idempotencey", "did you mean idempotency?")
	mustReport(t, problems, 10, "hooks.hooks[0].allow_form", "valid here: path, agent,")
	mustReport(t, problems, 11, "hooks.hooks[0].idempotency-key", "did you mean idempotency_key?")
	mustReport(t, problems, 13, "agents.a.knid", "did you mean kind?")
	if len(problems) != 6 {
		t.Errorf("%d problems, want 6:\n%v", len(problems), &config.Error{Problems: problems})
	}
}

func TestB126_ADuplicateKeyIsAnErrorWithBothLines(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text, path string
		line             int
	}{
		{"at the top", "agents:\n  a:\nagents:\n  b:", "agents", 3},
		{"inside an item", "hooks:\n  hooks:\n    - session: x\n      path: a\n      session: y", "hooks.hooks[0].session", 5},
		{"quoted the second time", "agents:\n  a:\n  'a':", "agents.a", 3},
		{"below an unknown key", "x:\n  a: 1\n  a: 2", "x.a", 3},
		{"inside what an alias repeats", "hooks:\n  hooks:\n    - &h {path: a,\n       session: x, session: y}\n    - *h", "hooks.hooks[0].session", 4},
		{"inside what is merged", "hooks:\n  hooks:\n    - path: a\n      <<: {session: x,\n       session: y}", "hooks.hooks[0].session", 5},
		{"the merge key itself", "agents:\n  a: &a {kind: echo}\n  b:\n    <<: *a\n    <<: *a", `agents.b."<<"`, 5},
	} {
		t.Run("B126 "+test.name, func(t *testing.T) {
			t.Parallel()
			problems := mustFail(t, test.text, environ())
			mustReport(t, problems, test.line, test.path, "duplicate key, first set on line ")
			duplicates := 0
			for _, p := range problems {
				if strings.Contains(p.Reason, "duplicate") {
					duplicates++
				}
			}
			if duplicates != 1 {
				t.Errorf("reported %d times, want once:\n%v", duplicates, &config.Error{Problems: problems})
			}
		})
	}
	t.Run("B126 an override through a merge key follows the documented order", func(t *testing.T) {
		t.Parallel()
		h := mustReadGood(t, "merge", environ()).Hooks.Hooks
		got := make([][3]string, len(h))
		for i := range h {
			got[i] = [3]string{h[i].Path, h[i].Session, h[i].Message}
		}
		want := [][3]string{
			{"base", "base", "base"}, {"more", "base", "more"}, {"explicit", "explicit", "more"}, {"earlier", "base", "base"}, {"nested", "base", "more"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("path, session, message = %v, want %v", got, want)
		}
	})
}

func TestB127_TextStaysTextAndBooleansAreTrueOrFalse(t *testing.T) {
	t.Parallel()
	c := mustReadGood(t, "texts", environ())
	r, h := c.Gateway.Push.Redis, c.Hooks.Hooks
	for _, test := range []struct{ got, want string }{
		{r.Host, "no"}, {r.Username, "0123"}, {r.Password.Reveal(), "0e12345"},
		{h[0].Path, "12"}, {h[0].Agent, "on"}, {h[0].Platform, "12:30"}, {h[0].Account, "-1001234567890"}, {h[0].Channel, "1234567890123456789"},
		{h[0].Session, "0x1F"}, {h[0].Message, "2026-01-02"}, {h[1].Path, "no"}, {h[1].Account, "1_000"}, {h[1].Channel, "1.5"}, {h[1].Message, "two\nlines\n"},
	} {
		if test.got != test.want {
			t.Errorf("text = %q, want %q", test.got, test.want)
		}
	}
	if _, ok := c.Agents["on"]; !ok || len(c.Agents) != 1 {
		t.Errorf("agents = %v, want one named on", c.Agents)
	}
	if !h[0].RequireKey || h[1].RequireKey {
		t.Errorf("require_key = %t, %t; want true, false", h[0].RequireKey, h[1].RequireKey)
	}
	for _, text := range []string{"yes", "no", "on", "off", "NO", "y", "1", "0", "True", "FALSE", `"true"`, `"false"`, "'false'", `""`, "~", "[true]", "${WORD}"} {
		problems := mustFail(t, "hooks:\n  hooks:\n    - path: a\n      require_key: "+text+"\nagents: {a: }", environ("WORD=yes"))
		mustReport(t, problems, 4, "hooks.hooks[0].require_key")
	}
}
