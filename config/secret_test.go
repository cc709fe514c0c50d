package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/internal/secret"
)

const marker = "MARKER-hunter2"

// plant sets every secret below v, and one of each optional part, list and map.
func plant(v reflect.Value) {
	if v.Type() == reflect.TypeFor[secret.String]() {
		v.Set(reflect.ValueOf(secret.New(marker)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		plant(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		plant(v.Index(0))
	case reflect.Map:
		elem := reflect.New(v.Type().Elem()).Elem()
		plant(elem)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("name"), elem)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() { // else it is inside a type of the standard library
				plant(f)
			}
		}
	}
}

func TestNoFormOfAConfigShowsASecret(t *testing.T) {
	t.Parallel()
	var c config.Config
	plant(reflect.ValueOf(&c).Elem())
	if c.Gateway.Push.Redis.URL.Reveal() != marker || c.Hooks.Hooks[0].Signature.Secrets[0].Reveal() != marker {
		t.Fatal("plant missed a secret")
	}
	printed, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	const secrets = 10 // auth_token, url, password, auth, secrets, verify_token, headers; of an agent api_key, headers, env
	if got := strings.Count(string(printed), "***"); got != secrets {
		t.Errorf("YAML() shows %d secrets as ***, want %d:\n%s", got, secrets, printed)
	}
	encoded, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Info("config", "value", c, "hook", c.Hooks.Hooks[0], "auth", c.Hooks.Hooks[0].Auth)
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("config", "value", c, "token", c.Gateway.AuthToken)
	for name, text := range map[string]string{
		"YAML": string(printed), "JSON": string(encoded), "slog": logged.String(),
		"%v": fmt.Sprintf("%v %v", c, &c), "%+v": fmt.Sprintf("%+v %+v", c, &c), "%#v": fmt.Sprintf("%#v %#v", c, &c),
	} {
		if strings.Contains(text, marker) {
			t.Errorf("%s shows a secret:\n%s", name, text)
		}
	}
}

// TestNoErrorShowsASecret puts the marker where a secret belongs, in every
// form that is wrong.
func TestNoErrorShowsASecret(t *testing.T) {
	t.Parallel()
	places := []string{
		"gateway:\n  auth_token: X",
		"gateway:\n  push:\n    redis:\n      url: X",
		"gateway:\n  push:\n    redis:\n      host: h\n      password: X",
		"hooks:\n  hooks:\n    - path: a\n      auth: X",
		"hooks:\n  hooks:\n    - path: a\n      signature:\n        scheme: github\n        secrets: X",
		"hooks:\n  hooks:\n    - path: a\n      signature:\n        scheme: github\n        secrets:\n          - X",
		"hooks:\n  hooks:\n    - path: a\n      action: forward\n      target: http://x\n      headers:\n        Authorization: X",
	}
	forms := []string{
		marker, "'" + marker, `"` + marker + `\z"`, "*" + marker, "&" + marker, "&" + marker + " x", "!" + marker, "!" + marker + " x", "%" + marker, "@" + marker, "`" + marker,
		"${" + marker + "}", "${A:-${" + marker + "}}", "${A-" + marker + "}", "a: " + marker, "[" + marker + "]", "[" + marker, "{a: " + marker + "}", "{a: " + marker, "- " + marker,
		"redis://u:" + marker + "/x@h", "redis://u:" + marker + "#x@h", "redis://u:" + marker + "%zz@h", "http://u:" + marker + "@h", "redis://h/" + marker, "redis://h?password=" + marker,
		"| " + marker, "\t" + marker + ": x", "\"a\n" + marker, "\"\\x07" + marker + `"`, "${VALUE}", "${VALUE}: b", "[\"${VALUE}\"]", "{a: \"${VALUE}\"}", "1\n" + marker,
	}
	failed := 0
	for _, place := range places {
		for _, form := range forms {
			text := strings.ReplaceAll(place, "X", form)
			_, err := config.Parse("gateway.yaml", []byte(text), environ("VALUE=redis://u:"+marker+"\n/@"))
			if err == nil {
				continue
			}
			failed++
			if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), marker) {
				t.Errorf("the error for\n%s\nshows the secret: %v", text, err)
			}
		}
	}
	if failed < len(places)*len(forms)/2 {
		t.Errorf("only %d of %d files were wrong", failed, len(places)*len(forms))
	}
}
