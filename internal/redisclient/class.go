package redisclient

import (
	"crypto/tls"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Class says what kind of trouble an error of Redis is, in the words of the
// degraded owners on /health.
type Class string

// The classes.
const (
	Unreachable Class = "unreachable" // no connection, no answer in time, or no master behind it
	Auth        Class = "auth"        // wrong or missing user or password
	Permission  Class = "permission"  // the user may not do this
	TLS         Class = "tls"         // no encrypted connection could be made
	ReadOnly    Class = "readonly"    // a replica answered
	Loading     Class = "loading"     // the server is still reading its data
	OOM         Class = "oom"         // the server's memory is full
	Misconf     Class = "misconf"     // the server cannot persist and refuses writes
	Other       Class = "other"       // any other refusal
)

// Heals reports whether the trouble can end by itself; otherwise a person has
// to change a setting.
func (c Class) Heals() bool {
	return c != Auth && c != Permission && c != TLS && c != Other
}

// marks are the words of servers, in the order in which they decide. They are
// looked for anywhere in the server's text, since scripts and proxies put words
// of their own before it.
var marks = []struct {
	text  string
	class Class
}{
	{"NOAUTH", Auth},
	{"WRONGPASS", Auth},
	{"invalid password", Auth},
	{"invalid username-password", Auth},
	{"no password is set", Auth},
	{"without any password configured", Auth},
	{"NOPERM", Permission},
	{"ACL failure", Permission},
	{"can't run this command", Permission}, // what a script calls
	{"READONLY", ReadOnly},
	{"LOADING", Loading},
	{"MISCONF", Misconf},
	{"OOM ", OOM},
	{"MASTERDOWN", Unreachable},
	{"CLUSTERDOWN", Unreachable},
	{"max number of clients", Unreachable},
}

// errTLSSettings is why no connection can be made: a file of the section tls.
var errTLSSettings = errors.New("its settings cannot be used")

// Classify returns the class of an error that came from a client, or "" for
// nil. Only the server's own words are searched, never what was wrapped around
// them, where a key could say anything. What no server said is a matter of
// reaching one. ErrOpen is of the class of what opened the breaker.
func Classify(err error) Class {
	if err == nil {
		return ""
	}
	if open, ok := errors.AsType[*openError](err); ok {
		return open.class
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		for _, m := range marks {
			if strings.Contains(reply.Error(), m.text) {
				return m.class
			}
		}
		if reply == redis.Nil {
			return Unreachable // Sentinels say it of a primary that they do not know
		}
		return Other
	}
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	if badCertificate || noTLS || alert || errors.Is(err, errTLSSettings) {
		return TLS
	}
	return Unreachable
}
