package signature

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/http/httpguts"

	"github.com/oncegate/oncegate/internal/secret"
)

// The schemes.
const (
	GitHub     = "github"
	Slack      = "slack"
	Stripe     = "stripe"
	Standard   = "standard"
	HMACHex    = "hmac-hex"
	HMACBase64 = "hmac-base64"
)

var schemes = []string{GitHub, Slack, Stripe, Standard, HMACHex, HMACBase64}

// The values of SecretEncoding, SignedBody and SignedURL.
const (
	SecretRaw    = "raw"
	SecretBase64 = "base64"

	BodyWire    = "wire"
	BodyDecoded = "decoded"

	URLBefore = "before"
	URLAfter  = "after"
)

// The window in which a signed time is believed, unless the configuration says
// otherwise.
const (
	DefaultMaxAge    = 5 * time.Minute
	DefaultMaxFuture = time.Minute
)

// longestWindow keeps sums of windows far from what a Duration can hold.
const longestWindow = 366 * 24 * time.Hour

// minSecret is the shortest secret in bytes; a shorter one can be guessed.
const minSecret = 8

// Config says how a sender signs: the section signature of a hook.
type Config struct {
	Scheme         string          `yaml:"scheme"`
	Secrets        []secret.String `yaml:"secrets"`                   // any may match, so that they can be rotated
	Header         string          `yaml:"header,omitempty"`          // hmac-*: which header carries the signature
	Prefix         string          `yaml:"prefix,omitempty"`          // hmac-*: what stands before it, such as "sha256="
	Algo           string          `yaml:"algo,omitempty"`            // hmac-*: sha1, sha256 (default), sha512
	SecretEncoding string          `yaml:"secret_encoding,omitempty"` // hmac-*, standard: raw or base64
	SignedBody     string          `yaml:"signed_body,omitempty"`     // of a compressed body: wire (default) or decoded
	SignedURL      string          `yaml:"signed_url,omitempty"`      // hmac-*: the public URL stands before or after the body
	MaxAge         *time.Duration  `yaml:"max_age,omitempty"`         // schemes with a signed time; default DefaultMaxAge
	MaxFuture      *time.Duration  `yaml:"max_future,omitempty"`      // likewise; default DefaultMaxFuture
}

// isTimed reports whether the scheme signs a time.
func (c Config) isTimed() bool {
	return c.Scheme == Slack || c.Scheme == Stripe || c.Scheme == Standard
}

// isPlain reports whether the scheme has no name of its own.
func (c Config) isPlain() bool { return c.Scheme == HMACHex || c.Scheme == HMACBase64 }

// Window returns how long after its signing a request passes, and how long
// before it; both are zero for a scheme that signs no time.
func (c Config) Window() (maxAge, maxFuture time.Duration) {
	if !c.isTimed() {
		return 0, 0
	}
	maxAge, maxFuture = DefaultMaxAge, DefaultMaxFuture
	if c.MaxAge != nil {
		maxAge = *c.MaxAge
	}
	if c.MaxFuture != nil {
		maxFuture = *c.MaxFuture
	}
	return maxAge, maxFuture
}

