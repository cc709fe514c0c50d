package config

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/internal/secret"
)

// Secrets returns every secret of the configuration, also those that are not
// set, by the path of its key.
func (c Config) Secrets() iter.Seq2[string, secret.String] {
	return func(yield func(string, secret.String) bool) { walkSecrets("", reflect.ValueOf(c), yield) }
}

// walkSecrets reports whether to go on.
func walkSecrets(path string, v reflect.Value, yield func(string, secret.String) bool) bool {
	if s, ok := v.Interface().(secret.String); ok {
		return yield(path, s)
	}
	switch v.Kind() {
	case reflect.Pointer:
		return v.IsNil() || walkSecrets(path, v.Elem(), yield)
	case reflect.Slice:
		for i := range v.Len() {
			if !walkSecrets(item(path, i), v.Index(i), yield) {
				return false
			}
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for _, key := range keys {
			if !walkSecrets(join(path, key.String()), v.MapIndex(key), yield) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			inner := path
			if key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ","); key != "" {
				inner = join(path, key)
			} else if v.Type().Field(i).Tag.Get("config") == "" {
				continue // inside a type of another package
			}
			if !walkSecrets(inner, v.Field(i), yield) {
				return false
			}
		}
	}
	return true
}
