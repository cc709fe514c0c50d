package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/oncegate/oncegate/gateway"
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
		return report, errors.New("/health is not that of a gateway")
	}
	return report, nil
}

// askProve has the gateway at base make one claim of a throw-away key.
func askProve(ctx context.Context, base string, token secret.String, key string) (won bool, replica string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	body, err := json.Marshal(gateway.ProveRequest{Key: key})
	if err != nil {
		return false, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(base, "/")+"/api/prove", bytes.NewReader(body))
	if err != nil {
		return false, "", redact.Error(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if !token.IsEmpty() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, "", redact.Error(err)
	}
	defer func() { _ = res.Body.Close() }() // only read
	var answer gateway.ProveAnswer
	switch res.StatusCode {
	case http.StatusOK:
		err = json.NewDecoder(io.LimitReader(res.Body, maxReport)).Decode(&answer)
		return answer.Won, answer.Replica, err
	case http.StatusUnauthorized:
		return false, "", errors.New("/api/prove does not take this configuration's gateway.auth_token")
	case http.StatusTooManyRequests:
		return false, "", errors.New("/api/prove has been asked with a wrong token too often; wait a minute")
	case http.StatusServiceUnavailable:
		return false, "", errors.New("/api/prove has no store that may serve, or the gateway is starting or stopping")
	}
	return false, "", fmt.Errorf("/api/prove answers %d", res.StatusCode)
}
