package doctor

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/idempotency"
)

// shortToken is the length in bytes below which a token can be guessed in time.
const shortToken = 16

// secrets looks at the secrets that the loader has found, without telling any.
func secrets(cfg config.Config, source string) health.Check {
	f := newFinding(CheckSecrets, source)
	set := 0
	for path, s := range cfg.Secrets() {
		text := s.Reveal()
		if text == "" {
			continue
		}
		set++
		if strings.TrimSpace(text) != text {
			f.warn("take the space or line break away; texts that are read from a file often end in one", "%s has space or a line break at an end", path)
		}
		if token := path == "gateway.auth_token" || strings.Contains(path, ".auth"); token && len(text) < shortToken {
			f.warn("use tokens of 16 bytes or more, as openssl rand -base64 24 makes them", "%s has %d bytes and can be guessed", path, len(text))
		}
	}
	f.details = append([]string{plural(set, "secret") + " set"}, f.details...)
	return f.done("")
}

// timeouts compares the durations that have to fit into each other.
func timeouts(cfg config.Config, source string) health.Check {
	f := newFinding(CheckTimeouts, source)
	shortest, where := cfg.Hooks.Idempotency.Lease, "hooks.idempotency.lease"
	for _, h := range cfg.Hooks.Hooks {
		if h.Lease != nil && *h.Lease < shortest {
			shortest, where = *h.Lease, "the lease of hook "+h.Path
		}
		if h.OnDuplicate == "wait" && h.WaitTimeout > cfg.Gateway.TurnTimeout+cfg.Gateway.QueueWait {
			f.warn("shorten wait_timeout", "hook %s waits %s for an answer that takes %s at most", h.Path, h.WaitTimeout, cfg.Gateway.TurnTimeout+cfg.Gateway.QueueWait)
		}
	}
	// A claim is renewed when a third of its lease is over, and that may have
	// to be tried again before the lease ends.
	claim := cfg.Hooks.Idempotency.ClaimTimeout
	if claim > shortest/3 {
		f.warn("lengthen the lease or shorten hooks.idempotency.claim_timeout", "%s of %s leaves a renewal, which may take claim_timeout (%s), no second try", where, shortest, claim)
	}
	if after := cfg.Hooks.Idempotency.TakeoverAfter; cfg.Hooks.Idempotency.StoreBackend == idempotency.BackendRedis {
		f.note("what a crashed replica ran may run again after up to %s", after+after/6)
		if shortest < after {
			f.warn("shorten hooks.idempotency.takeover_after or lengthen the lease", "%s of %s ends before a crash is noticed: takeover_after (%s) brings nothing there", where, shortest, after)
		}
	}
	f.details = append([]string{"a claim is renewed every " + (shortest / 3).String() + " and may take " + claim.String() +
		"; a stop waits " + cfg.Gateway.DrainTimeout.String() + " for runs that may take " + cfg.Gateway.TurnTimeout.String() + ", and gives the messages of the rest back"}, f.details...)
	return f.done("")
}

// freshness looks at hooks whose senders sign a time: how long a copied request
// passes, and whether its message is known for longer. What the loader refuses
// never comes here.
func freshness(cfg config.Config, source string) health.Check {
	f := newFinding(CheckFreshness, source)
	for _, h := range cfg.Hooks.Hooks {
		if h.Signature == nil {
			continue
		}
		maxAge, maxFuture := h.Signature.Window()
		switch passes := maxAge + maxFuture; {
		case passes == 0:
		case isUnkeyed(h):
			f.warn("set idempotency_key or leave fingerprint on", "hook %s: a request passes for %s and its message is never known: each copy of it runs", h.Path, passes)
		default:
			f.note("hook %s: a request passes for %s, its message is known for %s", h.Path, passes, known(cfg, h))
		}
	}
	return f.done("no hook's sender signs a time")
}

func isUnkeyed(h hooks.Hook) bool {
	return h.IdempotencyKey == "" && h.Fingerprint != nil && h.Fingerprint.Mode == hooks.FingerprintOff
}

// known returns how long a message of a hook is known.
func known(cfg config.Config, h hooks.Hook) time.Duration {
	switch {
	case h.IdempotencyKey == "":
		return h.ContentWindow()
	case h.TTL != nil:
		return *h.TTL
	}
	return cfg.Hooks.Idempotency.TTL
}

// authentication says what guards each hook.
func authentication(cfg config.Config, source string) health.Check {
	f := newFinding(CheckAuthentication, source)
	guarded := 0
	for _, h := range cfg.Hooks.Hooks {
		switch {
		case h.Auth != nil || h.Signature != nil || !cfg.Gateway.AuthToken.IsEmpty():
			guarded++
		case cfg.Gateway.Private():
			f.note("hook %s is open to the programs of this machine", h.Path)
		default:
			f.fail("set gateway.auth_token, or auth or signature of the hook", "hook %s has nothing that guards it, and strangers can reach the gateway: it refuses everybody", h.Path)
		}
		if h.Signature != nil {
			encodings(f, h)
		}
	}
	f.details = append([]string{fmt.Sprintf("%d of %s want a token or signature", guarded, plural(len(cfg.Hooks.Hooks), "hook"))}, f.details...)
	return f.done("")
}

// encodings finds secrets that look as if they stood for other bytes than the
// configuration says: then every signature of the sender is refused.
func encodings(f *finding, h hooks.Hook) {
	const hint = "if the sender's signatures are refused, try the other secret_encoding, see docs/hooks.md"
	plain := h.Signature.Scheme == signature.HMACHex || h.Signature.Scheme == signature.HMACBase64
	for _, s := range h.Signature.Secrets {
		text := s.Reveal()
		key, err := base64.StdEncoding.Strict().DecodeString(strings.TrimPrefix(text, "whsec_"))
		looksEncoded := err == nil && len(key) >= 24 // shorter texts often decode by chance
		switch {
		case plain && strings.HasPrefix(text, "whsec_"):
			f.warn("use scheme standard or stripe for a secret that begins with whsec_", "hook %s: a secret begins with whsec_, which scheme %s takes as it stands", h.Path, h.Signature.Scheme)
		case plain && h.Signature.SecretEncoding != signature.SecretBase64 && looksEncoded:
			f.warn(hint, "hook %s: a secret looks like base64 and is taken as text", h.Path)
		case h.Signature.Scheme == signature.Standard && h.Signature.SecretEncoding == signature.SecretRaw && looksEncoded:
			f.warn(hint, "hook %s: a secret looks like base64 and is taken as text", h.Path)
		}
	}
}
