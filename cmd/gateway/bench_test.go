package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/internal/redistest"
)

// BenchmarkHook is the whole path of a message without the network: a signed
// 1 KB body, templates, metrics, reserve, echo, record; 64 at a time.
func BenchmarkHook(b *testing.B) {
	hook := []string{
		"signature: {scheme: github, secrets: [bench-secret]}", "idempotency_key: '{{ payload.id }}'",
		"channel: '{{ payload.channel }}'", "message: 'New from {{ payload.user }}: {{ payload.text }}'",
	}
	for _, store := range []string{"memory", "sqlite", "redis"} {
		b.Run(store, func(b *testing.B) {
			text := withIdempotency("store_backend: "+store, hook...)
			if store == "redis" {
				text = "gateway: {push: {redis: {url: 'unix://" + redistest.Start(b).Addr() + "'}}}\n" + text
			}
			benchmarkHook(b, assembled(b, text).handler)
		})
	}
}

func benchmarkHook(b *testing.B, h http.Handler) {
	var id atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32) // times GOMAXPROCS
	b.RunParallel(func(pb *testing.PB) {
		mac := hmac.New(sha256.New, []byte("bench-secret"))
		padding := strings.Repeat("x", 900)
		for pb.Next() {
			body := fmt.Appendf(nil, `{"id":"m-%012d","channel":"C042","user":"ann","text":"hello there","padding":%q}`, id.Add(1), padding)
			mac.Reset()
			mac.Write(body)
			req := httptest.NewRequest(http.MethodPost, "/hooks/a", bytes.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if w.Code != http.StatusOK {
				b.Errorf("answer %d %s", w.Code, w.Body)
				return
			}
		}
	})
}
