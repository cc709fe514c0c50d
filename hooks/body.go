package hooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// firstRead bounds what is allocated on the word of a Content-Length header.
const firstRead = 64 << 10

// readBody reads the whole body, at most limit bytes of it, whatever length
// was declared. On failure it returns the result to answer with, else done.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, result) {
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	body := make([]byte, 0, max(512, min(r.ContentLength, firstRead)))
	bounded := http.MaxBytesReader(w, r.Body, limit)
	for {
		n, err := bounded.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case err == nil:
		case err == io.EOF:
			return body, done
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, tooSlow
		default:
			if _, over := errors.AsType[*http.MaxBytesError](err); over {
				return nil, tooLarge
			}
			return nil, unreadable
		}
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
	}
}

// parseBody reads the meaning of an authenticated body. An empty body says
// nothing, which is no error. detail is public.
func parseBody(header http.Header, body []byte) (p payload, res result, detail string) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, done, ""
	}
	if !isPlain(header.Get("Content-Encoding")) || !isJSONType(header.Get("Content-Type")) {
		return nil, unsupportedType, ""
	}
	p, ok := parse(body)
	if !ok {
		return nil, invalidJSON, syntaxPlace(body)
	}
	return p, done, ""
}

func isPlain(encoding string) bool { return encoding == "" || strings.EqualFold(encoding, "identity") }

// isJSONType reports whether a body of that type is read as JSON. Senders
// label JSON as text or not at all, and some write parameters that no parser
// accepts, so only the type itself counts.
func isJSONType(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch mediaType = strings.ToLower(strings.TrimSpace(mediaType)); mediaType {
	case "", "application/json", "text/json", "text/plain":
		return true
	}
	return strings.HasSuffix(mediaType, "+json")
}

// syntaxPlace says where body stops being JSON, without quoting it.
func syntaxPlace(body []byte) string {
	var raw json.RawMessage
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(body, &raw)); ok {
		return "byte " + strconv.FormatInt(syntax.Offset, 10)
	}
	return ""
}
