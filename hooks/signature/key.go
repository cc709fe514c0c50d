package signature

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"hash"
	"sync"
)

// The algorithms of hmac-*; the other schemes have SHA-256.
const (
	sha1Name   = "sha1"
	sha256Name = "sha256"
	sha512Name = "sha512"
)

var algorithms = map[string]func() hash.Hash{sha1Name: sha1.New, sha256Name: sha256.New, sha512Name: sha512.New}

// key computes MACs under one secret. Setting up the key costs as much as
// hashing a short body, so keyed hashes are kept for reuse.
type key struct {
	size   int // of a MAC in bytes
	hashes sync.Pool
}

func newKey(algorithm string, text []byte) *key {
	newHash := algorithms[algorithm]
	return &key{size: newHash().Size(), hashes: sync.Pool{New: func() any { return hmac.New(newHash, text) }}}
}

// mac is a MAC of any of the algorithms, kept where its caller is.
type mac struct {
	array [sha512.Size]byte
	size  int
}

func (m *mac) bytes() []byte { return m.array[:m.size] }

// sum returns the MAC over parts, one behind the other.
func (k *key) sum(parts ...[]byte) (m mac) {
	h := k.hashes.Get().(hash.Hash)
	h.Reset()
	for _, p := range parts {
		h.Write(p)
	}
	m.size = len(h.Sum(m.array[:0]))
	k.hashes.Put(h)
	return m
}
