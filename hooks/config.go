// Package hooks turns inbound HTTP requests into messages: a route table,
// authentication over the raw body, templates that name the message, and the
// answers a sender gets.
package hooks

import (
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

// Config is the section hooks of gateway.yaml.
type Config struct {
	Idempotency idempotency.Config `yaml:"idempotency"`
	Hooks       []Hook             `yaml:"hooks"`
}

// Hook is one route, POST /hooks/<path>. The comment "template" marks a text
// that may hold {{ payload.… }}, {{ header.… }} and {{ query.… }}.
type Hook struct {
	Path      string         `yaml:"path"`
	Agent     string         `yaml:"agent,omitempty"` // optional when there is exactly one
	Action    string         `yaml:"action"`
	Auth      *secret.String `yaml:"auth,omitempty"` // bearer token
	Signature *Signature     `yaml:"signature,omitempty"`

	Platform string `yaml:"platform" config:"id"`          // template; key part
	Account  string `yaml:"account" config:"id"`           // template; key part
	Channel  string `yaml:"channel,omitempty" config:"id"` // template; key part, default the path

	IdempotencyKey       string `yaml:"idempotency_key,omitempty"` // template; key part message_id
	AcceptIdempotencyKey bool   `yaml:"accept_idempotency_key"`    // a caller's Idempotency-Key header decides
	RequireKey           bool   `yaml:"require_key"`               // 400 instead of a run without deduplication

	Session string `yaml:"session,omitempty"` // template
	Message string `yaml:"message,omitempty"` // template; default payload.message, payload.text, else the body

	OnDuplicate message.OnDuplicate `yaml:"on_duplicate"`
	WaitTimeout time.Duration       `yaml:"wait_timeout"`
	Lease       *time.Duration      `yaml:"lease,omitempty"` // default hooks.idempotency.lease
	TTL         *time.Duration      `yaml:"ttl,omitempty"`   // default hooks.idempotency.ttl

	Target          string                   `yaml:"target,omitempty"`           // action forward
	Headers         map[string]secret.String `yaml:"headers,omitempty"`          // sent to the target
	ResponseHeaders []string                 `yaml:"response_headers,omitempty"` // stored and replayed
}

// Signature says how a sender signs the body.
type Signature struct {
	Scheme  string          `yaml:"scheme"`
	Secrets []secret.String `yaml:"secrets"` // any may match, so that they can be rotated
}

// SchemeGitHub is HMAC-SHA256 over the raw body in X-Hub-Signature-256, see
// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries.
const SchemeGitHub = "github"

// DefaultConfig returns the settings of a file that names none.
func DefaultConfig() Config { return Config{Idempotency: idempotency.DefaultConfig()} }

// DefaultHook returns the settings of an entry that names none.
func DefaultHook() Hook {
	return Hook{
		Action:      message.ActionAgent,
		Platform:    "hook",
		OnDuplicate: message.Conflict,
		WaitTimeout: 10 * time.Second,
	}
}
