package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/oncegate/oncegate/agent"
)

// Bounds of an answer in bytes. A reply of MaxReply takes six times that in one
// event at worst (each byte as \u00XX), and some hundred times that in a stream
// with a token an event. The decoder of the SDK allows 32 MiB a line, and lines
// without end an event.
const (
	maxEvent = 8 << 20
	maxBody  = 256 << 20
)

var errTooLarge = errors.New("the answer is larger than any reply may be")

// bounds ends a body that is too large as a whole, or between two empty lines,
// which is what the decoder of a stream holds in memory.
type bounds struct {
	io.ReadCloser
	size  int // so far
	event int // since the last empty line
	line  int // of the line under way, without \r
}

func (b *bounds) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.size += n
	for rest := p[:n]; len(rest) > 0; {
		part, tail, ended := bytes.Cut(rest, []byte("\n"))
		b.event += len(rest) - len(tail)
		b.line += len(bytes.Trim(part, "\r"))
		if b.event > maxEvent {
			return 0, errTooLarge
		}
		if ended && b.line == 0 {
			b.event = 0
		}
		if ended {
			b.line = 0
		}
		rest = tail
	}
	if b.size > maxBody {
		return 0, errTooLarge
	}
	return n, err
}

// chunk is one event of a stream, or the whole of an answer that is none. The
// SDK's own types take anything for one, and an "error": null for an error.
type chunk struct {
	Choices []choice        `json:"choices"`
	Error   json.RawMessage `json:"error"`
}

type choice struct {
	Index        int     `json:"index"`
	Delta        content `json:"delta"`   // in a stream
	Message      content `json:"message"` // elsewhere
	FinishReason string  `json:"finish_reason"`
}

type content struct {
	Content   string            `json:"content"`
	ToolCalls []json.RawMessage `json:"tool_calls"`
}

// reader puts a reply together.
type reader struct {
	question
	text   strings.Builder
	finish string // why the model stopped; empty: it has not
	tools  bool   // it asked for some
}

// read returns the reply in a 2xx answer. Its pieces are told as they come.
func (q question) read(res *http.Response) (agent.Reply, error) {
	r := reader{question: q}
	mediaType, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")) // one that cannot be read is none
	read := r.whole
	if mediaType == "text/event-stream" {
		read = r.stream
	}
	if err := read(res); err != nil {
		err.Status = res.StatusCode
		return agent.Reply{}, err
	}
	return agent.Reply{Text: r.text.String()}, nil
}

// stream reads up to [DONE], or to the end. From the finish reason on the reply
// is whole, whatever becomes of the connection.
func (r *reader) stream(res *http.Response) *agent.Error {
	events := ssestream.NewDecoder(res)
	for events.Next() {
		event := events.Event()
		if bytes.HasPrefix(event.Data, []byte("[DONE]")) {
			return r.end()
		}
		var c chunk
		if json.Unmarshal(event.Data, &c) != nil {
			return malformed("an event of the stream is not what it should be")
		}
		if event.Type == "error" && !c.failed() {
			c.Error = event.Data
		}
		if err := r.take(c); err != nil {
			return err
		}
	}
	if r.finish == "" {
		return broken(events.Err())
	}
	return r.end()
}

// whole reads the answer of a server that does not stream.
func (r *reader) whole(res *http.Response) *agent.Error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxEvent+1))
	if err != nil {
		return broken(err)
	}
	if len(data) > maxEvent {
		return broken(errTooLarge)
	}
	var c chunk
	if json.Unmarshal(data, &c) != nil {
		return malformed("the answer is neither a stream nor a completion")
	}
	for i := range c.Choices {
		c.Choices[i].Delta = c.Choices[i].Message
	}
	if err := r.take(c); err != nil {
		return err
	}
	return r.end()
}

func (c chunk) failed() bool { return len(c.Error) > 0 && string(c.Error) != "null" }

func (r *reader) take(c chunk) *agent.Error {
	if c.failed() {
		return r.streamError(c.Error)
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue
		}
		if choice.FinishReason == "error" {
			return r.streamError(nil)
		}
		text := choice.Delta.Content
		if r.text.Len()+len(text) > agent.MaxReply {
			return broken(errTooLarge)
		}
		r.text.WriteString(text)
		r.turn.Delta(text)
		r.tools = r.tools || len(choice.Delta.ToolCalls) > 0
		if choice.FinishReason != "" {
			r.finish = choice.FinishReason
		}
	}
	return nil
}

// end judges an answer that is complete. Any text is a reply; without one, the
// model must have meant to say nothing.
func (r *reader) end() *agent.Error {
	switch {
	case r.text.Len() > 0:
		return nil
	case r.tools || r.finish == "tool_calls" || r.finish == "function_call":
		return malformed("the model asks for tools, and was offered none")
	case r.finish == "content_filter":
		return &agent.Error{Kind: agent.Refused, Err: errors.New("the endpoint's content filter kept the whole reply back")}
	case r.finish == "length":
		return &agent.Error{Kind: agent.Refused, Err: errors.New("the limit of output tokens was reached before the reply began")}
	case r.finish == "":
		return malformed("the answer holds no reply")
	}
	return nil
}
