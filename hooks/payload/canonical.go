package payload

import (
	"slices"
	"strconv"
	"strings"
)

// canonicalDepth is how deep AppendCanonical looks into nested values. Each
// level reads what is inside it once more, so that without a bound a body of
// brackets would keep it busy for seconds.
const canonicalDepth = 64

// AppendCanonical appends a form that is equal for equal values, however they
// were spaced, escaped or ordered; what is nested deeper than 64 levels goes as
// it is. It is made for digests: strings go with their length in front instead
// of escapes. An absent value adds nothing.
func (v Value) AppendCanonical(dst []byte) []byte {
	if len(v) == 0 {
		return dst
	}
	return v.appendCanonical(dst, canonicalDepth)
}

func (v Value) appendCanonical(dst []byte, depth int) []byte {
	switch {
	case v[0] == '"':
		return appendSized(dst, string(appendUnescaped(nil, v[1:len(v)-1])))
	case depth == 0:
	case v[0] == '{':
		return v.appendCanonicalObject(dst, depth)
	case v[0] == '[':
		dst = append(dst, '[')
		for element := range v.Elements() {
			dst = append(element.appendCanonical(dst, depth-1), ',')
		}
		return append(dst, ']')
	}
	return append(dst, v...)
}

func (v Value) appendCanonicalObject(dst []byte, depth int) []byte {
	type member struct {
		name  string
		value Value
	}
	var members []member
	for key, value := range v.members() {
		members = append(members, member{string(appendUnescaped(nil, key[1:len(key)-1])), value})
	}
	slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	dst = append(dst, '{')
	for i, m := range members {
		if i+1 < len(members) && members[i+1].name == m.name {
			continue // the last one counts
		}
		dst = appendSized(dst, m.name)
		dst = append(m.value.appendCanonical(dst, depth-1), ',') // ends a number before the next name's length
	}
	return append(dst, '}')
}

func appendSized(dst []byte, text string) []byte {
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	return append(append(dst, '"'), text...)
}
