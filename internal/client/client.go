// Package client tells who sent a request, and who has failed to authenticate
// too often. It promises no more than addresses can: whoever has many of them
// has as many tries.
package client

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxClients bounds the addresses that are remembered; the ones that have
	// failed longest ago are forgotten first.
	maxClients = 10_000
	// maxHops bounds the part of an X-Forwarded-For list that is looked at.
	maxHops = 32
)

// Config is what New needs.
type Config struct {
	TrustedProxies []netip.Prefix // whose X-Forwarded-For is believed
	Limit          int            // failures that a client may have within Window; at least 1
	Window         time.Duration  // from the first of them
}

// Clients counts failures per client. It is safe for concurrent use, bounded
// in memory, and forgets everything with the process.
type Clients struct {
	cfg Config
	now func() time.Time

	mu       sync.Mutex
	failures *simplelru.LRU[netip.Prefix, failures]
}

// failures are those of one client within a window.
type failures struct {
	since time.Time
	count int
}

// New returns Clients that have seen nobody fail.
func New(cfg Config, now func() time.Time) *Clients {
	cache, err := simplelru.NewLRU[netip.Prefix, failures](maxClients, nil)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &Clients{cfg: cfg, now: now, failures: cache}
}

// Address returns the client's address: the peer's, or, if that is a trusted
// proxy, the first one in X-Forwarded-For, from the right, that is none. What
// stands further left is the client's own text. An entry that is no address
// ends the walk at the proxy that wrote it. The zero Addr is a peer without
// one, such as that of a unix socket.
func (c *Clients) Address(r *http.Request) netip.Addr {
	address := parse(r.RemoteAddr)
	lines := r.Header["X-Forwarded-For"]
	hops := 0
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			if !c.isTrusted(address) || hops == maxHops {
				return address
			}
			hops++
			var entry string
			entry, rest, more = cutLast(rest)
			next := parse(strings.TrimSpace(entry))
			if !next.IsValid() {
				return address
			}
			address = next
		}
	}
	return address
}

// cutLast takes the last item off a list.
func cutLast(list string) (item, rest string, more bool) {
	i := strings.LastIndexByte(list, ',')
	if i < 0 {
		return list, "", false
	}
	return list[i+1:], list[:i], true
}

func (c *Clients) isTrusted(address netip.Addr) bool {
	for _, p := range c.cfg.TrustedProxies {
		if p.Contains(address) {
			return true
		}
	}
	return false
}

// longest is how much room an address with its port and zone takes at most.
const longest = 80

// parse reads an address with or without a port.
func parse(text string) netip.Addr {
	if len(text) > longest {
		return netip.Addr{}
	}
	var address netip.Addr
	if strings.Count(text, ":") == 1 || strings.Contains(text, "]:") {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}
		}
		address = withPort.Addr()
	} else {
		var err error
		if address, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err != nil {
			return netip.Addr{}
		}
	}
	return address.Unmap().WithZone("")
}

// Fail counts a failed authentication of r's client. It returns 0, or, once
// there were more than Limit within Window, how long until that window ends.
func (c *Clients) Fail(r *http.Request) (retryAfter time.Duration) {
	who := network(c.Address(r))
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	f, known := c.failures.Get(who)
	if !known || now.Sub(f.since) >= c.cfg.Window {
		f = failures{since: now}
	}
	f.count++
	c.failures.Add(who, f)
	if f.count <= c.cfg.Limit {
		return 0
	}
	return c.cfg.Window - now.Sub(f.since)
}

// network returns what counts as one client: an IPv4 address, or the 64 bits
// of an IPv6 address that a provider hands out as a whole.
func network(address netip.Addr) netip.Prefix {
	bits := 64
	if address.Is4() {
		bits = 32
	}
	p, _ := address.Prefix(bits) // the zero Addr gives the zero Prefix
	return p
}
