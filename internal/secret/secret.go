// Package secret holds values that must never be printed.
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// String is a secret text. Every way of printing it gives "***", and "" when
// it is empty; only Reveal returns the text.
type String struct{ text string }

const redacted = "***"

// New returns text as a secret.
func New(text string) String { return String{text} }

// Reveal returns the text itself. Each call is a place to look at when asking
// where secrets go.
func (s String) Reveal() string { return s.text }

// IsEmpty reports whether there is no secret.
func (s String) IsEmpty() bool { return s.text == "" }

// Equal compares with other in constant time; an empty secret equals nothing,
// so that a missing one can never open a door.
func (s String) Equal(other string) bool {
	if s.text == "" {
		return false
	}
	a, b := sha256.Sum256([]byte(s.text)), sha256.Sum256([]byte(other))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// IsZero is IsEmpty under the name that encoders ask for.
func (s String) IsZero() bool { return s.IsEmpty() }

func (s String) String() string {
	if s.text == "" {
		return ""
	}
	return redacted
}

// Format redacts every verb of package fmt, also those that would look inside.
func (s String) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue redacts the slog form.
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText redacts JSON and every other text encoding.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML redacts the YAML form.
func (s String) MarshalYAML() (any, error) { return s.String(), nil }
