// Package template renders texts with references to a request:
// {{ payload.a.b }}, {{ payload.list[0] }}, {{ payload["a.b"] }},
// {{ header.Name }} and {{ query.name }}.
//
// A template renders in a single pass: what a reference brings in is never
// looked at again, and nothing in it is evaluated.
package template

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/oncegate/oncegate/hooks/payload"
)

// Template is a compiled text. The zero Template is the empty text. It is safe
// for concurrent use.
type Template struct {
	text  string // the whole of it, if there are no references
	parts []part
	mixed bool // it has words of its own beside references
}

// IsEmpty reports whether the template is the empty text.
func (t Template) IsEmpty() bool { return t.text == "" && t.parts == nil }

// IsConstant reports whether the template renders every request alike.
func (t Template) IsConstant() bool { return t.parts == nil }

// ReadsPayload reports whether the template refers to the payload.
func (t Template) ReadsPayload() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.source == fromPayload })
}

// IndexesPayload reports whether the template takes the payload itself for an
// array.
func (t Template) IndexesPayload() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return len(p.path) > 0 && p.path[0].byPos })
}

// String returns the reference for logs and answers, without any value.
func (p part) String() string {
	if p.source == fromPayload {
		return p.name
	}
	return string(p.source) + "." + p.name
}

// Render returns the text for a request and the references that were absent,
// null or empty; those render as nothing.
func (t Template) Render(from *Inputs) (text string, missing []string) {
	if t.parts == nil {
		return t.text, nil
	}
	var space [512]byte
	buf, missing := t.appendParts(space[:0], from, "", "")
	return string(buf), missing
}

// appendParts renders behind dst, with each value between opening and closing.
func (t Template) appendParts(dst []byte, from *Inputs, opening, closing string) (_ []byte, missing []string) {
	for i := range t.parts {
		p := &t.parts[i]
		if p.source == "" {
			dst = append(dst, p.literal...)
			continue
		}
		dst = append(dst, opening...)
		var found bool
		switch p.source {
		case fromPayload:
			v := p.walk(from.Payload)
			dst, found = v.AppendText(dst), !v.IsMissing()
		case fromHeader:
			v := from.header(p.name)
			dst, found = append(dst, v...), v != ""
		case fromQuery:
			v := from.queryValue(p.name)
			dst, found = append(dst, v...), v != ""
		}
		dst = append(dst, closing...)
		if !found {
			missing = append(missing, p.String())
		}
	}
	return dst, missing
}

// walk follows the path of a reference to the payload.
func (p *part) walk(v payload.Value) payload.Value {
	for _, s := range p.path {
		if s.byPos {
			v = v.Element(s.index)
		} else {
			v = v.Member(s.member)
		}
	}
	return v
}

// Inputs is what templates read: one message of an authenticated request. It
// is for one goroutine at a time.
type Inputs struct {
	Payload payload.Value
	Request *http.Request
	query   url.Values // parsed when the first template asks
}

func (in *Inputs) header(canonical string) string {
	if canonical == "Host" { // net/http keeps it outside the header
		return in.Request.Host
	}
	if values := in.Request.Header[canonical]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func (in *Inputs) queryValue(name string) string {
	in.ParseQuery()
	return in.query.Get(name)
}

// ParseQuery reads the query now, so that copies of the Inputs share it.
func (in *Inputs) ParseQuery() {
	if in.query == nil {
		in.query = in.Request.URL.Query() // drops pairs that it cannot read
	}
}
