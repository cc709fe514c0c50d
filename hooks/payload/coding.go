package payload

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strings"
)

var (
	// ErrCoding: nothing here undoes that content coding, or that many of them.
	ErrCoding = errors.New("payload: unsupported content coding")
	// ErrTooLarge: the body is larger than the limit once decompressed.
	ErrTooLarge = errors.New("payload: too large when decompressed")
)

// Decode undoes the content coding that the Content-Encoding header names:
// gzip or deflate. It reads no more than limit bytes of the result; a small body
// may stand for an endless one. A body without a coding comes back as it is.
func Decode(contentEncoding []string, body []byte, limit int64) ([]byte, error) {
	if len(body) == 0 {
		return body, nil
	}
	var r io.Reader
	var err error
	switch coding := strings.ToLower(strings.TrimSpace(strings.Join(contentEncoding, ","))); coding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		r, err = gzip.NewReader(bytes.NewReader(body))
	case "deflate":
		r, err = inflate(body)
	default:
		return nil, ErrCoding
	}
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(r, limit+1))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: not what its Content-Encoding says", ErrMalformed)
	case int64(len(body)) > limit:
		return nil, ErrTooLarge
	}
	return body, nil
}

// inflate reads what is called deflate. RFC 9110 means the zlib format by
// that, and senders that took it for the bare stream are as common; the first
// two bytes tell them apart.
func inflate(body []byte) (io.Reader, error) {
	if len(body) >= 2 && body[0]&0x0F == 8 && (uint(body[0])<<8|uint(body[1]))%31 == 0 {
		return zlib.NewReader(bytes.NewReader(body))
	}
	return flate.NewReader(bytes.NewReader(body)), nil
}
