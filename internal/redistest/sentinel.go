package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/internal/redistest/redisproc"
)

// Master is what the Sentinel of StartSentinel calls its primary.
const Master = "main"

// Sentinel is a Redis Sentinel that watches a primary and its one replica.
type Sentinel struct {
	t       testing.TB
	addr    string
	client  *redis.SentinelClient
	servers map[string]*Server // by address
}

// StartSentinel starts a primary and a replica, with args as StartTCP takes
// them, and a Sentinel that makes the replica a primary soon after the primary
// has gone. Replication is under way when it returns.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	primary := StartTCP(t, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	host, port, err := net.SplitHostPort(primary.addr)
	if err != nil {
		t.Fatal(err)
	}
	replica := StartTCP(t, append([]string{"--replicaof", host + " " + port}, args...)...)
	asReplica := replica.Client()
	await(t, "replication", func() bool { return replica.holds(asReplica, "replication", "master_link_status:up") })

	s := &Sentinel{t: t, servers: map[string]*Server{primary.addr: primary, replica.addr: replica}}
	s.start(host, port)
	await(t, "a Sentinel that knows the replica", func() bool {
		replicas, err := s.client.Replicas(t.Context(), Master).Result()
		return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave" && replicas[0]["master-link-status"] == "ok"
	})
	return s
}

// start runs the Sentinel itself, on a port that is free; see Server.listen.
func (s *Sentinel) start(host, port string) {
	s.t.Helper()
	dir := newServer(s.t).dir
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	var err error
	for range 5 {
		own := freePort(s.t)
		file := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("bind 127.0.0.1\nport %d\nsentinel monitor %[2]s %s %s 1\n"+
			"sentinel down-after-milliseconds %[2]s 300\nsentinel failover-timeout %[2]s 2000\n", own, Master, host, port)
		if err = os.WriteFile(file, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
		var proc *redisproc.Server
		if proc, err = redisproc.StartSentinel(ctx, dir, file); err != nil {
			continue
		}
		s.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(own))
		s.client = redis.NewSentinelClient(&redis.Options{Addr: s.addr, Protocol: 2, DisableIdentity: true})
		s.t.Cleanup(func() {
			if err := s.client.Close(); err != nil {
				s.t.Error(err)
			}
			proc.Kill()
		})
		return
	}
	s.t.Fatal(err)
}

// Addr returns host:port of the Sentinel.
func (s *Sentinel) Addr() string { return s.addr }

// Primary returns the server that the Sentinel holds for the primary.
func (s *Sentinel) Primary() *Server {
	s.t.Helper()
	addr, err := s.client.GetMasterAddrByName(s.t.Context(), Master).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return s.servers[net.JoinHostPort(addr[0], addr[1])]
}

// FailOver ends the primary as kill -9 does and returns the new one, once it
// is that.
func (s *Sentinel) FailOver() *Server {
	s.t.Helper()
	old := s.Primary()
	old.Stop()
	await(s.t, "a new primary", func() bool { return s.Primary() != old })
	return s.Primary()
}
