package hooks

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/hooks/template"
	"github.com/oncegate/oncegate/message"
)

// defaultWindow is how long content that identifies itself stays known, from
// its first delivery. It is short because two people may say the same.
const defaultWindow = 5 * time.Minute

const maxCallerKey = 255

var errCallerKey = errors.New("hooks: unusable Idempotency-Key header")

// identity is what makes a delivery the same message as another one.
type identity struct {
	key       message.Key
	byCaller  bool     // the key is the caller's own
	byContent bool     // the key is the content itself, known for the hook's window
	missing   []string // references without which there is no key
}

// identify finds the key of a message: the caller's own, the template's, or,
// on a hook without a template, the content. A part that is missing means no
// key at all, never a shorter one that strangers could share.
func (rt *route) identify(d *delivery) (identity, error) {
	id, err := rt.messageID(d)
	if err != nil || id.key.ID == "" {
		return id, err
	}
	for _, p := range []struct {
		template template.Template
		part     *string
	}{{rt.platform, &id.key.Platform}, {rt.account, &id.key.Account}, {rt.channel, &id.key.Channel}} {
		text, missing := p.template.Render(&d.Inputs)
		*p.part = text
		id.missing = append(id.missing, missing...)
	}
	if len(id.missing) > 0 {
		return identity{missing: id.missing}, nil
	}
	return id, nil
}

func (rt *route) messageID(d *delivery) (identity, error) {
	if rt.acceptCallerKey {
		key, given, err := callerKey(d.Request.Header)
		if err != nil {
			return identity{}, err
		}
		if given {
			return identity{key: message.Key{ID: d.place() + "key:" + d.tokenName + ":" + key}, byCaller: true}, nil
		}
	}
	switch {
	case !rt.id.IsEmpty():
		text, missing := rt.id.Render(&d.Inputs)
		if len(missing) > 0 {
			return identity{missing: missing}, nil
		}
		if !rt.id.ReadsPayload() {
			text = d.place() + text
		}
		return identity{key: message.Key{ID: rt.apart(text)}, byCaller: rt.callerKey}, nil
	case rt.contentOff:
		return identity{}, nil
	case d.Payload == nil:
		return identity{missing: []string{"payload"}}, nil
	}
	return rt.contentID(d), nil
}

// apart keeps the ids of a template out of the namespace of callers' keys, where
// a hook has both: nobody takes a key of a caller by writing it into a payload.
// An id that looks as if it had been kept apart already is so once more.
func (rt *route) apart(id string) string {
	if !rt.acceptCallerKey {
		return id
	}
	for _, taken := range []string{"key:", "[", "id:"} {
		if strings.HasPrefix(id, taken) {
			return "id:" + id
		}
	}
	return id
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
// chosen fields, or of the payload's canonical form. For the latter a query
// string is part of what was said, unless the sender signs the request without
// it: whoever copies one could write another.
//
// What two hooks are told, or two senders with tokens of their own say, is
// never the same message.
func (rt *route) contentID(d *delivery) identity {
	var space [2048]byte
	buf := appendSized(appendSized(space[:0], rt.path), d.tokenName)
	if len(rt.fields) == 0 {
		buf = d.Payload.AppendCanonical(buf)
		if query := d.Request.URL.RawQuery; query != "" && (!rt.guard.isSigned() || rt.guard.signsURL) {
			buf = append(append(buf, '?'), query...)
		}
	}
	ofPayload := len(rt.fields) == 0
	for _, field := range rt.fields {
		text, missing := field.Render(&d.Inputs)
		if len(missing) > 0 {
			return identity{missing: missing}
		}
		buf = appendSized(buf, text)
		ofPayload = ofPayload || field.ReadsPayload()
	}
	if !ofPayload {
		buf = appendSized(buf, d.place())
	}
	sum := sha256.Sum256(buf)
	return identity{key: message.Key{ID: "fp:" + hex.EncodeToString(sum[:])}, byContent: true}
}

// appendSized keeps "ab", "c" apart from "a", "bc" by the length in front.
func appendSized(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// digest returns the fingerprint that tells a redelivery from other content
// under the same key. None of the parts can hold the line feed between them.
func (rt *route) digest(d *delivery) message.Fingerprint {
	var space [256]byte
	buf := append(append(space[:0], d.Request.Method...), ' ')
	buf = append(append(buf, Prefix...), rt.path...)
	buf = append(append(buf, '?'), d.Request.URL.RawQuery...)
	buf = append(buf, '\n')
	h := sha256.New()
	h.Write(buf)
	h.Write(d.body)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return message.Fingerprint(sum[:len(message.Fingerprint{})])
}

// place tells the messages of a batch apart where what names them is the same
// for the whole request.
func (d *delivery) place() string {
	if d.index < 0 {
		return ""
	}
	return "[" + strconv.Itoa(d.index) + "]:"
}
