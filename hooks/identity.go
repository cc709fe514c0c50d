package hooks

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"github.com/oncegate/oncegate/message"
)

// contentWindow is how long content that identifies itself stays known,
// from its first delivery. It is short because two people may say the same.
const contentWindow = 5 * time.Minute

const maxCallerKey = 255

var errCallerKey = errors.New("hooks: unusable Idempotency-Key header")

// identity is what makes a delivery the same message as another one.
type identity struct {
	key       message.Key
	byCaller  bool     // the key is the caller's Idempotency-Key
	byContent bool     // the key is the content itself, known for contentWindow
	missing   []string // references without which there is no key
}

// identify finds the key of a request: the caller's own, the template's, or,
// on a hook without a template, the content. A part that is missing means no
// key at all, never a shorter one that strangers could share.
func (rt *route) identify(in *inputs) (identity, error) {
	id, err := rt.messageID(in)
	if err != nil || id.key.ID == "" {
		return id, err
	}
	for _, p := range []struct {
		template template
		part     *string
	}{{rt.platform, &id.key.Platform}, {rt.account, &id.key.Account}, {rt.channel, &id.key.Channel}} {
		text, missing := p.template.render(in)
		*p.part = text
		id.missing = append(id.missing, missing...)
	}
	if len(id.missing) > 0 {
		return identity{missing: id.missing}, nil
	}
	return id, nil
}

func (rt *route) messageID(in *inputs) (identity, error) {
	if rt.acceptCallerKey {
		key, given, err := callerKey(in.request.Header)
		if err != nil {
			return identity{}, err
		}
		if given {
			// The empty part between the colons is the name of the token: a hook has only one.
			return identity{key: message.Key{ID: "key::" + key}, byCaller: true}, nil
		}
	}
	if !rt.id.isEmpty() {
		text, missing := rt.id.render(in)
		if len(missing) > 0 {
			return identity{missing: missing}, nil
		}
		return identity{key: message.Key{ID: text}}, nil
	}
	if in.payload == nil {
		return identity{missing: []string{"payload"}}, nil
	}
	return identity{key: message.Key{ID: contentID(in)}, byContent: true}, nil
}

// callerKey returns the Idempotency-Key header, if one was sent.
func callerKey(header http.Header) (key string, given bool, err error) {
	values, given := header["Idempotency-Key"]
	if !given {
		return "", false, nil
	}
	if len(values) != 1 || values[0] == "" || len(values[0]) > maxCallerKey {
		return "", true, errCallerKey
	}
	for _, c := range []byte(values[0]) {
		if c < ' ' || c > '~' {
			return "", true, errCallerKey
		}
	}
	return values[0], true, nil
}

// contentID returns the id of a message that has no other: a digest of the
// payload's canonical form. A query string is part of what was said.
func contentID(in *inputs) string {
	var space [2048]byte
	buf := in.payload.appendCanonical(space[:0], canonicalDepth)
	if query := in.request.URL.RawQuery; query != "" {
		buf = append(append(buf, '?'), query...)
	}
	sum := sha256.Sum256(buf)
	return "fp:" + hex.EncodeToString(sum[:])
}

// digest returns the fingerprint that tells a redelivery from other content
// under the same key. None of the parts can hold the line feed between them.
func digest(r *http.Request, body []byte) message.Fingerprint {
	var space [256]byte
	buf := append(append(space[:0], r.Method...), ' ')
	buf = append(append(buf, r.URL.EscapedPath()...), '?')
	buf = append(append(buf, r.URL.RawQuery...), '\n')
	h := sha256.New()
	h.Write(buf)
	h.Write(body)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return message.Fingerprint(sum[:len(message.Fingerprint{})])
}
