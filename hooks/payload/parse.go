// Package payload reads request bodies: it undoes their compression, within a
// bound, and turns JSON, forms and texts into values that templates walk.
package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The ways in which a body cannot be read. Their texts hold nothing of the body.
var (
	// ErrType: nothing here reads bodies of that content type.
	ErrType = errors.New("payload: unsupported content type")
	// ErrMalformed: the body is not what its content type or coding says. The
	// rest of the text says where.
	ErrMalformed = errors.New("payload: malformed")
)

var byteOrderMark = []byte("\uFEFF")

// Parse returns the meaning of a body. Its content type decides: JSON, text
// that may be JSON, or a form. Senders label JSON as text or not at all, and
// some write parameters that no parser accepts, so only the type itself counts
// and a text is tried as JSON first. An empty body says nothing, which is no
// error: its Value is absent. The Value may share body's memory.
func Parse(contentType string, body []byte) (Value, error) {
	body = bytes.TrimPrefix(body, byteOrderMark)
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return nil, nil
	case mediaType == "application/x-www-form-urlencoded":
		return parseForm(body)
	case mediaType == "text/plain":
		if v, ok := parseJSON(body); ok {
			return v, nil
		}
		return quote(body), nil
	case mediaType == "", mediaType == "application/json", mediaType == "text/json", strings.HasSuffix(mediaType, "+json"):
		return mustBeJSON(body)
	}
	return nil, ErrType
}

func mustBeJSON(body []byte) (Value, error) {
	v, ok := parseJSON(body)
	if !ok {
		return nil, fmt.Errorf("%w: not valid JSON%s", ErrMalformed, syntaxPlace(body))
	}
	return v, nil
}

// syntaxPlace says where body stops being JSON, without quoting it.
func syntaxPlace(body []byte) string {
	var raw json.RawMessage
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(body, &raw)); ok {
		return fmt.Sprintf(" at byte %d", syntax.Offset)
	}
	return ""
}
