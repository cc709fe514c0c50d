package config

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/internal/bytesize"
	"github.com/oncegate/oncegate/internal/secret"
)

// YAML returns the settings in force as a configuration that Parse reads,
// with "***" for every secret and without the optional settings that are off.
func (c Config) YAML() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(dump(reflect.ValueOf(c))); err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return out.Bytes(), nil
}

// dump turns a value into a node: durations and sizes as people write them,
// texts in quotes, so that what is printed reads back as what is in force.
func dump(v reflect.Value) *yaml.Node {
	switch x := v.Interface().(type) {
	case secret.String:
		return quoted(x.String())
	case time.Duration:
		return plain(formatDuration(x))
	case netip.Prefix:
		return quoted(x.String())
	case bytesize.Size:
		return plain(x.String())
	}
	switch v.Kind() {
	case reflect.Pointer:
		return dump(v.Elem())
	case reflect.Bool:
		return plain(strconv.FormatBool(v.Bool()))
	case reflect.Int:
		return plain(strconv.FormatInt(v.Int(), 10))
	case reflect.Float64:
		return plain(strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			n.Content = append(n.Content, dump(v.Index(i)))
		}
		return n
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
		for _, key := range keys {
			n.Content = append(n.Content, quoted(key.String()), dump(v.MapIndex(key)))
		}
		return n
	case reflect.Struct:
		return dumpStruct(v)
	}
	// A literal ${ must not become a reference again.
	return quoted(strings.ReplaceAll(v.String(), "${", "$${"))
}

func dumpStruct(v reflect.Value) *yaml.Node {
	for _, name := range []string{scalarForm, entriesForm} {
		if index := form(v.Type(), name); index != nil && !v.FieldByIndex(index).IsZero() {
			return dump(v.FieldByIndex(index))
		}
	}
	n := &yaml.Node{Kind: yaml.MappingNode}
	for key, f := range fields(v.Type()) {
		value := v.FieldByIndex(f.Index)
		if value.IsZero() && strings.HasSuffix(f.Tag.Get("yaml"), ",omitempty") {
			continue
		}
		n.Content = append(n.Content, quoted(key), dump(value))
	}
	return n
}

func plain(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

// quoted returns a text, in quotes where it would otherwise be read as
// something else. What is no UTF-8, which only the environment can bring in,
// is shown with replacement characters.
func quoted(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(strings.ToValidUTF8(s, "\uFFFD"))
	return n
}
