package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// checker reports what is wrong with settings that could be read. A setting
// that could not be has a problem already and is not blamed for its default.
type checker struct {
	*report
	unread []string
}

// check lets every section validate itself, then compares sections.
func check(c Config, r *report) {
	k := checker{report: r}
	for _, p := range r.problems {
		k.unread = append(k.unread, p.Path)
	}
	k.section("gateway", c.Gateway.Validate())
	k.section("gateway.push.redis", c.Gateway.Push.Redis.Validate())
	k.section("gateway.turn_lock", c.Gateway.TurnLock.Validate())
	k.section("hooks.idempotency", c.Hooks.Idempotency.Validate())
	k.section("hooks", c.Hooks.Validate())
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		k.section(join("agents", name), c.Agents[name].Validate())
	}
	k.publicURL(c)
	k.redis(c)
	k.agents(c)
}

// section reports the errors of a Validate method, whose texts begin with the
// key as seen from the section at path.
func (k checker) section(path string, err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			k.section(path, err)
		}
		return
	}
	at, reason := path, err.Error()
	if key, rest, ok := strings.Cut(reason, ": "); ok && !strings.ContainsAny(key, " \t\n") {
		at, reason = path+"."+key, rest
	}
	if !k.isUnread(at) {
		k.add(at, "%s", reason)
	}
}

// isUnread reports whether path, or a section around it, could not be read.
func (k checker) isUnread(path string) bool {
	return slices.ContainsFunc(k.unread, func(unread string) bool { return within(path, unread) })
}

// redis wants a server for what is to be kept in one.
func (k checker) redis(c Config) {
	const server = "gateway.push.redis"
	unread := slices.ContainsFunc(k.unread, func(path string) bool { return within(path, server) })
	if c.Hooks.Idempotency.StoreBackend == idempotency.BackendRedis && !c.Gateway.Push.Redis.Configured() && !unread && !k.isUnread(server) {
		k.add("hooks.idempotency.store_backend", "redis needs a server; add %s.url, as in redis://localhost:6379, or %[1]s.host", server)
	}
}

// publicURL wants a signature over the URL to know which.
func (k checker) publicURL(c Config) {
	for i, h := range c.Hooks.Hooks {
		if h.Signature != nil && h.Signature.SignedURL != "" && c.Gateway.PublicURL == "" && !k.isUnread("gateway.public_url") {
			k.add(item("hooks.hooks", i)+".signature.signed_url", "needs gateway.public_url, the URL that the sender signs")
		}
	}
}

// agents wants every hook to know its agent.
func (k checker) agents(c Config) {
	names := slices.Sorted(maps.Keys(c.Agents))
	list := strings.Join(names, ", ")
	if _, ok := c.Agents[""]; ok {
		k.add(`agents.""`, "an agent must have a name")
	}
	for i, h := range c.Hooks.Hooks {
		path := item("hooks.hooks", i) + ".agent"
		_, exists := c.Agents[h.Agent]
		switch {
		case k.isUnread(path) || len(names) == 0 && k.isUnread("agents"):
		case len(names) == 0 && (h.Action == message.ActionAgent || h.Agent != ""):
			k.add(path, "there is no agent; add a section agents with one, as in agents: {%s: {kind: echo}}", join("", cmp.Or(h.Agent, "assistant")))
		case h.Agent != "" && !exists:
			k.add(path, "no agent is named %q; configured: %s", h.Agent, list)
		case h.Agent == "" && h.Action == message.ActionAgent && len(names) > 1:
			k.add(path, "is needed because there are several agents: %s", list)
		}
	}
}

// inherit names the agent of every hook that has only one to choose from.
func inherit(c *Config) {
	for i := range c.Hooks.Hooks {
		h := &c.Hooks.Hooks[i]
		if h.Agent == "" && h.Action == message.ActionAgent {
			for name := range c.Agents { // several are a problem, see agents
				h.Agent = name
			}
		}
	}
}
