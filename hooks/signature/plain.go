package signature

import (
	"net/http"
	"strings"
	"time"
)

// GitHub's header, see
// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries.
const (
	githubHeader = "X-Hub-Signature-256"
	githubPrefix = "sha256="
)

// plainScheme is a MAC over the body in one header, possibly behind a prefix:
// github, hmac-hex and hmac-base64. While a secret is rotated some senders put
// several into the header, with commas between them.
type plainScheme struct {
	header   string // canonical
	prefix   string
	encoding encoding
	size     int    // of a MAC
	url      string // where the URL stands: "", before, after
}

func (p plainScheme) claims(header http.Header, content Content) []claim {
	c := claim{covered: p.covered(content)}
	for item := range candidates(header[p.header], ",") {
		if text, ok := strings.CutPrefix(item, p.prefix); ok {
			if mac := p.encoding.decode(text, p.size); mac != nil {
				c.signatures = append(c.signatures, mac)
			}
		}
	}
	return []claim{c}
}

func (p plainScheme) covered(content Content) [][]byte {
	switch p.url {
	case URLBefore:
		return [][]byte{[]byte(content.URL), content.Body}
	case URLAfter:
		return [][]byte{content.Body, []byte(content.URL)}
	}
	return [][]byte{content.Body}
}

func (p plainScheme) sign(header http.Header, content Content, k *key, _ time.Time) {
	m := k.sum(p.covered(content)...)
	header[p.header] = []string{p.prefix + p.encoding.encode(m.bytes())}
}
