package hooks

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/oncegate/oncegate/hooks/payload"
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

// unreadableAnswer maps an error of package payload, whose texts are public.
func unreadableAnswer(err error) answer {
	switch {
	case errors.Is(err, payload.ErrType), errors.Is(err, payload.ErrCoding):
		return answer{result: unsupportedType}
	case errors.Is(err, payload.ErrTooLarge):
		return answer{result: tooLarge}
	}
	_, place, _ := strings.Cut(err.Error(), payload.ErrMalformed.Error()+": ")
	return answer{result: malformed, detail: place}
}
