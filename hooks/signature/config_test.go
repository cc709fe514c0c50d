package signature_test

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	duration := func(d time.Duration) *time.Duration { return &d }
	good := []secret.String{secret.New("MARKER-1")}
	for _, test := range []struct {
		name string
		cfg  signature.Config
		want string // lines; empty: valid
	}{
		{"github", signature.Config{Scheme: "github", Secrets: good, SignedBody: "decoded"}, ""},
		{"a window", signature.Config{Scheme: "slack", Secrets: good, MaxAge: duration(time.Hour), MaxFuture: duration(0)}, ""},
		{"hmac-hex", signature.Config{Scheme: "hmac-hex", Secrets: good, Header: "X-Sig", Prefix: "sha1=", Algo: "sha1", SignedURL: "after"}, ""},
		{
			"an unknown scheme", signature.Config{Scheme: "hmac"},
			`scheme: "hmac" is not one of github, slack, stripe, standard, hmac-hex, hmac-base64`,
		},
		{"no secret", signature.Config{Scheme: "stripe"}, "secrets: must name at least one secret"},
		{
			"what github ignores", signature.Config{
				Scheme: "github", Secrets: good, Header: "X", Prefix: "a", Algo: "sha1", SecretEncoding: "raw", SignedURL: "after",
				MaxAge: duration(time.Hour), MaxFuture: duration(time.Hour),
			},
			"header: does nothing with scheme github\nprefix: does nothing with scheme github\nalgo: does nothing with scheme github\n" +
				"secret_encoding: does nothing with scheme github\nsigned_url: does nothing with scheme github\n" +
				"max_age: does nothing with scheme github\nmax_future: does nothing with scheme github",
		},
		{
			"values that nothing means", signature.Config{
				Scheme: "hmac-base64", Secrets: good, Header: "a b", Prefix: "a\nb", Algo: "md5", SecretEncoding: "hex", SignedBody: "raw", SignedURL: "yes",
			},
			"header: \"a b\" is not the name of a header; scheme hmac-base64 needs the one that carries the signature\n" +
				"prefix: \"a\\nb\" holds a comma or a control character\n" +
				"algo: \"md5\" is not one of sha1, sha256, sha512\nsecret_encoding: \"hex\" is not one of raw, base64\n" +
				"signed_body: \"raw\" is not one of wire, decoded\nsigned_url: \"yes\" is not one of before, after",
		},
		{
			"no window", signature.Config{Scheme: "standard", SecretEncoding: "raw", Secrets: good, MaxAge: duration(0), MaxFuture: duration(-1)},
			"max_age: 0s is shorter than 1s; leave the key out for the default\nmax_future: -1ns is neither 0s, for no time ahead, nor at least 1s",
		},
		{
			"a future that whole seconds do not have", signature.Config{Scheme: "stripe", Secrets: good, MaxFuture: duration(time.Millisecond)},
			"max_future: 1ms is neither 0s, for no time ahead, nor at least 1s",
		},
		{
			"a prefix that is never there", signature.Config{Scheme: "hmac-hex", Secrets: good, Header: "X-Sig", Prefix: " sha256="},
			`prefix: " sha256=" begins with space, which is cut off every signature`,
		},
		{
			"two signatures as a prefix", signature.Config{Scheme: "hmac-hex", Secrets: good, Header: "X-Sig", Prefix: "a,b"},
			`prefix: "a,b" holds a comma or a control character`,
		},
		{
			"no header", signature.Config{Scheme: "hmac-hex", Secrets: good},
			`header: "" is not the name of a header; scheme hmac-hex needs the one that carries the signature`,
		},
		{
			"windows that no clock has", signature.Config{Scheme: "slack", Secrets: good, MaxAge: duration(1600000 * time.Hour), MaxFuture: duration(1600000 * time.Hour)},
			"max_age: a signed time is believed for 1600000h0m0s before it and 1600000h0m0s after it; a year is the most that makes sense",
		},
		{
			"secrets that can be guessed", signature.Config{Scheme: "github", Secrets: []secret.String{{}, secret.New("MARKER7"), secret.New("MARKER-1")}},
			"secrets[0]: has 0 bytes; use at least 8\nsecrets[1]: has 7 bytes; use at least 8",
		},
		{
			"bytes behind base64 count", signature.Config{Scheme: "standard", Secrets: []secret.String{secret.New("whsec_"), secret.New("TUFSS0VS"), secret.New("whsec_TUFSS0VSLTE=")}},
			"secrets[0]: has 0 bytes; use at least 8\nsecrets[1]: has 6 bytes; use at least 8",
		},
		{
			"what is no base64", signature.Config{Scheme: "standard", Secrets: []secret.String{
				secret.New("MARKER-text!"), secret.New("TUFSS0VSLTE"), secret.New("TUFSS0VSLTF="), secret.New("TUFS\nS0VSLTE="), secret.New("TUFSS0VSLTE=\n"),
			}},
			"secrets[0]: is not base64; if the sender uses the text itself as its key, set secret_encoding: raw\n" +
				"secrets[1]: is not base64; if the sender uses the text itself as its key, set secret_encoding: raw\n" +
				"secrets[2]: is not base64; if the sender uses the text itself as its key, set secret_encoding: raw\n" +
				"secrets[3]: is not base64; if the sender uses the text itself as its key, set secret_encoding: raw\n" +
				"secrets[4]: has space or a line break at an end, as texts read from a file often do; no sender's secret has",
		},
		{
			"a line break behind a text", signature.Config{Scheme: "github", Secrets: []secret.String{secret.New("MARKER-12\n")}},
			"secrets[0]: has space or a line break at an end, as texts read from a file often do; no sender's secret has",
		},
		{
			"a space before a text", signature.Config{Scheme: "hmac-hex", Header: "X-Sig", Secrets: []secret.String{secret.New(" MARKER-12")}},
			"secrets[0]: has space or a line break at an end, as texts read from a file often do; no sender's secret has",
		},
		{
			"an asymmetric key", signature.Config{Scheme: "standard", Secrets: []secret.String{secret.New("whpk_MARKER")}},
			"secrets[0]: is a public key of an asymmetric signature, which is not supported; ask the sender for a secret that begins with whsec_",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := test.cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("Validate() =\n%s\nwant\n%s", got, test.want)
			}
			if strings.Contains(got, "MARKER") || strings.Contains(got, "TUFS") {
				t.Errorf("a secret is in the error: %s", got)
			}
			if _, err := signature.New(test.cfg); (err == nil) != (test.want == "") {
				t.Errorf("New = %v", err)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	for _, test := range []struct {
		cfg         signature.Config
		age, future time.Duration
	}{
		{signature.Config{Scheme: "github"}, 0, 0},
		{signature.Config{Scheme: "slack"}, 5 * time.Minute, time.Minute},
		{signature.Config{Scheme: "stripe", MaxAge: &hour}, time.Hour, time.Minute},
		{signature.Config{Scheme: "standard", MaxFuture: &hour}, 5 * time.Minute, time.Hour},
	} {
		if age, future := test.cfg.Window(); age != test.age || future != test.future {
			t.Errorf("Window of %+v = %s, %s, want %s, %s", test.cfg, age, future, test.age, test.future)
		}
	}
}
