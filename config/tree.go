package config

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxExpansion bounds how many values aliases and merge keys may add to those
// that the file holds.
const maxExpansion = 100_000

// parse returns the root of the only document in data, nil if there is no
// content. If it returns false there is nothing to go on with.
func (r *report) parse(data []byte) (root *yaml.Node, ok bool) {
	if line, reason := notText(data); reason != "" {
		r.addAt(line, "", "%s", reason)
		return nil, false
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, true
	} else if err != nil {
		r.syntax(data, err)
		return nil, false
	}
	if err := dec.Decode(&second); err == nil {
		r.addAt(second.Line, "", "a second document begins here; a configuration is one document")
	} else if !errors.Is(err, io.EOF) {
		r.syntax(data, err)
	}
	root = doc.Content[0]
	return root, r.lint("", root, make(map[*yaml.Node]bool))
}

// notText says where and why data is no text, before the parser says so less clearly.
func notText(data []byte) (line int, reason string) {
	line = 1
	for len(data) > 0 {
		c, size := utf8.DecodeRune(data)
		switch {
		case c == utf8.RuneError && size == 1:
			return line, "is not UTF-8 text"
		case c == '\n':
			line++
		case unicode.IsControl(c) && c != '\t' && c != '\r' && c != '\u0085':
			return line, "has a control character; a configuration is plain text"
		}
		data = data[size:]
	}
	return 0, ""
}

// syntax reports an error of the parser: its line and its words, without the
// piece of the file that it quotes, which may be a secret.
func (r *report) syntax(data []byte, err error) {
	reason, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if rest, ok := strings.CutPrefix(reason, "line "); ok {
		var number string
		number, reason, _ = strings.Cut(rest, ": ")
		line, _ = strconv.Atoi(number) // the parser prints a number
		if countsFromZero(reason) {
			line++
		}
	}
	lines := bytes.Split(data, []byte("\n"))
	if name, ok := strings.CutPrefix(reason, "unknown anchor '"); ok {
		alias := "*" + strings.TrimSuffix(name, "' referenced")
		line = 1 + bytes.Count(data[:max(0, bytes.Index(data, []byte(alias)))], []byte("\n"))
		reason = "an alias has no anchor; quote a value that begins with *"
	} else if line <= len(lines) && bytes.Contains(lines[line-1], []byte("${")) {
		reason += "; quote a ${…} that stands inside [ ] or { } or holds a colon and a space"
	}
	r.addAt(line, "", "is not valid YAML: %s", reason)
}

// countsFromZero reports whether an error comes from the half of the YAML
// package that leaves its line numbers as they are inside.
func countsFromZero(reason string) bool {
	what, ok := strings.CutPrefix(reason, "did not find expected ")
	grammar := []string{"key", "node content", "'-' indicator", "',' or ']'", "',' or '}'", "<document start>"}
	return ok && slices.Contains(grammar, what)
}

// lint reports what is wrong with the document itself, whatever it means. It
// follows no alias, so each place is seen once. open holds the nodes around n;
// an alias of one of them has no end, which is the one fault after which the
// tree must not be walked: then lint returns false.
func (r *report) lint(path string, n *yaml.Node, open map[*yaml.Node]bool) bool {
	r.nodes++
	if n.Kind == yaml.AliasNode {
		if open[n.Alias] {
			r.addAt(n.Line, path, "the alias stands inside its own anchor")
		}
		return !open[n.Alias]
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.addAt(n.Line, path, "has a YAML tag; tags are not supported, and a value that begins with ! must be quoted")
	}
	open[n] = true
	defer delete(open, n)
	finite := true
	switch n.Kind {
	case yaml.SequenceNode:
		for i, v := range n.Content {
			finite = r.lint(item(path, i), v, open) && finite
		}
	case yaml.MappingNode:
		first := make(map[string]int)
		for i := 0; i < len(n.Content); i += 2 {
			finite = r.lintPair(path, n.Content[i], n.Content[i+1], first, open) && finite
		}
	}
	return finite
}

// lintPair is lint for one key of a mapping; first holds the lines of the keys before it.
func (r *report) lintPair(path string, key, value *yaml.Node, first map[string]int, open map[*yaml.Node]bool) bool {
	r.nodes++
	k := follow(key)
	if k.Kind != yaml.ScalarNode {
		r.addAt(key.Line, path, "a key must be a word, not a list or a mapping")
		return r.lint(path, value, open)
	}
	inner := join(path, k.Value)
	if line, ok := first[k.Value]; ok {
		r.addAt(key.Line, inner, "duplicate key, first set on line %d", line)
	} else {
		first[k.Value] = key.Line
	}
	if isMerge(k) {
		for _, source := range mergeSources(value) {
			if source.Kind != yaml.MappingNode {
				r.addAt(key.Line, path, "<< must name a mapping or a list of mappings")
			}
		}
		inner = path // what is merged belongs to the mapping itself
	}
	return r.lint(inner, value, open)
}

// follow returns the node that an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isMerge(key *yaml.Node) bool { return key.ShortTag() == "!!merge" }

func isNull(n *yaml.Node) bool { return n.ShortTag() == "!!null" }

// mergeSources returns what the value of a merge key names.
func mergeSources(value *yaml.Node) []*yaml.Node {
	value = follow(value)
	if value.Kind != yaml.SequenceNode {
		return []*yaml.Node{value}
	}
	sources := make([]*yaml.Node, len(value.Content))
	for i, v := range value.Content {
		sources[i] = follow(v)
	}
	return sources
}
