package redisclient

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// connections dials for a client, and knows what is open. After a failover
// behind one name the connections to the demoted server stay healthy, and the
// client would keep each until it has said READONLY itself, at the beginning of
// an answer. Here all of them are given up at once. It is safe for concurrent
// use.
type connections struct {
	dialer net.Dialer
	tls    func() (*tls.Config, error) // nil: not encrypted

	ages atomic.Uint64 // grows whenever all are given up

	mu   sync.Mutex
	open map[*connection]struct{}
}

func newConnections(dialTimeout time.Duration) *connections {
	return &connections{dialer: net.Dialer{Timeout: dialTimeout}, open: make(map[*connection]struct{})}
}

// age names the connections that are dialled from now on until the next giveUp.
func (c *connections) age() uint64 { return c.ages.Load() }

// dial returns a connection that giveUp knows.
func (c *connections) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	for {
		age := c.age()
		raw, err := c.connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if conn := c.keep(raw, age); conn != nil {
			return conn, nil
		}
		// It was given up while it was being made. Nothing of it is lost.
		_ = raw.Close()
	}
}

// connect bounds the handshake by ctx as well, which the client's own dialer
// does not.
func (c *connections) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if c.tls == nil {
		return c.dialer.DialContext(ctx, network, addr)
	}
	settings, err := c.tls()
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{NetDialer: &c.dialer, Config: settings}
	return d.DialContext(ctx, network, addr)
}

func (c *connections) keep(raw net.Conn, age uint64) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.age() != age {
		return nil
	}
	conn := &connection{Conn: raw, of: c}
	c.open[conn] = struct{}{}
	return conn
}

// giveUp closes every connection that was dialled at age or before, unless that
// has been done already: of many calls that meet the same demoted server only
// the first has something to close. A command that another caller has under way
// on one of them is sent again by the client.
func (c *connections) giveUp(age uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ages.CompareAndSwap(age, age+1) {
		return
	}
	for conn := range c.open {
		conn.closed.Store(true)
		// What was written has been answered, or will be sent again.
		_ = conn.Conn.Close()
	}
	clear(c.open)
}

// connection is one that giveUp can close. The client's pool looks at the
// socket before it hands a connection out.
type connection struct {
	net.Conn
	of     *connections
	closed atomic.Bool
}

var _ syscall.Conn = (*connection)(nil)

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn.
func (c *connection) SyscallConn() (syscall.RawConn, error) {
	if c.closed.Load() {
		return nil, net.ErrClosed
	}
	if socket, ok := c.Conn.(syscall.Conn); ok {
		return socket.SyscallConn()
	}
	return encrypted{}, nil
}

// encrypted is the socket under TLS. What waits to be read there need not be
// data, so that a look at it would say nothing.
type encrypted struct{}

func (encrypted) Control(func(fd uintptr)) error           { return nil }
func (encrypted) Read(func(fd uintptr) (done bool)) error  { return nil }
func (encrypted) Write(func(fd uintptr) (done bool)) error { return nil }
