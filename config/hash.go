package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/gateway"
)

// Hash returns 16 hexadecimal digits that replicas compare: alike where the
// settings in force are, whatever the file looks like. What each replica has
// for itself (host, port, state_dir, log) does not count, and of a secret,
// which a Redis URL is as a whole, only whether it is set.
func Hash(c Config) string {
	own := &c.Gateway
	own.Host, own.Port, own.StateDir, own.Log = "", 0, "", gateway.LogConfig{}
	c.Hooks.Hooks = slices.Clone(c.Hooks.Hooks)
	for i := range c.Hooks.Hooks {
		h := &c.Hooks.Hooks[i]
		if h.Lease == nil {
			h.Lease = &c.Hooks.Idempotency.Lease
		}
		if h.TTL == nil {
			h.TTL = &c.Hooks.Idempotency.TTL
		}
		h.OnUnavailable = cmp.Or(h.OnUnavailable, c.Hooks.Idempotency.OnUnavailable)
	}
	sum := sha256.New()
	digest(sum, dump(reflect.ValueOf(c)))
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// digest writes a tree so that no two read alike.
func digest(w io.Writer, n *yaml.Node) {
	_, _ = fmt.Fprintf(w, "%d %d %q\n", n.Kind, len(n.Content), n.Value) // a hash takes everything
	for _, inner := range n.Content {
		digest(w, inner)
	}
}
