package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// part is a literal, or a reference where source is set.
type part struct {
	literal string
	source  source
	path    []step // into the payload
	name    string // of the header or query parameter; for a payload the reference as written
}

// step leads from a value to one inside it.
type step struct {
	member string // of an object
	index  int    // of an array, if byPos
	byPos  bool
}

type source string

const (
	fromPayload source = "payload"
	fromHeader  source = "header"
	fromQuery   source = "query"
)

// Compile parses text. An error names the place and the offending part.
func Compile(text string) (Template, error) {
	var parts []part
	for rest := text; rest != ""; {
		literal, after, found := strings.Cut(rest, "{{")
		if literal != "" {
			parts = append(parts, part{literal: literal})
		}
		if !found {
			break
		}
		ref, next, err := reference(after)
		if err != nil {
			position := len(text) - len(after) - len("{{") + 1
			quoted := text[position-1:]
			if end := strings.Index(quoted, "}}"); end >= 0 {
				quoted = quoted[:end+len("}}")]
			}
			return Template{}, fmt.Errorf("at character %d: %q %w", position, quoted, err)
		}
		parts = append(parts, ref)
		rest = next
	}
	if !slices.ContainsFunc(parts, func(p part) bool { return p.source != "" }) {
		return Template{text: text}, nil
	}
	mixed := slices.ContainsFunc(parts, func(p part) bool { return strings.TrimSpace(p.literal) != "" })
	return Template{parts: parts, mixed: mixed}, nil
}

var errUnclosed = errors.New("has no closing }}")

// reference parses what follows a {{, up to and with the }}.
func reference(text string) (p part, rest string, err error) {
	inner := strings.TrimLeft(text, " ")
	name := word(inner)
	p.source, rest = source(name), inner[len(name):]
	switch p.source {
	case fromPayload:
		p.path, rest, err = path(rest)
		p.name = inner[:len(inner)-len(rest)]
	case fromHeader, fromQuery:
		p.name, rest, err = parameter(p.source, rest)
	default:
		if !strings.Contains(text, "}}") {
			return p, "", errUnclosed
		}
		return p, "", errors.New("begins with none of payload, header, query")
	}
	if err != nil {
		return p, "", err
	}
	rest, closed := strings.CutPrefix(strings.TrimLeft(rest, " "), "}}")
	switch {
	case closed:
		return p, rest, nil
	case rest == "":
		return p, "", errUnclosed
	}
	return p, "", fmt.Errorf("has %q where a name or }} belongs; write payload.a.b, payload.list[0], payload[\"a.b\"], header.Name or query.name", rest[:1])
}

// path parses the way from the payload to one of its values.
func path(text string) (steps []step, rest string, err error) {
	for {
		switch {
		case strings.HasPrefix(text, "."):
			name := word(text[1:])
			if name == "" {
				return nil, "", errors.New("has an empty name between dots")
			}
			steps, text = append(steps, step{member: name}), text[1+len(name):]
		case strings.HasPrefix(text, `["`):
			end := stringEnd(text[1:])
			if end < 0 || !strings.HasPrefix(text[1+end:], "]") {
				return nil, "", errors.New(`has a ["name that is not closed with "]`)
			}
			var name string
			if json.Unmarshal([]byte(text[1:1+end]), &name) != nil {
				return nil, "", errors.New("has a quoted name with an escape that JSON does not know")
			}
			steps, text = append(steps, step{member: name}), text[1+end+1:]
		case strings.HasPrefix(text, "["):
			digits, after, closed := strings.Cut(text[1:], "]")
			index, err := strconv.ParseUint(digits, 10, 31)
			if !closed || err != nil {
				return nil, "", errors.New(`has brackets that hold neither an index, as in [0], nor a quoted name, as in ["a.b"]`)
			}
			steps, text = append(steps, step{index: int(index), byPos: true}), after
		default:
			return steps, text, nil
		}
	}
}

// parameter parses the name of a header or query parameter behind its source.
func parameter(from source, text string) (name, rest string, err error) {
	dotted, ok := strings.CutPrefix(text, ".")
	end := strings.IndexFunc(dotted, func(r rune) bool { return r != '.' && !inWord(r) })
	if end < 0 {
		end = len(dotted)
	}
	name, rest = dotted[:end], dotted[end:]
	if !ok || name == "" {
		return "", "", fmt.Errorf("names no %s; write %s.name", from, from)
	}
	if from == fromHeader {
		if !httpguts.ValidHeaderFieldName(name) {
			return "", "", errors.New("is not the name of a header")
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
	}
	return name, rest, nil
}

// word returns the name that text begins with.
func word(text string) string {
	end := strings.IndexFunc(text, func(r rune) bool { return !inWord(r) })
	if end < 0 {
		return text
	}
	return text[:end]
}

// inWord leaves out what a name without quotes cannot hold.
func inWord(r rune) bool { return r > ' ' && !strings.ContainsRune(`.{}[]()|"'`, r) }

// stringEnd returns the index behind the string in double quotes that text
// begins with, or -1.
func stringEnd(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}
