package hooks

import (
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// template is a compiled text with {{ payload.… }}, {{ header.… }} and
// {{ query.… }} parts. It renders in a single pass: what a part brings in is
// never looked at again. The zero template is the empty text.
type template struct {
	text  string // the whole of it, if there are no references
	parts []part
}

// part is a literal, or a reference where source is set.
type part struct {
	literal string
	source  sourceName
	path    []string // into the payload
	name    string   // of the header or query parameter; for a payload the reference as written
}

type sourceName string

const (
	fromPayload sourceName = "payload"
	fromHeader  sourceName = "header"
	fromQuery   sourceName = "query"
)

// compile parses text. An error names the place and the offending part.
func compile(text string) (template, error) {
	var parts []part
	for rest := text; rest != ""; {
		literal, after, found := strings.Cut(rest, "{{")
		if literal != "" {
			parts = append(parts, part{literal: literal})
		}
		if !found {
			break
		}
		position := len(text) - len(after) - len("{{") + 1
		inner, next, closed := strings.Cut(after, "}}")
		if !closed {
			return template{}, fmt.Errorf("at character %d: %q has no closing }}", position, "{{"+after)
		}
		ref, err := reference(strings.TrimSpace(inner))
		if err != nil {
			return template{}, fmt.Errorf("at character %d: %q %w", position, "{{"+inner+"}}", err)
		}
		parts = append(parts, ref)
		rest = next
	}
	if !slices.ContainsFunc(parts, func(p part) bool { return p.source != "" }) {
		return template{text: text}, nil
	}
	return template{parts: parts}, nil
}

// reference parses the inside of {{ }}.
func reference(expr string) (part, error) {
	if bad := strings.IndexFunc(expr, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`{}[]()|"'`, r) }); bad >= 0 {
		return part{}, fmt.Errorf("has %q in a name; write payload.a.b, header.Name or query.name", expr[bad:bad+1])
	}
	source, name, dotted := strings.Cut(expr, ".")
	switch source := sourceName(source); source {
	case fromPayload:
		p := part{source: source, name: expr}
		if dotted {
			p.path = strings.Split(name, ".")
		}
		if slices.Contains(p.path, "") {
			return part{}, fmt.Errorf("has an empty name between dots")
		}
		return p, nil
	case fromHeader, fromQuery:
		if name == "" {
			return part{}, fmt.Errorf("names no %s; write %s.name", source, source)
		}
		if source == fromHeader {
			if !isToken(name) {
				return part{}, fmt.Errorf("is not the name of a header")
			}
			name = textproto.CanonicalMIMEHeaderKey(name)
		}
		return part{source: source, name: name}, nil
	}
	return part{}, fmt.Errorf("begins with none of payload, header, query")
}

// String returns the reference for logs and answers, without any value.
func (p part) String() string {
	if p.source == fromPayload {
		return p.name
	}
	return string(p.source) + "." + p.name
}

// isEmpty reports whether the template is the empty text.
func (t template) isEmpty() bool { return t.text == "" && t.parts == nil }

// isConstant reports whether the template renders every request alike.
func (t template) isConstant() bool { return t.parts == nil }

// render returns the text for a request and the references that were absent,
// null or empty; those render as nothing.
func (t template) render(from *inputs) (text string, missing []string) {
	if t.parts == nil {
		return t.text, nil
	}
	var space [512]byte
	buf := space[:0]
	for i := range t.parts {
		p := &t.parts[i]
		var found bool
		switch p.source {
		case "":
			buf, found = append(buf, p.literal...), true
		case fromPayload:
			v := from.payload
			for _, name := range p.path {
				v = v.at(name)
			}
			buf, found = v.appendText(buf), !v.isMissing()
		case fromHeader:
			v := from.headerValue(p.name)
			buf, found = append(buf, v...), v != ""
		case fromQuery:
			v := from.queryValue(p.name)
			buf, found = append(buf, v...), v != ""
		}
		if !found {
			missing = append(missing, p.String())
		}
	}
	return string(buf), missing
}

// inputs is what templates read: one authenticated request.
type inputs struct {
	payload payload
	request *http.Request
	query   url.Values // parsed when the first template asks
}

func (in *inputs) headerValue(canonical string) string {
	if canonical == "Host" { // net/http keeps it outside the header
		return in.request.Host
	}
	if values := in.request.Header[canonical]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func (in *inputs) queryValue(name string) string {
	if in.query == nil {
		in.query = in.request.URL.Query() // drops pairs that it cannot read
	}
	return in.query.Get(name)
}
