package config

import (
	"iter"
	"reflect"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/internal/secret"
)

// binder sets Go values from YAML nodes. The decoder of the YAML package would
// stop at the first fault of a kind, turn "no" into false and a long id into a
// float, and forget the lines.
type binder struct {
	*report
	env    Env
	budget int // values that may still be visited; below 0: given up
}

// bind sets out, which already holds its defaults, from n. On a problem it
// leaves out as it is and goes on elsewhere.
func (b *binder) bind(path string, n *yaml.Node, out reflect.Value) {
	if _, ok := b.lines[path]; !ok {
		b.lines[path] = n.Line
	}
	n = follow(n)
	if !b.spend(path) {
		return
	}
	t := out.Type()
	switch {
	case out.Kind() == reflect.Pointer:
		b.bindPointer(path, n, out)
	case isScalar(t):
		b.bindScalar(path, n, out)
	case isNull(n):
		// An empty section keeps its defaults.
	case out.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			b.add(path, "is %s; must be a list, one item a line after \"- \"", kindName(n))
			return
		}
		b.bindSlice(path, n, out)
	case n.Kind == yaml.ScalarNode && hasForm(t, scalarForm):
		v := out.FieldByIndex(form(t, scalarForm))
		b.bindScalar(path, n, v)
		b.requireSecret(path, v)
	case n.Kind != yaml.MappingNode:
		b.add(path, "is %s; must be a section of %s", kindName(n), contents(t))
	case out.Kind() == reflect.Map:
		b.bindMap(path, n, out)
	case hasForm(t, entriesForm):
		b.bindMap(path, n, out.FieldByIndex(form(t, entriesForm)))
	default:
		b.bindStruct(path, n, out)
	}
}

// bindPointer sets an optional value, which is nil unless the file has it.
func (b *binder) bindPointer(path string, n *yaml.Node, out reflect.Value) {
	t := out.Type().Elem()
	switch {
	case isNull(n) && hasForm(t, scalarForm):
		b.add(path, "has no value; give it one, or leave it out")
		return
	case isNull(n) && !isScalar(t):
		b.add(path, "has no value; write {} for its defaults, or leave the key out")
		return
	}
	v := reflect.New(t)
	out.Set(v)
	b.bind(path, n, v.Elem())
	b.requireSecret(path, v.Elem())
}

func (b *binder) bindStruct(path string, n *yaml.Node, out reflect.Value) {
	known := make(map[string]reflect.StructField)
	for key, f := range fields(out.Type()) {
		known[key] = f
	}
	for _, e := range b.entries(path, n) {
		inner := join(path, e.key)
		b.lines[inner] = e.line
		f, ok := known[e.key]
		switch {
		case !ok:
			b.add(inner, "unknown key; %s", suggest(e.key, out.Type()))
		case f.Tag.Get("config") == "id" && looksRounded(follow(e.value)):
			b.add(inner, "%q is written as a floating-point number, which loses digits of an id; if it is meant as it stands, quote it", follow(e.value).Value)
		default:
			b.bind(inner, e.value, out.FieldByIndex(f.Index))
		}
	}
}

func (b *binder) bindMap(path string, n *yaml.Node, out reflect.Value) {
	out.Set(reflect.MakeMap(out.Type()))
	for _, e := range b.entries(path, n) {
		inner := join(path, e.key)
		b.lines[inner] = e.line
		v := reflect.New(out.Type().Elem()).Elem()
		v.Set(elementDefault(v.Type()))
		b.bind(inner, e.value, v)
		out.SetMapIndex(reflect.ValueOf(e.key), v)
	}
}

func (b *binder) bindSlice(path string, n *yaml.Node, out reflect.Value) {
	list := reflect.MakeSlice(out.Type(), 0, len(n.Content))
	for i, value := range n.Content {
		v := reflect.New(out.Type().Elem()).Elem()
		v.Set(elementDefault(v.Type()))
		b.bind(item(path, i), value, v)
		b.requireSecret(item(path, i), v)
		list = reflect.Append(list, v)
	}
	out.Set(list)
}

// requireSecret refuses an empty secret where one is optional: who writes one
// down wants the door locked. A problem with the value itself is enough.
func (b *binder) requireSecret(path string, v reflect.Value) {
	s, ok := v.Interface().(secret.String)
	if !ok || !s.IsEmpty() {
		return
	}
	if last := len(b.problems) - 1; last >= 0 && b.problems[last].Path == path {
		return
	}
	b.add(path, "is empty; a secret that is set must not be")
}

// elementDefault returns what an item of a list or an entry of a map starts from.
func elementDefault(t reflect.Type) reflect.Value {
	switch t {
	case reflect.TypeFor[hooks.Hook]():
		return reflect.ValueOf(hooks.DefaultHook())
	case reflect.TypeFor[agent.Config]():
		return reflect.ValueOf(agent.DefaultConfig())
	}
	return reflect.Zero(t)
}

// entry is one key of a mapping.
type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// entries returns the keys of a mapping, its own before the merged ones; of
// equal keys the first counts. What is wrong with them, lint has reported.
func (b *binder) entries(path string, n *yaml.Node) []entry {
	var own, merged []entry
	for i := 0; i < len(n.Content) && b.spend(path); i += 2 {
		key, value := follow(n.Content[i]), n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode:
		case !isMerge(key):
			own = append(own, entry{key.Value, n.Content[i].Line, value})
		default:
			for _, source := range mergeSources(value) {
				if source.Kind == yaml.MappingNode {
					merged = append(merged, b.entries(path, source)...)
				}
			}
		}
	}
	seen := make(map[string]bool)
	all := append(own, merged...)
	unique := all[:0]
	for _, e := range all {
		if !seen[e.key] {
			seen[e.key] = true
			unique = append(unique, e)
		}
	}
	return unique
}

// spend counts a visited value and reports whether to go on.
func (b *binder) spend(path string) bool {
	if b.budget == 0 {
		b.add(path, "aliases and merge keys expand to more than %d values", maxExpansion)
	}
	b.budget = max(-1, b.budget-1)
	return b.budget >= 0
}

// A section may be written in another form than its keys: as a single value,
// or as names that the user chooses. The tag config marks the field for it.
const (
	scalarForm  = "scalar"
	entriesForm = "entries"
)

// form returns the field of a section that takes it written in that form, or
// nil if it has none.
func form(t reflect.Type, name string) []int {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("config") == name {
			return t.Field(i).Index
		}
	}
	return nil
}

func hasForm(t reflect.Type, name string) bool {
	return t.Kind() == reflect.Struct && form(t, name) != nil
}

// fields returns the keys that a section has, in order.
func fields(t reflect.Type) iter.Seq2[string, reflect.StructField] {
	return func(yield func(string, reflect.StructField) bool) {
		for i := range t.NumField() {
			key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			if key != "" && !yield(key, t.Field(i)) {
				return
			}
		}
	}
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a section"
	}
	return "a single value"
}

// contents says what belongs into a section.
func contents(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Map:
		return "names, each with its own settings"
	case hasForm(t, entriesForm):
		return "names, each with a value of its own"
	}
	var keys []string
	for key := range fields(t) {
		keys = append(keys, key)
	}
	return strings.Join(keys, ", ")
}
