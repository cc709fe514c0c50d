package payload

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// jsonField is the form field in which senders put a whole JSON document.
const jsonField = "payload"

// parseForm returns the fields of a form as an object: a field that occurs
// once is a string, a repeated one an array of strings. A form that carries
// JSON in its field payload stands for that JSON.
func parseForm(body []byte) (Value, error) {
	fields, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, fmt.Errorf("%w: not a valid form", ErrMalformed) // url's own text quotes the body
	}
	if texts := fields[jsonField]; len(texts) == 1 && looksLikeDocument(texts[0]) {
		return mustBeJSON([]byte(texts[0]))
	}
	object := []byte{'{'}
	for i, name := range slices.Sorted(maps.Keys(fields)) {
		if i > 0 {
			object = append(object, ',')
		}
		object = append(appendQuoted(object, name), ':')
		if texts := fields[name]; len(texts) == 1 {
			object = appendQuoted(object, texts[0])
		} else {
			object = appendList(object, texts)
		}
	}
	return append(object, '}'), nil
}

// looksLikeDocument tells a JSON document from a field that only has the same
// name.
func looksLikeDocument(text string) bool {
	text = strings.TrimLeft(text, " \t\r\n")
	return text != "" && (text[0] == '{' || text[0] == '[')
}

func appendList(dst []byte, texts []string) []byte {
	dst = append(dst, '[')
	for i, text := range texts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendQuoted(dst, text)
	}
	return append(dst, ']')
}

// quote returns text as a JSON string.
func quote(text []byte) Value { return appendQuoted(nil, string(text)) }

// appendQuoted appends text as a JSON string that reads back as the same
// bytes, also where they are no UTF-8.
func appendQuoted(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range []byte(text) {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
