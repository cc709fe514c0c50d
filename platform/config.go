package platform

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
)

// Webhook is the platform of programs: each reply is posted to a URL.
const Webhook = "webhook"

var platforms = []string{Webhook}

// Config is one entry of the section channels of gateway.yaml.
type Config struct {
	Platform string         `yaml:"platform"`
	URL      string         `yaml:"url,omitempty"`    // webhook: where replies are posted
	Secret   *secret.String `yaml:"secret,omitempty"` // webhook: signs them; nil: they are not signed
}

// Validate returns every problem, joined; each begins with the key's name and
// holds nothing of a secret.
func (c Config) Validate() error {
	if !slices.Contains(platforms, c.Platform) {
		return fmt.Errorf("platform: %q is not one of %s", c.Platform, strings.Join(platforms, ", "))
	}
	return errors.Join(checkURL(c.URL), c.checkSecret())
}

// checkURL never quotes the URL: it may hold a password.
func checkURL(text string) error {
	if text == "" {
		return errors.New("url: is required with platform webhook, as in https://receiver.example.com/replies")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("url: is not an http or https URL with a host")
	case u.User != nil:
		return errors.New("url: holds a user or password, which would be printed; let the receiver check the signature that secret makes")
	case u.Fragment != "":
		return errors.New("url: has a fragment, which is never sent")
	}
	return nil
}

func (c Config) checkSecret() error {
	if c.Secret == nil || c.Signature().Validate() == nil {
		return nil
	}
	return errors.New("secret: is not one of Standard Webhooks: at least 8 bytes in base64, with or without whsec_ before and with nothing around; openssl rand -base64 24 makes one")
}

// Signature returns how a webhook with a Secret is signed.
func (c Config) Signature() signature.Config {
	return signature.Config{Scheme: signature.Standard, Secrets: []secret.String{*c.Secret}}
}

// webSocket is what deliver_to names a WebSocket session by, ws:<session>.
const webSocket = "ws"

// CheckName says what is wrong with the name of a channel, if anything. A name
// means the same in ParseTarget and in the path of a URL.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a channel must have a name")
	case name == webSocket:
		return fmt.Errorf("%q cannot be the name of a channel: in deliver_to it stands for a WebSocket session", name)
	case name == "." || name == ".." || strings.ContainsFunc(name, isOutsideNames):
		return fmt.Errorf("%q cannot be the name of a channel: it may hold only letters, digits, \".\", \"_\" and \"-\"", name)
	}
	return nil
}

func isOutsideNames(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r))
}

// ParseTarget splits deliver_to, "channel:target", at its first colon. A target
// may hold colons itself.
func ParseTarget(text string) (channel, target string, err error) {
	channel, target, _ = strings.Cut(text, ":")
	if channel == "" || target == "" {
		return "", "", fmt.Errorf("%q is not the name of a channel, a colon and a target, as in support:123456", text)
	}
	return channel, target, nil
}
