package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/internal/secret"
)

func TestNoFormShowsTheText(t *testing.T) {
	t.Parallel()
	const text = "hunter2"
	s := secret.New(text)
	if got := s.Reveal(); got != text {
		t.Errorf("Reveal() = %q, want %q", got, text)
	}
	holder := struct {
		Value   secret.String
		Pointer *secret.String
		List    []secret.String
		Map     map[string]secret.String
	}{s, &s, []secret.String{s}, map[string]secret.String{"a": s}}
	encodedJSON, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	encodedYAML, err := yaml.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Info("secret", "value", s, "pointer", &s, "holder", holder)
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("secret", "value", s, "pointer", &s, "holder", holder)
	for name, got := range map[string]string{
		"%v": fmt.Sprintf("%v %v %v", s, &s, holder), "%+v": fmt.Sprintf("%+v %+v %+v", s, &s, holder), "%#v": fmt.Sprintf("%#v %#v %#v", s, &s, holder),
		"%s": fmt.Sprintf("%s %s", s, &s), "%q": fmt.Sprintf("%q %q", s, &s), "%d": fmt.Sprintf("%"+"d", s), "%x": fmt.Sprintf("%x %X", s, &s), "Errorf": fmt.Errorf("bad %v", s).Error(),
		"JSON": string(encodedJSON), "YAML": string(encodedYAML), "slog": logged.String(),
	} {
		if strings.Contains(got, text) || strings.Contains(strings.ToLower(got), fmt.Sprintf("%x", text)) {
			t.Errorf("%s = %s, which shows the secret", name, got)
		}
		if name != "%x" && !strings.Contains(got, "***") {
			t.Errorf("%s = %s, want *** in it", name, got)
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	var zero secret.String
	if !zero.IsEmpty() || !secret.New("").IsEmpty() || secret.New("x").IsEmpty() {
		t.Error("IsEmpty() is wrong")
	}
	if got := fmt.Sprintf("%v%s%#v", zero, zero, zero); got != "" {
		t.Errorf("an empty secret prints %q, want nothing", got)
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		secret, other string
		want          bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "A", false}, {"a", "aa", false}, {"a", "a\x00", false}, {"a", "", false}, {"", "a", false},
		{"", "", false}, // a missing secret opens no door
	} {
		if got := secret.New(test.secret).Equal(test.other); got != test.want {
			t.Errorf("New(%q).Equal(%q) = %t, want %t", test.secret, test.other, got, test.want)
		}
	}
}
