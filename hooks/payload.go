package hooks

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// payload is one JSON value as it was received, without space around it. It
// is read in place: a request looks at a few members of its body, so building
// the whole tree would cost more than walking to them. Only text that
// json.Valid accepts may become a payload, and the methods rely on that. The
// nil payload is an absent value.
//
// Nothing is converted on the way: a number keeps its digits, and half of a
// surrogate pair stays what it was, so that two ids which differ on the wire
// never become one.
type payload []byte

// parse returns body as a payload; ok is false if it is not JSON, or nested
// deeper than encoding/json goes (10000).
func parse(body []byte) (p payload, ok bool) {
	if !json.Valid(body) {
		return nil, false
	}
	start := skipSpace(body, 0)
	return body[start:valueEnd(body, start)], true
}

// isString reports whether p is a JSON string.
func (p payload) isString() bool { return len(p) > 0 && p[0] == '"' }

// isMissing reports whether p names nothing: absent, null, "", [] or {}.
func (p payload) isMissing() bool {
	if len(p) == 0 {
		return true
	}
	switch p[0] {
	case 'n':
		return true
	case '"':
		return len(p) == len(`""`)
	case '{', '[':
		return skipSpace(p, 1) == len(p)-1
	}
	return false
}

// at returns the member name of an object or the element of an array that
// name counts from 0, and nil if there is none. Of members with one name the
// last counts, as everywhere in Go.
func (p payload) at(name string) payload {
	var found payload
	switch {
	case len(p) == 0:
	case p[0] == '{':
		for key, value := range p.members() {
			if key.equals(name) {
				found = value
			}
		}
	case p[0] == '[':
		index, err := strconv.Atoi(name)
		if err != nil {
			return nil
		}
		for element := range p.elements() {
			if index == 0 {
				return element
			}
			index--
		}
	}
	return found
}

// equals reports whether p, a string, says text.
func (p payload) equals(text string) bool {
	inner := p[1 : len(p)-1]
	if string(inner) == text {
		return true
	}
	return bytes.IndexByte(inner, '\\') >= 0 && string(appendUnescaped(nil, inner)) == text
}

// appendText appends what a template shows of p: the characters of a string,
// the digits of a number as received, nothing for null, compact JSON for the
// rest.
func (p payload) appendText(dst []byte) []byte {
	switch {
	case len(p) == 0 || p[0] == 'n':
		return dst
	case p[0] == '"':
		return appendUnescaped(dst, p[1:len(p)-1])
	}
	for i := 0; i < len(p); {
		end := i + 1
		if p[i] == '"' {
			end = stringEnd(p, i)
		}
		if !isSpace(p[i]) {
			dst = append(dst, p[i:end]...)
		}
		i = end
	}
	return dst
}

// canonicalDepth is how deep appendCanonical looks into nested values. Each
// level reads what is inside it once more, so that without a bound a body of
// brackets would keep it busy for seconds.
const canonicalDepth = 64

// appendCanonical appends a form that is equal for equal values, however they
// were spaced, escaped or ordered; what lies deeper than depth goes as it is.
// It is made for digests: strings go with their length in front instead of
// escapes.
func (p payload) appendCanonical(dst []byte, depth int) []byte {
	switch {
	case p[0] == '"':
		return appendSized(dst, string(appendUnescaped(nil, p[1:len(p)-1])))
	case depth == 0:
	case p[0] == '{':
		return p.appendCanonicalObject(dst, depth)
	case p[0] == '[':
		dst = append(dst, '[')
		for element := range p.elements() {
			dst = append(element.appendCanonical(dst, depth-1), ',')
		}
		return append(dst, ']')
	}
	return append(dst, p...)
}

func (p payload) appendCanonicalObject(dst []byte, depth int) []byte {
	type member struct {
		name  string
		value payload
	}
	var members []member
	for key, value := range p.members() {
		members = append(members, member{string(appendUnescaped(nil, key[1:len(key)-1])), value})
	}
	slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	dst = append(dst, '{')
	for i, m := range members {
		if i+1 < len(members) && members[i+1].name == m.name {
			continue // the last one counts
		}
		dst = appendSized(dst, m.name)
		dst = m.value.appendCanonical(dst, depth-1)
	}
	return append(dst, '}')
}

func appendSized(dst []byte, text string) []byte {
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	return append(append(dst, '"'), text...)
}

// members yields the names, as JSON strings, and values of an object.
func (p payload) members() iter.Seq2[payload, payload] {
	return func(yield func(payload, payload) bool) {
		for i := skipSpace(p, 1); p[i] != '}'; {
			end := stringEnd(p, i)
			key := p[i:end]
			i = skipSpace(p, skipSpace(p, end)+len(":"))
			end = valueEnd(p, i)
			if !yield(key, p[i:end]) {
				return
			}
			i = nextItem(p, end)
		}
	}
}

// elements yields the values of an array.
func (p payload) elements() iter.Seq[payload] {
	return func(yield func(payload) bool) {
		for i := skipSpace(p, 1); p[i] != ']'; {
			end := valueEnd(p, i)
			if !yield(p[i:end]) {
				return
			}
			i = nextItem(p, end)
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

// appendUnescaped appends the characters that the inside of a JSON string
// stands for. Half of a surrogate pair is written as the three bytes that
// UTF-8 would have for it: not valid text, but not equal to any other either.
func appendUnescaped(dst, inner []byte) []byte {
	for {
		i := bytes.IndexByte(inner, '\\')
		if i < 0 {
			return append(dst, inner...)
		}
		dst = append(dst, inner[:i]...)
		c := inner[i+1]
		inner = inner[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			dst, inner = appendHexRune(dst, inner)
		default: // " \ /
			dst = append(dst, c)
		}
	}
}

// appendHexRune appends the character whose four hex digits inner begins
// with, joined with the other half of a pair if that follows.
func appendHexRune(dst, inner []byte) (grown, rest []byte) {
	r, rest := hexRune(inner), inner[4:]
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(dst, r), rest
	}
	if len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		if pair := utf16.DecodeRune(r, hexRune(rest[2:])); pair != utf8.RuneError {
			return utf8.AppendRune(dst, pair), rest[6:]
		}
	}
	return append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F), rest
}

// hexRune reads the four hex digits that p begins with.
func hexRune(p []byte) rune {
	var r rune
	for _, c := range p[:4] {
		switch {
		case c >= 'a':
			c -= 'a' - 10
		case c >= 'A':
			c -= 'A' - 10
		default:
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}
