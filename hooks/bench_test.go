package hooks_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// discard is a ResponseWriter that costs next to nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header              { return d.header }
func (d *discard) WriteHeader(int)                  {}
func (d *discard) Write(p []byte) (int, error)      { return len(p), nil }
func (d *discard) SetReadDeadline(time.Time) error  { return nil }
func (d *discard) SetWriteDeadline(time.Time) error { return nil }

func kilobyte(t testing.TB) []byte {
	t.Helper()
	body := mustJSON(t, map[string]any{
		"action":     "created",
		"comment":    map[string]any{"id": 700001, "body": "@gw please triage " + strings.Repeat("a word or two more ", 20)},
		"repository": map[string]any{"id": 1296001, "full_name": "acme/app"},
		"padding":    strings.Repeat("y", 470),
	})
	return []byte(body)
}

// BenchmarkHandler measures everything of a hook but net/http and the claim:
// 1 KB of JSON, HMAC, three templates, metrics.
func BenchmarkHandler(b *testing.B) {
	for _, bench := range []struct {
		name   string
		change func(*hooks.Hook)
	}{
		{"templates", func(h *hooks.Hook) {
			h.IdempotencyKey = "comment:{{ payload.comment.id }}"
			h.Channel = "{{ payload.repository.full_name }}"
			h.Message = "New comment: {{ payload.comment.body }}"
		}},
		{"content", func(*hooks.Hook) {}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			body := kilobyte(b)
			f := build(b, func(h *hooks.Hook, d *hooks.Deps) {
				h.Signature = github("It's a Secret to Everybody")
				bench.change(h)
				d.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
				d.Pipeline = fixedPipeline{}
			})
			header := http.Header{"Content-Type": {"application/json"}, "X-Github-Event": {"issue_comment"}}
			signer := hooks.Hook{Signature: github("It's a Secret to Everybody")}
			if err := signer.Sign(header, signature.Content{Body: body}, secret.String{}, time.Now()); err != nil {
				b.Fatal(err)
			}
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/hooks/x", nil)
			r.Header, r.ContentLength = header, int64(len(body))
			w := &discard{header: make(http.Header)}
			reader := bytes.NewReader(body)
			r.Body = io.NopCloser(reader)
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				reader.Reset(body)
				clear(w.header)
				f.handler.ServeHTTP(w, r)
			}
			if got := f.counter(b, "gateway_hook_requests_total", "done"); got != float64(b.N) {
				b.Fatalf("%g requests done, want %d", got, b.N)
			}
		})
	}
}

// fixedPipeline answers every message alike.
type fixedPipeline struct{}

func (fixedPipeline) Process(context.Context, message.Message, message.Policy) (message.Receipt, error) {
	return message.Receipt{State: message.New, Outcome: message.Outcome{Action: message.ActionAgent, Agent: "assistant", Reply: "thanks"}}, nil
}
