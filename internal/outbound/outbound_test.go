package outbound_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/outbound"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ms, text string
		want     time.Duration
	}{
		{"", "", 0},
		{"", "7", 7 * time.Second},
		{"", "0.5", 500 * time.Millisecond},
		{"1500", "7", 1500 * time.Millisecond},
		{"x", "7", 7 * time.Second},
		{"", "-1", 0},
		{"", "NaN", 0},
		{"", "soon", 0},
		{"", "1e400", 24 * time.Hour},
		{"", "99999999", 24 * time.Hour},
		{"", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), 0},
		{"", time.Now().Add(1000 * time.Hour).UTC().Format(http.TimeFormat), 24 * time.Hour},
	} {
		h := http.Header{"Retry-After": {c.text}, "Retry-After-Ms": {c.ms}}
		if got := outbound.RetryAfter(h); got != c.want {
			t.Errorf("RetryAfter(%q, %q) = %s, want %s", c.ms, c.text, got, c.want)
		}
	}
	at := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
	if got := outbound.RetryAfter(http.Header{"Retry-After": {at}}); got < 80*time.Second || got > 90*time.Second {
		t.Errorf("RetryAfter of a date = %s, want about 90s", got)
	}
}

func TestReasonNamesNoHost(t *testing.T) {
	t.Parallel()
	const host = "private.example"
	wrap := func(err error) error { return &url.Error{Op: "Post", URL: "https://" + host + "/", Err: err} }
	for want, err := range map[string]error{
		"name cannot be looked up":       wrap(&net.OpError{Op: "dial", Err: &net.DNSError{Name: host, Err: "no such host"}}),
		"certificate cannot be verified": wrap(&tls.CertificateVerificationError{Err: errors.New(host)}),
		"connection refused":             wrap(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}),
		"no connection in time":          wrap(os.ErrDeadlineExceeded),
		"connection broke":               wrap(fmt.Errorf("malformed HTTP response %q", host)),
	} {
		if got := outbound.Reason(err).Error(); !strings.Contains(got, want) || strings.Contains(got, host) {
			t.Errorf("Reason(%v) = %q, want %q and no host", err, got, want)
		}
	}
}

func TestNoRedirectIsFollowedAndNoBodyUnpacked(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" || r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("%s was asked, accepting %q", r.URL.Path, r.Header.Get("Accept-Encoding"))
		}
		http.Redirect(w, r, "/other", http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := outbound.NewClient(outbound.NewTransport()).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	if res.StatusCode != http.StatusTemporaryRedirect {
		t.Errorf("status %d, want the redirect itself", res.StatusCode)
	}
}
