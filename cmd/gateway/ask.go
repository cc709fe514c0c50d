package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/internal/redact"
	"github.com/oncegate/oncegate/internal/secret"
)

// askTimeout bounds one question to a running gateway.
const askTimeout = 5 * time.Second

// maxReport bounds what is read of an answer to it.
const maxReport = 1 << 20

// askHealth returns what the gateway at base says of itself. Without the right
// token that is its status and the names of degraded owners.
func askHealth(ctx context.Context, base string, token secret.String) (health.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var report health.Report
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(base, "/")+"/health", nil)
	if err != nil {
		return report, redact.Error(err)
	}
	if !token.IsEmpty() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return report, redact.Error(err)
	}
	defer func() { _ = res.Body.Close() }() // only read
	if res.StatusCode != http.StatusOK {
		return report, fmt.Errorf("/health answers %d", res.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxReport)).Decode(&report); err != nil || report.Status == "" {
		return report, fmt.Errorf("/health is no gateway's")
	}
	return report, nil
}
