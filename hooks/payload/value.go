package payload

import (
	"bytes"
	"encoding/json"
	"iter"
)

// Value is one JSON value as it was received, without space around it. It is
// read in place: a request looks at a few members of its body, so building the
// whole tree would cost more than walking to them. Only text that json.Valid
// accepts may become a Value, and the methods rely on that. The nil Value is an
// absent one.
//
// Nothing is converted on the way: a number keeps its digits, and half of a
// surrogate pair stays what it was, so that two ids which differ on the wire
// never become one.
type Value []byte

// parseJSON returns body as a Value; ok is false if it is not JSON, or nested
// deeper than encoding/json goes (10000).
func parseJSON(body []byte) (v Value, ok bool) {
	if !json.Valid(body) {
		return nil, false
	}
	start := skipSpace(body, 0)
	return body[start:valueEnd(body, start)], true
}

// IsString reports whether v is a JSON string.
func (v Value) IsString() bool { return len(v) > 0 && v[0] == '"' }

// IsArray reports whether v is a JSON array.
func (v Value) IsArray() bool { return len(v) > 0 && v[0] == '[' }

// IsObject reports whether v is a JSON object.
func (v Value) IsObject() bool { return len(v) > 0 && v[0] == '{' }

// IsFalse reports whether v is the JSON value false.
func (v Value) IsFalse() bool { return string(v) == "false" }

// IsMissing reports whether v names nothing: absent, null, "", [] or {}.
func (v Value) IsMissing() bool {
	if len(v) == 0 {
		return true
	}
	switch v[0] {
	case 'n':
		return true
	case '"':
		return len(v) == len(`""`)
	case '{', '[':
		return skipSpace(v, 1) == len(v)-1
	}
	return false
}

// Member returns the member of an object by its name, and nil if there is
// none. Of members with one name the last counts, as everywhere in Go.
func (v Value) Member(name string) Value {
	var found Value
	if v.IsObject() {
		for key, value := range v.members() {
			if key.equals(name) {
				found = value
			}
		}
	}
	return found
}

// Element returns the element of an array by its index, which counts from 0,
// and nil if there is none.
func (v Value) Element(index int) Value {
	if v.IsArray() {
		for element := range v.Elements() {
			if index == 0 {
				return element
			}
			index--
		}
	}
	return nil
}

// equals reports whether v, a string, says text.
func (v Value) equals(text string) bool {
	inner := v[1 : len(v)-1]
	if string(inner) == text {
		return true
	}
	return bytes.IndexByte(inner, '\\') >= 0 && string(appendUnescaped(nil, inner)) == text
}

// AppendText appends what a template shows of v: the characters of a string,
// the digits of a number as received, nothing for null, compact JSON for the
// rest.
func (v Value) AppendText(dst []byte) []byte {
	switch {
	case len(v) == 0 || v[0] == 'n':
		return dst
	case v[0] == '"':
		return appendUnescaped(dst, v[1:len(v)-1])
	}
	for i := 0; i < len(v); {
		end := i + 1
		if v[i] == '"' {
			end = stringEnd(v, i)
		}
		if !isSpace(v[i]) {
			dst = append(dst, v[i:end]...)
		}
		i = end
	}
	return dst
}

// members yields the names, as JSON strings, and values of an object.
func (v Value) members() iter.Seq2[Value, Value] {
	return func(yield func(name, value Value) bool) {
		for i := skipSpace(v, 1); v[i] != '}'; {
			end := stringEnd(v, i)
			key := v[i:end]
			i = skipSpace(v, skipSpace(v, end)+len(":"))
			end = valueEnd(v, i)
			if !yield(key, v[i:end]) {
				return
			}
			i = nextItem(v, end)
		}
	}
}

// Elements yields the values of an array.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		for i := skipSpace(v, 1); v[i] != ']'; {
			end := valueEnd(v, i)
			if !yield(v[i:end]) {
				return
			}
			i = nextItem(v, end)
		}
	}
}

// nextItem returns the start of the item after the one that ended at i, or
// the closing bracket.
func nextItem(p []byte, i int) int {
	i = skipSpace(p, i)
	if p[i] == ',' {
		i = skipSpace(p, i+1)
	}
	return i
}

// valueEnd returns the index behind the value that starts at i.
func valueEnd(p []byte, i int) int {
	switch p[i] {
	case '"':
		return stringEnd(p, i)
	case '{', '[':
		for depth := 0; ; {
			switch p[i] {
			case '"':
				i = stringEnd(p, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
			if depth == 0 {
				return i
			}
		}
	}
	for i < len(p) && !isSpace(p[i]) && p[i] != ',' && p[i] != '}' && p[i] != ']' {
		i++
	}
	return i
}

// stringEnd returns the index behind the string whose opening quote is at i.
func stringEnd(p []byte, i int) int {
	for start := i + 1; ; {
		i += 1 + bytes.IndexByte(p[i+1:], '"')
		escapes := 0
		for k := i - 1; k >= start && p[k] == '\\'; k-- {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

func skipSpace(p []byte, i int) int {
	for i < len(p) && isSpace(p[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }
