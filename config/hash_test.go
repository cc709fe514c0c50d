package config_test

import (
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/internal/secret"
)

// ofOneReplica are the keys that replicas have each for itself.
var ofOneReplica = []string{"gateway.host", "gateway.port", "gateway.state_dir", "gateway.log.level", "gateway.log.format"}

// leaf is one setting of a configuration that has one of each list and map.
type leaf struct {
	path string
	set  func(reflect.Value) // changes the setting below
	at   func(*config.Config) reflect.Value
}

// leaves lists every setting below v, which at finds in a fresh configuration.
func leaves(path string, v reflect.Value, at func(*config.Config) reflect.Value) []leaf {
	one := func(set func(reflect.Value)) []leaf { return []leaf{{path, set, at}} }
	switch v.Interface().(type) {
	case secret.String:
		return one(func(v reflect.Value) { v.Set(reflect.ValueOf(secret.New("another"))) })
	case netip.Prefix:
		return one(func(v reflect.Value) { v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.0/8"))) })
	}
	var all []leaf
	switch v.Kind() {
	case reflect.Pointer:
		return leaves(path, v.Elem(), func(c *config.Config) reflect.Value { return at(c).Elem() })
	case reflect.Slice:
		return leaves(path+"[]", v.Index(0), func(c *config.Config) reflect.Value { return at(c).Index(0) })
	case reflect.Map:
		if v.Type().Elem() == reflect.TypeFor[secret.String]() {
			return one(func(v reflect.Value) {
				v.SetMapIndex(reflect.ValueOf("name"), reflect.ValueOf(secret.New("another")))
			})
		}
		return one(func(v reflect.Value) {
			changed := reflect.New(v.Type().Elem()).Elem()
			changed.Set(v.MapIndex(reflect.ValueOf("name")))
			for _, inner := range leaves("", changed, func(*config.Config) reflect.Value { return changed }) {
				inner.set(inner.at(nil))
			}
			v.SetMapIndex(reflect.ValueOf("name"), changed)
		})
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if name == "" {
				name = f.Name
			}
			all = append(all, leaves(strings.TrimPrefix(path+"."+name, "."), v.Field(i), func(c *config.Config) reflect.Value { return at(c).Field(i) })...)
		}
		return all
	case reflect.Bool:
		return one(func(v reflect.Value) { v.SetBool(!v.Bool()) })
	case reflect.Int, reflect.Int64:
		return one(func(v reflect.Value) { v.SetInt(v.Int() + 1) })
	case reflect.Float64:
		return one(func(v reflect.Value) { v.SetFloat(v.Float() + 1) })
	}
	return one(func(v reflect.Value) { v.SetString(v.String() + "x") })
}

// whole has one of each optional part, list and map, and every secret. A
// section that can be written as a single value is written with its keys.
func whole() *config.Config {
	c := new(config.Config)
	plant(reflect.ValueOf(c).Elem())
	c.Hooks.Hooks[0].Auth.Only = secret.String{}
	return c
}

func TestHashCountsEveryKeyThatReplicasShare(t *testing.T) {
	t.Parallel()
	root := func(c *config.Config) reflect.Value { return reflect.ValueOf(c).Elem() }
	all, own := leaves("", root(whole()), root), 0
	if len(all) < 60 {
		t.Errorf("only %d settings were found", len(all))
	}
	for _, l := range all {
		before, after := whole(), whole()
		l.set(l.at(after))
		_, isSecret := l.at(after).Interface().(secret.String)
		if l.at(after).Kind() == reflect.Map {
			isSecret = l.at(after).Type().Elem() == reflect.TypeFor[secret.String]()
		}
		isOwn := slices.Contains(ofOneReplica, l.path)
		if isOwn {
			own++
		}
		if strings.HasSuffix(l.path, ".auth.Only") {
			continue // whether it is set counts, and it was not
		}
		if same := config.Hash(*before) == config.Hash(*after); same != (isOwn || isSecret) {
			t.Errorf("%s: hash stays the same: %t", l.path, same)
		}
	}
	if own != len(ofOneReplica) {
		t.Errorf("%d settings of one replica were found, want %v", own, ofOneReplica)
	}
}

func TestHashIsThatOfWhatAFileMeans(t *testing.T) {
	t.Parallel()
	const text = `
gateway: {turn_timeout: 10m, max_body_bytes: 1MiB, auth_token: one}
agents: {a: {}, b: {}}
hooks: {idempotency: {lease: 900s}, hooks: [{path: x, idempotency_key: '{{ payload.id }}', agent: a, auth: {p: one, q: two}}]}
`
	hash := func(text string, pairs ...string) string { return config.Hash(mustParse(t, text, environ(pairs...))) }
	want := hash(text)
	if !regexp.MustCompile("^[0-9a-f]{16}$").MatchString(want) {
		t.Errorf("Hash = %q, want 16 hexadecimal digits", want)
	}
	for name, same := range map[string]string{
		"another order": `
hooks: {hooks: [{auth: {q: two, p: one}, agent: a, path: x, idempotency_key: '{{ payload.id }}'}], idempotency: {lease: 900s}}
agents: {b: {}, a: {}}
gateway: {auth_token: one, max_body_bytes: 1MiB, turn_timeout: 10m}
`,
		"other units":               strings.NewReplacer("10m", "600", "1MiB", "1048576", "900s", "15m").Replace(text),
		"defaults left out":         strings.NewReplacer("turn_timeout: 10m, ", "", "max_body_bytes: 1MiB, ", "", "idempotency: {lease: 900s}, ", "").Replace(text),
		"what is inherited, said":   strings.Replace(text, "path: x", "path: x, lease: 15m, ttl: 24h, on_unavailable: open", 1),
		"other secrets":             strings.NewReplacer("auth_token: one", "auth_token: another", "p: one", "p: another").Replace(text),
		"another place of its own":  strings.Replace(text, "gateway: {", "gateway: {host: 127.0.0.2, port: 1, state_dir: /elsewhere, log: {level: debug, format: json}, ", 1),
		"values by the environment": strings.Replace(text, "10m", "\"${TEN}\"", 1),
	} {
		if got := hash(same, "TEN=10m"); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if hash(strings.Replace(text, ", auth_token: one", "", 1)) == want {
		t.Error("a gateway without a token has the hash of one with a token")
	}
}
