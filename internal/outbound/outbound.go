// Package outbound is the one way in which the gateway calls the servers of
// others: the connections, what may be told of one that broke, and when a server
// wants to be asked again.
package outbound

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// maxHeaderSize bounds the header of an answer in bytes.
const maxHeaderSize = 64 << 10

// NewTransport returns connections to servers. Each call brings its own
// deadline, so there is none here but for the steps before a request. A body
// arrives as the server wrote it, piece by piece and compressed or not.
func NewTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = t.MaxIdleConns
	t.MaxResponseHeaderBytes = maxHeaderSize
	t.TLSHandshakeTimeout = 10 * time.Second
	t.DisableCompression = true
	return t
}

// NewClient returns a client on t that follows no redirect: what is sent with a
// request, such as a key, would go with it.
func NewClient(t http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Reason says why a call got no answer, in words of our own or the operating
// system's. The texts of package net/http name the host and quote what the
// server sent, and those of x509 its certificate.
func Reason(err error) error {
	_, unknownName := errors.AsType[*net.DNSError](err)
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	errno, refused := errors.AsType[syscall.Errno](err)
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case unknownName:
		return errors.New("the server's name cannot be looked up")
	case badCertificate:
		return errors.New("the server's certificate cannot be verified")
	case refused:
		return errno
	case isNet && timeout.Timeout():
		return errors.New("there was no connection in time")
	}
	return errors.New("the connection broke before there was an answer")
}

// maxRetryAfter is the longest wait that RetryAfter returns. A longer one is no
// more than "not today".
const maxRetryAfter = 24 * time.Hour

// RetryAfter returns when the server that answered with h wants to be asked
// again, as the header Retry-After-Ms or Retry-After says, in this order; 0 if
// neither does.
func RetryAfter(h http.Header) time.Duration {
	if d, ok := duration(h.Get("Retry-After-Ms"), time.Millisecond); ok {
		return d
	}
	text := h.Get("Retry-After")
	if d, ok := duration(text, time.Second); ok {
		return d
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), maxRetryAfter)
}

func duration(text string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || !(n >= 0) {
		return 0, false
	}
	return time.Duration(min(n*float64(unit), float64(maxRetryAfter))), true
}
