package httpagent_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/httpagent"
	"github.com/oncegate/oncegate/message"
)

func TestA2xxAnswerIsTheReply(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status     int
		body, want string
	}{
		"a text":                          {200, `{"text":"hello","model":"m"}`, "hello"},
		"created":                         {201, `{"text":"hello"}`, "hello"},
		"the last status of them":         {299, `{"text":"hello"}`, "hello"},
		"a null is an empty reply":        {200, `{"text":null}`, ""},
		"no content is an empty reply":    {204, "", ""},
		"no body is an empty reply":       {200, "", ""},
		"white space is an empty reply":   {202, " \r\n", ""},
		"bytes that are no UTF-8":         {200, "{\"text\":\"a\xffb\"}", "a\uFFFDb"},
		"the longest reply there is":      {200, `{"text":"` + strings.Repeat("a", agent.MaxReply) + `"}`, strings.Repeat("a", agent.MaxReply)},
		"the longest in the longest form": {200, `{"text":"` + strings.Repeat(`\u0061`, agent.MaxReply) + `"}`, strings.Repeat("a", agent.MaxReply)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, answering(test.status, test.body))
			if got, err := a.Run(t.Context(), turn()); err != nil || got.Text != test.want {
				t.Errorf("Run = %.40q (%d bytes), %v; want %.40q (%d bytes)", got.Text, len(got.Text), err, test.want, len(test.want))
			}
		})
	}
}

func TestA2xxAnswerThatIsNone(t *testing.T) {
	t.Parallel()
	padding := strings.Repeat(" ", httpagent.MaxBody)
	for name, test := range map[string]struct {
		body string
		want agent.Kind
	}{
		"a page":                     {"<html>private</html>", agent.Malformed},
		"a plain text":               {"private", agent.Malformed},
		"an object without a text":   {`{"private":true}`, agent.Malformed},
		"half an object":             {`{"text":"private`, agent.Malformed},
		"success false":              {`{"success":false,"text":"private"}`, agent.SoftFailure},
		"ok false":                   {`{"ok":false}`, agent.SoftFailure},
		"a reply of a byte too many": {`{"text":"` + strings.Repeat("a", agent.MaxReply+1) + `"}`, agent.TooLarge},
		"a reply that is too long once it is UTF-8": {`{"text":"` + strings.Repeat("\xff", agent.MaxReply/2) + `"}`, agent.TooLarge},
		"a short reply in a body without an end":    {`{"text":"private"}` + padding, agent.TooLarge},
		"white space without an end":                {padding + " ", agent.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, answering(http.StatusAccepted, test.body))
			_, err := a.Run(t.Context(), turn())
			e := wantKind(t, err, test.want)
			if e.Status != http.StatusAccepted {
				t.Errorf("status = %d, want that of the answer", e.Status)
			}
			if got, want := errors.Is(err, message.ErrRun), test.want == agent.SoftFailure; got != want {
				t.Errorf("error = %v, is message.ErrRun = %t, want %t", err, got, want)
			}
		})
	}
}

// packed returns a handler that answers with the body as gzip has it.
func packed(t *testing.T, body io.Reader) http.HandlerFunc {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := io.Copy(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return answering(http.StatusOK, buf.String(), "Content-Encoding", "gzip")
}

func TestAPackedAnswerIsUnpacked(t *testing.T) {
	t.Parallel()
	a := start(t, packed(t, strings.NewReader(`{"text":"hello"}`)))
	if got, err := a.Run(t.Context(), turn()); err != nil || got.Text != "hello" {
		t.Errorf("Run = %q, %v; want hello", got.Text, err)
	}
}

func TestAPackedAnswerIsBoundedByWhatItUnpacksTo(t *testing.T) {
	t.Parallel()
	a := start(t, packed(t, strings.NewReader(`{"text":"private"}`+strings.Repeat(" ", httpagent.MaxBody))))
	_, err := a.Run(t.Context(), turn())
	wantKind(t, err, agent.TooLarge)
}

// endless is a body that ends only when it is closed.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return copy(p, bytes.Repeat([]byte("a"), len(p))), nil
}

func (*endless) Close() error { return nil }

func TestNoMoreIsReadThanAReplyMayTake(t *testing.T) {
	t.Parallel()
	body := &endless{}
	a := httpagent.NewWith(configFor(t, "http://agent.example"), roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body}, nil
	}))
	_, err := a.Run(t.Context(), turn())
	if wantKind(t, err, agent.TooLarge); body.read != httpagent.MaxBody+1 {
		t.Errorf("%d bytes were read, want %d", body.read, httpagent.MaxBody+1)
	}
}
