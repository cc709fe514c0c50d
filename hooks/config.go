// Package hooks turns inbound HTTP requests into messages: a route table,
// authentication over the raw body, templates that name the message, and the
// answers a sender gets.
package hooks

import (
	"time"

	"github.com/oncegate/oncegate/hooks/signature"
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
	Path      string            `yaml:"path"`
	Agent     string            `yaml:"agent,omitempty"` // optional when there is exactly one
	Action    string            `yaml:"action"`          // agent, forward, wake
	Auth      *Tokens           `yaml:"auth,omitempty"`
	Signature *signature.Config `yaml:"signature,omitempty"`

	Event  string   `yaml:"event,omitempty"`  // template; what is looked up in Events
	Events []string `yaml:"events,omitempty"` // the only ones that run; empty: all

	Platform string `yaml:"platform" config:"id"`          // template; key part
	Account  string `yaml:"account" config:"id"`           // template; key part
	Channel  string `yaml:"channel,omitempty" config:"id"` // template; key part, default the path

	IdempotencyKey       string       `yaml:"idempotency_key,omitempty"` // template; key part message_id
	CallerKey            bool         `yaml:"caller_key"`                // the template is the caller's own key: other content gets 422
	AcceptIdempotencyKey bool         `yaml:"accept_idempotency_key"`    // a caller's Idempotency-Key header decides
	RequireKey           bool         `yaml:"require_key"`               // 400 instead of a run without deduplication
	Fingerprint          *Fingerprint `yaml:"fingerprint,omitempty"`     // only without IdempotencyKey

	Session string `yaml:"session,omitempty"` // template
	Message string `yaml:"message,omitempty"` // template; default payload.message, payload.text, else the body

	OnDuplicate message.OnDuplicate `yaml:"on_duplicate"`
	WaitTimeout time.Duration       `yaml:"wait_timeout"`
	Lease       *time.Duration      `yaml:"lease,omitempty"` // default hooks.idempotency.lease
	TTL         *time.Duration      `yaml:"ttl,omitempty"`   // default hooks.idempotency.ttl

	OnUnavailable string `yaml:"on_unavailable,omitempty"` // open, closed; default hooks.idempotency.on_unavailable

	Challenge *Challenge `yaml:"challenge,omitempty"`

	Target          string                   `yaml:"target,omitempty"`           // action forward
	Headers         map[string]secret.String `yaml:"headers,omitempty"`          // sent to the target
	ResponseHeaders []string                 `yaml:"response_headers,omitempty"` // stored and replayed
	SoftFailure     bool                     `yaml:"soft_failure"`               // a 2xx with "success": false or "ok": false has failed
}

// Tokens are what opens a hook: one, or several with names. A caller's
// Idempotency-Key belongs to the name of the token that it came with.
type Tokens struct {
	Only  secret.String            `config:"scalar"`  // auth: TOKEN
	Named map[string]secret.String `config:"entries"` // auth: {NAME: TOKEN}
}

// Fingerprint says how the content of a message identifies it.
type Fingerprint struct {
	Mode   string         `config:"scalar"`         // "off": it does not
	Fields []string       `yaml:"fields,omitempty"` // templates; default: the whole body and the query
	Window *time.Duration `yaml:"window,omitempty"` // how long it is known, from its first delivery
}

// FingerprintOff is the mode in which messages without a key are never
// compared.
const FingerprintOff = "off"

// Challenge answers a sender that asks with a GET whether the path is its own.
type Challenge struct {
	Param       string        `yaml:"param"`                  // the query parameter to echo
	VerifyParam string        `yaml:"verify_param,omitempty"` // the query parameter that holds the token
	VerifyToken secret.String `yaml:"verify_token,omitempty"`
}

// DefaultConfig returns the settings of a file that names none.
func DefaultConfig() Config { return Config{Idempotency: idempotency.DefaultConfig()} }

// DefaultHook returns the settings of an entry that names none.
func DefaultHook() Hook {
	return Hook{
		Action:      message.ActionAgent,
		Platform:    "hook",
		OnDuplicate: message.Conflict,
		WaitTimeout: 10 * time.Second,
		SoftFailure: true,
	}
}
