package idempotency

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/oncegate/oncegate/message"
)

// Key is an encoded message key: printable ASCII without spaces or braces, at
// most MaxKeyLen bytes. Only EncodeKey makes one.
type Key string

// MaxKeyLen is the longest encoded key; a longer one is replaced by its hash.
const MaxKeyLen = 512

// EncodeKey encodes a message key injectively: each part percent-escapes every
// byte but A-Z a-z 0-9 . _ - and the parts are joined with ":". A longer
// result than MaxKeyLen becomes "sha256:" and the hex digest of it, which no
// encoded key can equal, since that has three colons.
func EncodeKey(k message.Key) Key {
	parts := [...]string{k.Platform, k.Account, k.Channel, k.ID}
	size := len(parts) - 1
	for _, p := range parts {
		size += len(p)
	}
	buf := make([]byte, 0, size)
	for i, p := range parts {
		if i > 0 {
			buf = append(buf, ':')
		}
		buf = appendEscaped(buf, p)
	}
	if len(buf) > MaxKeyLen {
		sum := sha256.Sum256(buf)
		return Key("sha256:" + hex.EncodeToString(sum[:]))
	}
	return Key(buf)
}

func appendEscaped(buf []byte, part string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(part) {
		c := part[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
			buf = append(buf, c)
		default:
			buf = append(buf, '%', digits[c>>4], digits[c&15])
		}
	}
	return buf
}

// NewReplicaID returns an identity for one process start. It is random, never
// a host name or process id, both of which come again after a restart.
func NewReplicaID() string { return strings.ToLower(rand.Text()[:12]) }

// NewToken returns the owner token of one claim attempt by replica.
func NewToken(replica string) string { return replica + "." + rand.Text() }

// ReplicaOf returns the id of the replica that made an owner token.
func ReplicaOf(token string) string {
	replica, _, _ := strings.Cut(token, ".")
	return replica
}
