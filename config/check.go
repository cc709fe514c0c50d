package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
	"github.com/oncegate/oncegate/turnlock"
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
	k.section("sessions", c.Sessions.Validate())
	k.section("hooks.idempotency", c.Hooks.Idempotency.Validate())
	k.section("hooks", c.Hooks.Validate())
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		k.section(join("agents", name), c.Agents[name].Validate())
	}
	k.publicURL(c)
	k.redis(c)
	k.waits(c)
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
	if c.Gateway.Push.Redis.Configured() || unread || k.isUnread(server) {
		return
	}
	for _, kept := range []struct{ path, backend string }{
		{"gateway.turn_lock.backend", c.Gateway.TurnLock.Backend},
		{"sessions.backend", c.Sessions.Backend},
		{"hooks.idempotency.store_backend", c.Hooks.Idempotency.StoreBackend},
	} {
		if _, written := k.lines[kept.path]; written && kept.backend == idempotency.BackendRedis {
			k.add(kept.path, "redis needs a server; add %s.url, as in redis://localhost:6379, or %[1]s.host", server)
		}
	}
}

// waits compares how long a turn may take with how long others wait for it.
func (k checker) waits(c Config) {
	const maxWait, turnTimeout = "gateway.turn_lock.max_wait", "gateway.turn_timeout"
	turn := c.Gateway.TurnTimeout
	if k.isUnread(turnTimeout) || turn <= 0 {
		return
	}
	if wait := c.Gateway.TurnLock.MaxWait; wait < turn && !k.isUnread(maxWait) {
		k.add(maxWait, "%s is shorter than %s (%s): a message would give up before the turn in front of it may end", wait, turnTimeout, turn)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		path := join(join("agents", name), "timeout")
		if timeout := c.Agents[name].Timeout; timeout != nil && *timeout > turn && !k.isUnread(path) {
			k.add(path, "%s is longer than %s (%s), which would end the run first", *timeout, turnTimeout, turn)
		}
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
		case len(names) == 0 && (h.Action != message.ActionForward || h.Agent != ""):
			k.add(path, "there is no agent; add a section agents with one, as in agents: {%s: {kind: echo}}", join("", cmp.Or(h.Agent, "assistant")))
		case h.Agent != "" && !exists:
			k.add(path, "no agent is named %q; configured: %s", h.Agent, list)
		case h.Agent == "" && h.Action != message.ActionForward && len(names) > 1:
			k.add(path, "is needed because there are several agents: %s", list)
		}
	}
}

// inherit fills in what follows from other settings: the agent of every hook
// that has only one to choose from, the place of sessions, and the longest wait
// where turns may be long.
func inherit(c *Config, r *report) {
	if _, written := r.lines["gateway.turn_lock.max_wait"]; !written {
		c.Gateway.TurnLock.MaxWait = turnlock.LongestWait(c.Gateway.TurnTimeout)
	}
	if c.Sessions.Backend == "" {
		c.Sessions.Backend = agent.BackendSQLite
		if c.Gateway.TurnLock.Backend == turnlock.BackendRedis {
			c.Sessions.Backend = agent.BackendRedis
		}
	}
	for i := range c.Hooks.Hooks {
		h := &c.Hooks.Hooks[i]
		if h.Agent == "" && h.Action != message.ActionForward && len(c.Agents) == 1 {
			for name := range c.Agents {
				h.Agent = name
			}
		}
	}
}
