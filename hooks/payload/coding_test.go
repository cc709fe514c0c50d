package payload_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hooks/payload"
)

// compressed returns text as make's writer leaves it.
func compressed(t testing.TB, text string, make func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := make(&buf)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }
func zlibbed(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }
func bare(w io.Writer) io.WriteCloser {
	fw, err := flate.NewWriter(w, flate.BestSpeed)
	if err != nil {
		panic(err) // the level exists
	}
	return fw
}

func TestDecode(t *testing.T) {
	t.Parallel()
	const text = "hello, hello, hello"
	const limit = int64(len(text))
	for _, test := range []struct {
		name   string
		coding []string
		body   []byte
		want   string
		err    error
	}{
		{"none", nil, []byte(text), text, nil},
		{"identity", []string{"Identity"}, []byte(text), text, nil},
		{"gzip up to the limit", []string{" GZIP "}, compressed(t, text, gzipped), text, nil},
		{"x-gzip", []string{"x-gzip"}, compressed(t, text, gzipped), text, nil},
		{"deflate as the standard means it", []string{"deflate"}, compressed(t, text, zlibbed), text, nil},
		{"deflate as some senders mean it", []string{"deflate"}, compressed(t, text, bare), text, nil},
		{"gzip in two members", []string{"gzip"}, append(compressed(t, "hel", gzipped), compressed(t, "lo", gzipped)...), "hello", nil},
		{"an empty body", []string{"gzip"}, nil, "", nil},
		{"gzip over the limit", []string{"gzip"}, compressed(t, text+"!", gzipped), "", payload.ErrTooLarge},
		{"deflate over the limit", []string{"deflate"}, compressed(t, strings.Repeat("a", 1<<22), zlibbed), "", payload.ErrTooLarge},
		{"cut off", []string{"gzip"}, compressed(t, text, gzipped)[:20], "", payload.ErrMalformed},
		{"with something behind it", []string{"gzip"}, append(compressed(t, text, gzipped), "x"...), "", payload.ErrMalformed},
		{"not gzip", []string{"gzip"}, []byte(text), "", payload.ErrMalformed},
		{"not deflate", []string{"deflate"}, []byte("x\x9chello"), "", payload.ErrMalformed},
		{"an unknown coding", []string{"br"}, []byte(text), "", payload.ErrCoding},
		{"two codings", []string{"gzip, gzip"}, compressed(t, text, gzipped), "", payload.ErrCoding},
		{"two headers", []string{"gzip", "gzip"}, compressed(t, text, gzipped), "", payload.ErrCoding},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := payload.Decode(test.coding, test.body, limit)
			if string(got) != test.want || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
				t.Errorf("Decode = %q, %v, want %q, %v", got, err, test.want, test.err)
			}
		})
	}
}

func TestDecodeReadsNoMoreThanTheLimit(t *testing.T) { // alone: it counts bytes
	bomb := compressed(t, strings.Repeat("a", 64<<20), gzipped)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := payload.Decode([]string{"gzip"}, bomb, 1<<20); !errors.Is(err, payload.ErrTooLarge) {
		t.Errorf("Decode = %v, want ErrTooLarge", err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("%d MiB were used for a limit of one", used>>20)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("gzip", compressed(f, "text", gzipped))
	f.Add("deflate", compressed(f, "text", zlibbed))
	f.Add("deflate", compressed(f, "text", bare))
	f.Add("x-gzip", []byte("\x1f\x8b\x08\x00"))
	f.Fuzz(func(t *testing.T, coding string, body []byte) {
		const limit = 4 << 10
		got, err := payload.Decode([]string{coding}, body, limit)
		if err == nil && len(got) > max(limit, len(body)) || err != nil && got != nil {
			t.Errorf("Decode = %d bytes, %v", len(got), err)
		}
	})
}
