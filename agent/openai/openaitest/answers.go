package openaitest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// Answer answers one request. Tests may write their own.
type Answer func(w http.ResponseWriter, r *http.Request, req Request)

// Step is a part of a stream. It returns false if it is the last.
type Step func(w http.ResponseWriter, r *http.Request) bool

// Echo streams the last message, in three pieces or more.
func Echo(w http.ResponseWriter, r *http.Request, req Request) {
	text := []rune(req.Messages[len(req.Messages)-1].Content)
	size := max(1, len(text)/3)
	var pieces []string
	for len(text) > size {
		pieces, text = append(pieces, string(text[:size])), text[size:]
	}
	pieces = append(pieces, string(text))
	for len(pieces) < 3 {
		pieces = append(pieces, "")
	}
	Text(pieces...)(w, r, req)
}

// Text streams a whole reply of those pieces.
func Text(pieces ...string) Answer {
	var steps []Step
	for _, piece := range pieces {
		steps = append(steps, Delta(piece))
	}
	return Stream(append(steps, Finish("stop"), Done())...)
}

// Stream answers with those steps and nothing else. What a step wrote is on its
// way before the next begins.
func Stream(steps ...Step) Answer {
	return func(w http.ResponseWriter, r *http.Request, _ Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		flush(w)
		for _, step := range steps {
			if !step(w, r) {
				return
			}
			flush(w)
		}
	}
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() } // the client may have left

// Data sends an event with that data.
func Data(data string) Step { return Raw("data: " + data + "\n\n") }

// Raw sends the bytes of a stream as they are.
func Raw(text string) Step {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		_, err := io.WriteString(w, text)
		return err == nil
	}
}

// Delta sends a piece of the reply.
func Delta(text string) Step { return chunk(map[string]any{"content": text}, nil) }

// Finish says why the model stopped.
func Finish(reason string) Step { return chunk(map[string]any{}, reason) }

// Done ends a stream as it should.
func Done() Step { return Data("[DONE]") }

// Error reports an error in the middle of a stream.
func Error(kind, code, message string) Step { return Data(ErrorBody(kind, code, message)) }

// Pause waits until release is closed, or the client leaves.
func Pause(release <-chan struct{}) Step {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-release:
			return true
		case <-r.Context().Done():
			return false
		}
	}
}

// Cut breaks the connection.
func Cut() Step {
	return func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
}

// Status answers without a stream. The headers are names and values by turns;
// without Content-Type it is application/json.
func Status(status int, body string, headers ...string) Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body) // the client may have left
	}
}

// Limited answers with a 429 and that Retry-After.
func Limited(retryAfter string) Answer {
	body := ErrorBody("requests", "rate_limit_exceeded", "slow down")
	return Status(http.StatusTooManyRequests, body, "Retry-After", retryAfter)
}

// Completion answers as servers do that know no streams.
func Completion(text string) Answer {
	return Status(http.StatusOK, encode(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "test",
		"choices": []any{map[string]any{
			"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": text},
		}},
	}))
}

// Hang answers nothing, until the client leaves.
func Hang() Answer {
	return func(_ http.ResponseWriter, r *http.Request, _ Request) { <-r.Context().Done() }
}

// Drop breaks the connection before there is an answer.
func Drop() Answer {
	return func(http.ResponseWriter, *http.Request, Request) { panic(http.ErrAbortHandler) }
}

// ErrorBody returns the body of an error as OpenAI has it.
func ErrorBody(kind, code, message string) string {
	return encode(map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": code}})
}

func chunk(delta map[string]any, finish any) Step {
	return Data(encode(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "test",
		"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}},
	}))
}

func encode(v any) string {
	var b strings.Builder
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		panic(err) // of texts and numbers alone
	}
	return strings.TrimSpace(b.String())
}
