package redact_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/internal/redact"
)

func TestError(t *testing.T) {
	t.Parallel()
	refused := func() error {
		_, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.66.77.88:1")
		return err
	}
	unknown := &net.DNSError{Err: "no such host", Name: "host.example", Server: "10.0.0.53:53", IsNotFound: true}
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"an address", refused(), "dial tcp: connect: connection refused"},
		{"a name", &net.OpError{Op: "dial", Net: "tcp", Err: unknown}, "dial tcp: lookup: no such host"},
		{"inside others", fmt.Errorf("ping: %w", fmt.Errorf("%w, twice", refused())), "ping: dial tcp: connect: connection refused, twice"},
		{"joined", errors.Join(refused(), errors.New("other")), "dial tcp: connect: connection refused\nother"},
		{"a user", errors.New("NOPERM User gateway has no permissions to run the 'set' command"), "NOPERM this user has no permissions to run the 'set' command"},
		{"nothing to hide", context.DeadlineExceeded, "context deadline exceeded"},
		{"twice", redact.Error(refused()), "dial tcp: connect: connection refused"},
	} {
		got := redact.Error(test.err)
		if got.Error() != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if !errors.Is(got, test.err) {
			t.Errorf("%s: the error is no longer the one that it was", test.name)
		}
	}
	if redact.Error(nil) != nil {
		t.Error("nil became an error")
	}
	if !errors.Is(redact.Error(refused()), syscall.ECONNREFUSED) {
		t.Error("the cause cannot be told any more")
	}
}

func TestErrorOfACertificate(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "other.test"}}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(r)
	if err == nil {
		_ = res.Body.Close()
		t.Fatal("a certificate of another name was accepted")
	}
	got := redact.Error(err)
	if want := "tls: failed to verify certificate: x509: certificate is for another name"; got.Error() != want {
		t.Errorf("%q, want %q", got, want)
	}
	if strings.Contains(got.Error(), "example.com") {
		t.Error("the names of the certificate are told")
	}
}
