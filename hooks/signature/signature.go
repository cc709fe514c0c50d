// Package signature verifies that a request was signed by somebody who knows
// a secret, in the schemes that senders use, and signs as those senders do.
//
// A signature is compared in constant time and over decoded bytes. Whatever is
// malformed is ErrInvalid, like what is wrong: a stranger learns nothing. The
// package does not remember what it has seen: a copied request passes again
// until its signed time is too old, and for ever in schemes that sign no time.
package signature

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"iter"
	"net/http"
	"strings"
	"time"
)

// ErrInvalid is returned for a request that is not signed, or wrongly.
var ErrInvalid = errors.New("signature: missing or wrong")

// ErrStale is returned for a request whose signature is right, and whose
// signed time is outside the window.
var ErrStale = errors.New("signature: signed too long ago, or in the future")

// maxCandidates bounds the signatures that one request may carry.
const maxCandidates = 32

// Content is what a signature may cover.
type Content struct {
	Body []byte // wire or decoded, as SignedBody says
	URL  string // the public URL; used with SignedURL only
}

// Verifier checks the signatures of one sender. It is safe for concurrent use.
type Verifier struct {
	scheme    scheme
	keys      []*key // any may match
	maxAge    time.Duration
	maxFuture time.Duration
}

// scheme is how one kind of sender signs.
type scheme interface {
	// claims returns what the header claims: one claim for each set of
	// signatures that share what they cover. None if it is malformed.
	claims(header http.Header, content Content) []claim
	// sign adds to header what makes the claim that content was signed at now.
	sign(header http.Header, content Content, k *key, now time.Time)
}

// claim is a set of signatures and what they are made over.
type claim struct {
	covered    [][]byte // in this order
	signed     time.Time
	timed      bool
	signatures [][]byte // decoded; any may match
}

// New returns the verifier of a valid configuration, else the error of
// Validate.
func New(c Config) (*Verifier, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	v := &Verifier{}
	v.maxAge, v.maxFuture = c.Window()
	for _, s := range c.Secrets {
		text, err := c.key(s.Reveal())
		if err != nil {
			return nil, err
		}
		v.keys = append(v.keys, newKey(c.algorithm(), text))
	}
	switch c.Scheme {
	case Slack:
		v.scheme = slackScheme{}
	case Stripe:
		v.scheme = stripeScheme{}
	case Standard:
		v.scheme = standardScheme{}
	case GitHub:
		v.scheme = plainScheme{header: githubHeader, prefix: githubPrefix, encoding: hexEncoding{}, size: v.keys[0].size}
	default:
		p := plainScheme{
			header: http.CanonicalHeaderKey(c.Header), prefix: c.Prefix, encoding: hexEncoding{}, size: v.keys[0].size, url: c.SignedURL,
		}
		if c.Scheme == HMACBase64 {
			p.encoding = base64Encoding{}
		}
		v.scheme = p
	}
	return v, nil
}

// Verify returns nil, ErrInvalid or ErrStale for a request that arrived at now.
func (v *Verifier) Verify(header http.Header, content Content, now time.Time) error {
	err := ErrInvalid
	for _, c := range v.scheme.claims(header, content) {
		if !v.matches(c) {
			continue
		}
		if !c.timed || v.isFresh(c.signed, now) {
			return nil
		}
		err = ErrStale
	}
	return err
}

// matches computes one MAC for each key, however many signatures there are.
func (v *Verifier) matches(c claim) bool {
	if len(c.signatures) == 0 {
		return false
	}
	for _, k := range v.keys {
		mac := k.sum(c.covered...)
		for _, s := range c.signatures {
			if hmac.Equal(mac.bytes(), s) {
				return true
			}
		}
	}
	return false
}

// isFresh compares whole seconds, which is what senders sign. It compares times
// and not their difference, which a Duration holds for 292 years only.
func (v *Verifier) isFresh(signed, now time.Time) bool {
	now = now.Truncate(time.Second)
	return !signed.Before(now.Add(-v.maxAge)) && !signed.After(now.Add(v.maxFuture))
}

// Sign adds to header what a sender with the first secret would send at now.
func (v *Verifier) Sign(header http.Header, content Content, now time.Time) {
	v.scheme.sign(header, content, v.keys[0], now)
}

// encoding is how a signature's bytes stand in a header.
type encoding interface {
	encode(mac []byte) string
	// decode returns the size bytes that text stands for, nil if it does not.
	// It compares lengths first, so that an oversized value costs nothing.
	decode(text string, size int) []byte
}

type hexEncoding struct{}

func (hexEncoding) encode(mac []byte) string { return hex.EncodeToString(mac) }

func (hexEncoding) decode(text string, size int) []byte {
	if len(text) != hex.EncodedLen(size) {
		return nil
	}
	mac, err := hex.DecodeString(text)
	if err != nil {
		return nil
	}
	return mac
}

// base64Encoding is strict: the usual decoder ignores line breaks and stray
// bits behind the last byte, so that several texts would stand for one MAC.
type base64Encoding struct{}

func (base64Encoding) encode(mac []byte) string { return base64.StdEncoding.EncodeToString(mac) }

func (base64Encoding) decode(text string, size int) []byte {
	if len(text) != base64.StdEncoding.EncodedLen(size) {
		return nil
	}
	mac, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(mac) != size {
		return nil
	}
	return mac
}

// candidates yields what stands between the separators in every line of a
// header, without space around it; nothing if a request may not carry as many.
func candidates(lines []string, separator string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if isTooLong(lines, separator) {
			return
		}
		for _, line := range lines {
			for more := true; more; {
				var item string
				item, line, more = strings.Cut(line, separator)
				if item = strings.TrimSpace(item); item != "" && !yield(item) {
					return
				}
			}
		}
	}
}

func isTooLong(lines []string, separator string) bool {
	count := len(lines)
	for _, line := range lines {
		count += strings.Count(line, separator)
	}
	return count > maxCandidates
}