// Validate returns every problem, joined; each begins with the key's name and
// holds nothing of a secret.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	oneOf := func(key, value string, valid ...string) {
		if value != "" && !slices.Contains(valid, value) {
			bad("%s: %q is not one of %s", key, value, strings.Join(valid, ", "))
		}
	}
	if !slices.Contains(schemes, c.Scheme) {
		bad("scheme: %q is not one of %s", c.Scheme, strings.Join(schemes, ", "))
		return errors.Join(errs...) // what else would be right depends on it
	}
	for _, key := range c.useless() {
		bad("%s: does nothing with scheme %s", key, c.Scheme)
	}
	if c.isPlain() && !httpguts.ValidHeaderFieldName(c.Header) {
		bad("header: %q is not the name of a header; scheme %s needs the one that carries the signature", c.Header, c.Scheme)
	}
	if strings.ContainsFunc(c.Prefix, unicode.IsControl) || strings.Contains(c.Prefix, ",") {
		bad("prefix: %q holds a comma or a control character", c.Prefix)
	} else if strings.TrimLeftFunc(c.Prefix, unicode.IsSpace) != c.Prefix {
		bad("prefix: %q begins with space, which is cut off every signature", c.Prefix)
	}
	oneOf("algo", c.Algo, slices.Sorted(maps.Keys(algorithms))...)
	oneOf("secret_encoding", c.SecretEncoding, SecretRaw, SecretBase64)
	oneOf("signed_body", c.SignedBody, BodyWire, BodyDecoded)
	oneOf("signed_url", c.SignedURL, URLBefore, URLAfter)
	if maxAge, maxFuture := c.Window(); c.isTimed() {
		if maxAge > longestWindow || maxFuture > longestWindow {
			bad("max_age: a signed time is believed for %s before it and %s after it; a year is the most that makes sense", maxFuture, maxAge)
		}
		if maxAge < time.Second {
			bad("max_age: %s is shorter than 1s; leave the key out for the default", maxAge)
		}
		if maxFuture != 0 && maxFuture < time.Second {
			bad("max_future: %s is neither 0s, for no time ahead, nor at least 1s", maxFuture)
		}
	}
	return errors.Join(append(errs, c.secretProblems()...)...)
}

// useless returns the keys that are set and that the scheme ignores.
func (c Config) useless() []string {
	var keys []string
	for _, k := range []struct {
		name      string
		set, used bool
	}{
		{"header", c.Header != "", c.isPlain()},
		{"prefix", c.Prefix != "", c.isPlain()},
		{"algo", c.Algo != "", c.isPlain()},
		{"secret_encoding", c.SecretEncoding != "", c.isPlain() || c.Scheme == Standard},
		{"signed_url", c.SignedURL != "", c.isPlain()},
		{"max_age", c.MaxAge != nil, c.isTimed()},
		{"max_future", c.MaxFuture != nil, c.isTimed()},
	} {
		if k.set && !k.used {
			keys = append(keys, k.name)
		}
	}
	return keys
}

func (c Config) secretProblems() []error {
	if len(c.Secrets) == 0 {
		return []error{errors.New("secrets: must name at least one secret")}
	}
	var errs []error
	for i, s := range c.Secrets {
		key, err := c.key(s.Reveal())
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("secrets[%d]: %w", i, err))
		case len(key) < minSecret:
			errs = append(errs, fmt.Errorf("secrets[%d]: has %d bytes; use at least %d", i, len(key), minSecret))
		}
	}
	return errs
}

const (
	standardPrefix   = "whsec_"
	asymmetricPrefix = "whpk_"
)

// key returns the bytes that a secret stands for. Errors hold nothing of it.
func (c Config) key(text string) ([]byte, error) {
	if strings.TrimSpace(text) != text {
		return nil, errors.New("has space or a line break at an end, as texts read from a file often do; no sender's secret has")
	}
	if c.Scheme == Standard && strings.HasPrefix(text, asymmetricPrefix) {
		return nil, errors.New("is a public key of an asymmetric signature, which is not supported; ask the sender for a secret that begins with " + standardPrefix)
	}
	switch {
	case c.SecretEncoding == SecretBase64, c.SecretEncoding == "" && c.Scheme == Standard:
		if c.Scheme == Standard {
			text = strings.TrimPrefix(text, standardPrefix)
		}
		// The decoder skips line breaks even when it is strict.
		key, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil || strings.ContainsAny(text, "\r\n") {
			return nil, errors.New("is not base64; if the sender uses the text itself as its key, set secret_encoding: raw")
		}
		return key, nil
	}
	return []byte(text), nil
}

func (c Config) algorithm() string {
	if c.Algo == "" {
		return sha256Name
	}
	return c.Algo
}
