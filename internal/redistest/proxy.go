package redistest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy stands before a server and makes faults. It passes bytes on as they
// come, so it fits any protocol. Faults apply to open connections too, and
// last until they are taken back. It is safe for concurrent use.
type Proxy struct {
	t      testing.TB
	target string
	addr   string
	work   sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at every change of a fault
	listener net.Listener
	conns    map[net.Conn]struct{}
	delay    time.Duration
	drop     bool
	frozen   bool
	held     bool // requests alone are frozen
	cut      []byte
	cuts     int
	old, new []byte
	closed   bool
}

// NewProxy listens on a free port of 127.0.0.1 and passes connections on to
// target: host:port, or the path of a unix socket.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, target: target, addr: "127.0.0.1:0", changed: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	p.Accept()
	t.Cleanup(p.close)
	return p
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.addr }

// Delay holds every reply back for d; 0 ends it.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Drop lets requests through and loses their replies.
func (p *Proxy) Drop(on bool) { p.change(func() { p.drop = on }) }

// Freeze stops both directions; what was sent meanwhile moves on afterwards.
func (p *Proxy) Freeze(on bool) { p.change(func() { p.frozen = on }) }

// FreezeRequests stops what clients send; replies still pass. What was sent
// meanwhile moves on afterwards.
func (p *Proxy) FreezeRequests(on bool) { p.change(func() { p.held = on }) }

// Rewrite replaces text in replies; an empty text ends it. The text must fall
// into one write of the server. A client of Redis notices another length only
// where the reply does not say its own, as in an error.
func (p *Proxy) Rewrite(text, replacement string) {
	p.change(func() { p.old, p.new = []byte(text), []byte(replacement) })
}

// CutReplies is CutReply for the next n requests of whatever text, each of
// which is what a client writes at once.
func (p *Proxy) CutReplies(n int) { p.change(func() { p.cuts = n }) }

// CutReply lets the next request that contains text through to the server
// and, once its reply arrives, resets the connection instead of delivering
// it. It does so once. The text must fall into one write of the client.
func (p *Proxy) CutReply(text string) { p.change(func() { p.cut = []byte(text) }) }

// Reset ends every open connection with a reset.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
}

// Refuse ends every open connection, and new ones are refused.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	l := p.listener
	p.listener = nil
	p.mu.Unlock()
	if l != nil {
		// Nothing is read from or written to a listener that could be lost.
		_ = l.Close()
	}
	p.Reset()
}

// Accept takes connections again, at the same address.
func (p *Proxy) Accept() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr, p.listener = l.Addr().String(), l
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(c) })
		}
	})
}

func (p *Proxy) change(set func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) close() {
	p.change(func() { p.closed = true })
	p.Refuse()
	p.work.Wait()
}

// serve passes one connection on until either side ends it.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	network := "tcp"
	if strings.HasPrefix(p.target, "/") {
		network = "unix"
	}
	server, err := net.Dial(network, p.target)
	if err != nil {
		reset(client)
		return
	}
	defer server.Close()
	if !p.track(client) {
		return
	}
	defer p.untrack(client)

	link := &link{proxy: p, client: client, server: server}
	var replies sync.WaitGroup
	replies.Go(func() {
		defer client.Close()
		link.pass(client, server, link.reply)
	})
	link.pass(server, client, link.request)
	server.Close()
	replies.Wait()
}

func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) untrack(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// errCut ends a connection that Proxy.CutReply chose.
var errCut = errors.New("cut")

// link is one connection through a proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	mu  sync.Mutex
	cut bool // the next reply is the one to cut
}

// pass copies src to dst; before returns what is to go on of a chunk, or an
// error to end the connection.
func (l *link) pass(dst io.Writer, src io.Reader, before func([]byte) ([]byte, error)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		send, err := before(buf[:n])
		if err != nil {
			reset(l.client)
			return
		}
		if len(send) == 0 {
			continue
		}
		if _, err := dst.Write(send); err != nil {
			return
		}
	}
}

func (l *link) request(chunk []byte) ([]byte, error) {
	p := l.proxy
	p.waitWhile(func() bool { return p.frozen || p.held })
	p.mu.Lock()
	defer p.mu.Unlock()
	named := p.cut != nil && bytes.Contains(chunk, p.cut)
	if named {
		p.cut = nil
	}
	if named || p.cuts > 0 {
		p.cuts = max(0, p.cuts-1)
		l.mu.Lock()
		l.cut = true
		l.mu.Unlock()
	}
	return chunk, nil
}

func (l *link) reply(chunk []byte) ([]byte, error) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		return nil, errCut
	}
	p := l.proxy
	if !p.holdBack() {
		return nil, nil
	}
	p.waitWhile(func() bool { return p.frozen })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drop || p.closed {
		return nil, nil
	}
	if len(p.old) > 0 {
		return bytes.ReplaceAll(chunk, p.old, p.new), nil
	}
	return chunk, nil
}

// holdBack waits out the delay and reports whether the proxy still stands.
func (p *Proxy) holdBack() bool {
	p.mu.Lock()
	d, closed := p.delay, p.closed
	p.mu.Unlock()
	if closed || d == 0 {
		return !closed
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		p.mu.Lock()
		changed, closed := p.changed, p.closed
		p.mu.Unlock()
		if closed {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-changed:
		}
	}
}

// waitWhile blocks until condition, which is called under the lock, is false
// or the proxy ends.
func (p *Proxy) waitWhile(condition func() bool) {
	for {
		p.mu.Lock()
		wait, changed := condition() && !p.closed, p.changed
		p.mu.Unlock()
		if !wait {
			return
		}
		<-changed
	}
}

// reset closes a connection so that its peer sees a reset, not an end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		// On a connection that is gone already there is nothing to reset.
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
