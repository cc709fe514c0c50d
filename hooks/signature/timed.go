package signature

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// slackScheme is Slack's, see
// https://docs.slack.dev/authentication/verifying-requests-from-slack.
type slackScheme struct{}

const (
	slackHeader = "X-Slack-Signature"
	slackTime   = "X-Slack-Request-Timestamp"
	slackPrefix = "v0="
)

func (slackScheme) covered(signed string, content Content) [][]byte {
	return [][]byte{[]byte("v0:" + signed + ":"), content.Body}
}

func (s slackScheme) claims(header http.Header, content Content) []claim {
	text := only(header, slackTime)
	signed, ok := timestamp(text)
	if !ok {
		return nil
	}
	c := claim{covered: s.covered(text, content), signed: signed, timed: true}
	for item := range candidates(header[slackHeader], ",") {
		if digits, ok := strings.CutPrefix(item, slackPrefix); ok {
			if mac := (hexEncoding{}).decode(digits, sha256.Size); mac != nil {
				c.signatures = append(c.signatures, mac)
			}
		}
	}
	return []claim{c}
}

func (s slackScheme) sign(header http.Header, content Content, k *key, now time.Time) {
	text := unix(now)
	m := k.sum(s.covered(text, content)...)
	header[slackTime] = []string{text}
	header[slackHeader] = []string{slackPrefix + hexEncoding{}.encode(m.bytes())}
}

// stripeScheme is Stripe's, see https://docs.stripe.com/webhooks/signature. A
// line of the header has a time of its own, and a signature for each secret
// that is in use; versions other than v1 are not for us.
type stripeScheme struct{}

const stripeHeader = "Stripe-Signature"

// maxLines bounds the times of one request, since each is hashed with the body.
const maxLines = 4

func (stripeScheme) covered(signed string, content Content) [][]byte {
	return [][]byte{[]byte(signed + "."), content.Body}
}

func (s stripeScheme) claims(header http.Header, content Content) []claim {
	lines := header[stripeHeader]
	if len(lines) > maxLines || isTooLong(lines, ",") {
		return nil
	}
	var all []claim
	for _, line := range lines {
		if c, ok := s.claim(line, content); ok {
			all = append(all, c)
		}
	}
	return all
}

func (s stripeScheme) claim(line string, content Content) (claim, bool) {
	c := claim{timed: true}
	for item := range strings.SplitSeq(line, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		switch name {
		case "t":
			signed, ok := timestamp(value)
			if !ok || c.covered != nil {
				return c, false
			}
			c.signed, c.covered = signed, s.covered(value, content)
		case "v1":
			if mac := (hexEncoding{}).decode(value, sha256.Size); mac != nil {
				c.signatures = append(c.signatures, mac)
			}
		}
	}
	return c, c.covered != nil
}

func (s stripeScheme) sign(header http.Header, content Content, k *key, now time.Time) {
	text := unix(now)
	m := k.sum(s.covered(text, content)...)
	header[stripeHeader] = []string{"t=" + text + ",v1=" + hexEncoding{}.encode(m.bytes())}
}

// standardScheme is that of Standard Webhooks, see
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md,
// also under the header names of Svix, from which it comes. Versions other than
// v1 are ignored: v1a is asymmetric. Where an id with dots ends cannot be seen
// in what is signed; the specification has senders let no user choose one.
type standardScheme struct{}

// The sets of header names. A request is verified by the first set that is
// complete, never by parts of two.
var standardSets = []string{"Webhook-", "Svix-"}

func (standardScheme) covered(id, signed string, content Content) [][]byte {
	return [][]byte{[]byte(id + "." + signed + "."), content.Body}
}

func (s standardScheme) claims(header http.Header, content Content) []claim {
	for _, set := range standardSets {
		if len(header[set+"Signature"]) > 0 && len(header[set+"Id"]) > 0 && len(header[set+"Timestamp"]) > 0 {
			return s.claimsOf(set, header, content)
		}
	}
	return nil
}

func (s standardScheme) claimsOf(set string, header http.Header, content Content) []claim {
	id, text := only(header, set+"Id"), only(header, set+"Timestamp")
	signed, ok := timestamp(text)
	if id == "" || !ok || hasOtherID(header, id) {
		return nil
	}
	c := claim{covered: s.covered(id, text, content), signed: signed, timed: true}
	for item := range candidates(header[set+"Signature"], " ") {
		// A proxy that joins lines leaves a comma behind all but the last.
		version, value, _ := strings.Cut(strings.TrimSuffix(item, ","), ",")
		if version != "v1" {
			continue
		}
		if mac := (base64Encoding{}).decode(value, sha256.Size); mac != nil {
			c.signatures = append(c.signatures, mac)
		}
	}
	return []claim{c}
}

// hasOtherID reports whether a set names another id than the one that is
// verified. A hook may know messages by either header, so that a copied request
// with an id of its own choice in the other one would run again.
func hasOtherID(header http.Header, verified string) bool {
	for _, set := range standardSets {
		for _, id := range header[set+"Id"] {
			if id != verified {
				return true
			}
		}
	}
	return false
}

// sign keeps an id that is there already, so that a message can be sent twice.
func (s standardScheme) sign(header http.Header, content Content, k *key, now time.Time) {
	id, text := cmp.Or(header.Get("Webhook-Id"), header.Get("Svix-Id"), "msg_"+rand.Text()), unix(now)
	m := k.sum(s.covered(id, text, content)...)
	if len(header["Svix-Id"]) > 0 {
		header["Svix-Id"] = []string{id} // two ids are refused
	}
	header["Webhook-Id"] = []string{id}
	header["Webhook-Timestamp"] = []string{text}
	header["Webhook-Signature"] = []string{"v1," + base64Encoding{}.encode(m.bytes())}
}

// only returns the value of a header that occurs once, else nothing: a proxy in
// front may have looked at another one.
func only(header http.Header, name string) string {
	if values := header[name]; len(values) == 1 {
		return values[0]
	}
	return ""
}

// maxTimestamp is the length of seconds until the year 5138.
const maxTimestamp = 11

// timestamp reads seconds since 1970 in plain digits.
func timestamp(text string) (time.Time, bool) {
	if len(text) > maxTimestamp || strings.ContainsFunc(text, func(r rune) bool { return r < '0' || r > '9' }) {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(seconds, 0), err == nil
}

func unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
