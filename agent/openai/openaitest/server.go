// Package openaitest is a double of a chat-completions endpoint. It answers as
// it is told, notes what it was asked, and fails the test on a request that a
// strict endpoint would refuse. It shares no code with the agent that it tests.
package openaitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// Request is what was asked.
type Request struct {
	Header   http.Header // with canonical names
	Query    string
	Messages []Message
	Fields   map[string]any // of the body, as encoding/json has them: numbers are float64
}

// Message is one of a request's messages.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Server is the endpoint, on 127.0.0.1. It is safe for concurrent use.
type Server struct {
	t    testing.TB
	http *httptest.Server

	mu       sync.Mutex
	key      string
	delay    time.Duration
	script   []Answer
	requests []Request
}

// Start starts a server that lives as long as the test. It answers with Echo.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t}
	s.http = httptest.NewServer(s)
	t.Cleanup(func() {
		s.http.CloseClientConnections() // ends the answers that wait for that
		s.http.Close()
	})
	return s
}

// URL returns the base_url, which ends in /v1.
func (s *Server) URL() string { return s.http.URL + "/v1" }

// Queue appends answers for the requests to come, one each.
func (s *Server) Queue(answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = append(s.script, answers...)
}

// RequireKey makes the test fail if a request comes with another API key, or
// none.
func (s *Server) RequireKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = key
}

// Delay makes every answer begin that much later.
func (s *Server) Delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// Requests returns what was asked so far, in the order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := decode(r)
	if err == nil {
		err = check(req)
	}
	answer, delay, keyErr := s.next(req)
	if err = errors.Join(err, keyErr); err != nil {
		s.t.Errorf("the endpoint was asked wrongly: %v", err)
		http.Error(w, "asked wrongly", http.StatusBadRequest)
		return
	}
	select {
	case <-time.After(delay):
		answer(w, r, req)
	case <-r.Context().Done():
	}
}

// next notes a request and takes its answer.
func (s *Server) next(req Request) (Answer, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, req)
	var err error
	if got, want := req.Header.Get("Authorization"), "Bearer "+s.key; s.key != "" && got != want {
		err = errors.New("the Authorization header is not that of the key")
	}
	if len(s.script) == 0 {
		return Echo, s.delay, err
	}
	answer := s.script[0]
	s.script = s.script[1:]
	return answer, s.delay, err
}

func decode(r *http.Request) (Request, error) {
	req := Request{Header: r.Header, Query: r.URL.RawQuery}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return req, err
	}
	var body struct{ Messages []Message }
	if err := errors.Join(json.Unmarshal(data, &req.Fields), json.Unmarshal(data, &body)); err != nil {
		return req, fmt.Errorf("body: %w", err)
	}
	req.Messages = body.Messages
	if got := r.Method + " " + r.URL.Path; got != "POST /v1/chat/completions" {
		return req, fmt.Errorf("%s is not POST /v1/chat/completions", got)
	}
	return req, nil
}

func check(req Request) error {
	if got, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || got != "application/json" {
		return fmt.Errorf("content type %q is not application/json", got)
	}
	if model, _ := req.Fields["model"].(string); model == "" {
		return errors.New("there is no model")
	}
	if req.Fields["stream"] != true {
		return errors.New("no stream is asked for")
	}
	return checkRoles(req.Messages)
}

// checkRoles wants a system message or none, then the user and the assistant by
// turns, the user first and last, and nothing empty.
func checkRoles(messages []Message) error {
	for i, m := range messages {
		if m.Content == "" {
			return fmt.Errorf("message %d is empty", i)
		}
	}
	if len(messages) > 0 && messages[0].Role == "system" {
		messages = messages[1:]
	}
	if len(messages)%2 == 0 {
		return errors.New("the last message is not the user's")
	}
	for i, m := range messages {
		if want := [2]string{"user", "assistant"}[i%2]; m.Role != want {
			return fmt.Errorf("message %d after the system's is of role %q, want %q", i, m.Role, want)
		}
	}
	return nil
}
