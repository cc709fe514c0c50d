package client_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/internal/client"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}

func request(peer string, forwarded ...string) *http.Request {
	r := &http.Request{RemoteAddr: peer, Header: http.Header{}}
	if forwarded != nil {
		r.Header["X-Forwarded-For"] = forwarded
	}
	return r
}

func TestAddress(t *testing.T) {
	t.Parallel()
	c := client.New(client.Config{TrustedProxies: proxies, Limit: 1, Window: time.Minute}, time.Now)
	for _, test := range []struct {
		name      string
		peer      string
		forwarded []string
		want      string // empty: none
	}{
		{"a peer alone", "192.0.2.7:1234", nil, "192.0.2.7"},
		{"a stranger's list is his own text", "192.0.2.7:1234", []string{"198.51.100.1"}, "192.0.2.7"},
		{"behind a proxy", "10.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"the leftmost is the client's own text", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.1"}, "198.51.100.1"},
		{"behind two proxies", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.1 , 10.9.9.9"}, "198.51.100.1"},
		{"in several lines", "10.0.0.1:1", []string{"1.1.1.1", "198.51.100.1", "10.9.9.9,10.8.8.8"}, "198.51.100.1"},
		{"trusted all the way", "10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"a proxy that says nothing", "10.0.0.1:1", nil, "10.0.0.1"},
		{"with a port", "10.0.0.1:1", []string{"198.51.100.1:8080"}, "198.51.100.1"},
		{"IPv6 with a port", "[fd00::1]:1", []string{"[2001:db8::7]:443"}, "2001:db8::7"},
		{"IPv6 in brackets", "10.0.0.1:1", []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"IPv4 inside IPv6", "[::ffff:10.0.0.1]:1", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"a zone", "[fe80::1%eth0]:1", nil, "fe80::1"},
		{"what is no address ends at the hop before", "10.0.0.1:1", []string{"198.51.100.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"an empty entry", "10.0.0.1:1", []string{"198.51.100.1,"}, "10.0.0.1"},
		{"an empty line", "10.0.0.1:1", []string{"198.51.100.1", ""}, "10.0.0.1"},
		{"a unix socket", "@", []string{"198.51.100.1"}, ""},
		{"nothing", "", nil, ""},
		{"a long entry", "10.0.0.1:1", []string{strings.Repeat("1", 8<<10)}, "10.0.0.1"},
	} {
		got := ""
		if a := c.Address(request(test.peer, test.forwarded...)); a.IsValid() {
			got = a.String()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestB96_TheListIsWalkedFromTheRightAndNotForEver(t *testing.T) {
	t.Parallel()
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := client.New(client.Config{TrustedProxies: proxies, Limit: 20, Window: time.Minute}, func() time.Time { return clock })
	limited := 0
	for range 100 {
		own := fmt.Sprintf("%d.%d.%d.%d", 1+rand.IntN(9), rand.IntN(256), rand.IntN(256), rand.IntN(256))
		if c.Fail(request("10.0.0.1:1", own+", 198.51.100.1")) > 0 {
			limited++
		}
	}
	if limited != 80 {
		t.Errorf("%d of 100 failures were too many, want 80: what the client writes does not matter", limited)
	}
	long := request("10.0.0.1:1", strings.Repeat("10.0.0.2,", 8<<10)+"198.51.100.1,"+strings.Repeat("10.0.0.3,", 40)+"10.0.0.4")
	if got := c.Address(long).String(); got != "10.0.0.3" {
		t.Errorf("after the last hop that is looked at: %s, want 10.0.0.3", got)
	}
}

func TestALongListCostsNothing(t *testing.T) { // alone: it counts allocations
	c := client.New(client.Config{TrustedProxies: proxies, Limit: 1, Window: time.Minute}, time.Now)
	long := request("10.0.0.1:1", strings.Repeat("10.0.0.2,", 1000)+"10.0.0.2")
	if got := testing.AllocsPerRun(100, func() { c.Address(long) }); got > 0 {
		t.Errorf("a list of 9 KB makes %g allocations", got)
	}
}

func TestFail(t *testing.T) {
	t.Parallel()
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := client.New(client.Config{Limit: 2, Window: time.Minute}, func() time.Time { return clock })
	a, b := request("192.0.2.1:1"), request("192.0.2.2:1")
	for i, step := range []struct {
		r     *http.Request
		later time.Duration
		want  time.Duration
	}{
		{a, 0, 0}, {a, 10 * time.Second, 0}, {a, 10 * time.Second, 40 * time.Second}, {b, 0, 0},
		{a, 39 * time.Second, time.Second}, {a, time.Second, 0}, {a, 0, 0}, {a, 0, time.Minute},
	} {
		clock = clock.Add(step.later)
		if got := c.Fail(step.r); got != step.want {
			t.Errorf("step %d: stay away for %s, want %s", i, got, step.want)
		}
	}
	for i := range 4 { // one customer has all of a /64
		got := c.Fail(request(fmt.Sprintf("[2001:db8::%d]:1", i+1)))
		if (got > 0) != (i >= 2) {
			t.Errorf("failure %d of one network: stay away for %s", i+1, got)
		}
	}
	for i := range 3 { // a unix socket has one client
		if got := c.Fail(request("@")); (got > 0) != (i >= 2) {
			t.Errorf("failure %d without an address: stay away for %s", i+1, got)
		}
	}
}

func TestOldFailuresAreForgottenFirst(t *testing.T) {
	t.Parallel()
	c := client.New(client.Config{Limit: 1, Window: time.Hour}, time.Now)
	nth := func(i int) *http.Request { return request(fmt.Sprintf("11.%d.%d.%d:1", i>>16, i>>8&0xFF, i&0xFF)) }
	for i := range 10_001 {
		c.Fail(nth(i))
	}
	if c.Fail(nth(10_000)) == 0 {
		t.Error("the last client is forgotten")
	}
	if c.Fail(nth(0)) > 0 {
		t.Error("the first of more than 10 000 clients is still remembered")
	}
}

func TestFailuresOfManyAtOnce(t *testing.T) {
	t.Parallel()
	c := client.New(client.Config{Limit: 40, Window: time.Hour}, time.Now)
	var wg sync.WaitGroup
	var limited atomic.Int32
	for range 64 {
		wg.Go(func() {
			if c.Fail(request("192.0.2.1:1")) > 0 {
				limited.Add(1)
			}
		})
	}
	wg.Wait()
	if limited.Load() != 24 {
		t.Errorf("%d were too many, want 24", limited.Load())
	}
}

// FuzzAddress: whatever is sent, the client is the peer, or somebody in the
// list with nobody but trusted proxies right of him.
func FuzzAddress(f *testing.F) {
	f.Add("10.0.0.1:1", "1.1.1.1, 198.51.100.1", "10.0.0.2")
	f.Add("[fd00::1]:1", "[::1]:80,,unknown", "")
	f.Add("@", ",", " ")
	c := client.New(client.Config{TrustedProxies: proxies, Limit: 1, Window: time.Minute}, time.Now)
	alone := func(text string) netip.Addr { return c.Address(request(text)) }
	f.Fuzz(func(t *testing.T, peer, first, second string) {
		got := c.Address(request(peer, first, second))
		possible := []netip.Addr{alone(peer)}
		for _, entry := range slices.Backward(strings.Split(first+","+second, ",")) {
			by := possible[len(possible)-1]
			next := alone(strings.TrimSpace(entry))
			if !next.IsValid() || !slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(by) }) {
				break
			}
			possible = append(possible, next)
		}
		if want := possible[min(len(possible)-1, 32)]; got != want {
			t.Errorf("peer %q, lists %q and %q: %s, want %s", peer, first, second, got, want)
		}
	})
}
