// Package redact keeps out of an error's text where it was going and as whom:
// errors of the network name hosts, and servers name users. Both end up in
// logs that more people read than may know them.
package redact

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"regexp"
	"strings"
)

// Error returns err with a text that names no host, address, URL or Redis
// user. What it wraps stays as it is, for errors.Is and errors.As.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return &redacted{err, text(err)}
}

type redacted struct {
	err  error
	text string
}

func (r *redacted) Error() string { return r.text }
func (r *redacted) Unwrap() error { return r.err }

// refusedUser is how Redis begins to refuse: NOPERM User NAME has no
// permissions to …
var refusedUser = regexp.MustCompile(`User \S+ has no`)

func text(err error) string {
	switch e := err.(type) {
	case *redacted:
		return e.text
	case *net.OpError:
		return strings.TrimSpace(e.Op+" "+e.Net) + ": " + text(e.Err)
	case *net.DNSError:
		return "lookup: " + e.Err
	case *net.AddrError:
		return e.Err
	case *url.Error:
		return text(e.Err)
	case *tls.CertificateVerificationError:
		return "tls: failed to verify certificate: " + text(e.Err)
	case x509.HostnameError:
		return "x509: certificate is for another name"
	case interface{ Unwrap() error }:
		return without(err.Error(), e.Unwrap())
	case interface{ Unwrap() []error }:
		whole := err.Error()
		for _, inner := range e.Unwrap() {
			whole = without(whole, inner)
		}
		return whole
	}
	return refusedUser.ReplaceAllString(err.Error(), "this user has no")
}

// without returns whole with the text of inner replaced by its redacted one.
func without(whole string, inner error) string {
	if inner == nil {
		return whole
	}
	return strings.ReplaceAll(whole, inner.Error(), text(inner))
}
