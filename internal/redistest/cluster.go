package redistest

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const slots = 16384 // of a cluster

// StartCluster is StartTCP for a cluster without replicas of so many nodes,
// among which all slots are split in order. It takes seconds, which a new
// cluster waits before it serves.
func StartCluster(t testing.TB, nodes int, args ...string) []*Server {
	t.Helper()
	all := make([]*Server, nodes)
	for i := range all {
		s := newServer(t)
		// By default it is a fixed distance away, where there may be no port.
		s.listen("--port", append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(freePort(t)), "--cluster-announce-ip", "127.0.0.1",
		}, args...))
		all[i] = s
	}
	for i, s := range all {
		s.do("cluster", "addslotsrange", i*slots/nodes, (i+1)*slots/nodes-1)
		if i > 0 {
			s.meet(all[0])
		}
	}
	for _, s := range all {
		c := s.Client()
		await(t, "a cluster that serves", func() bool {
			text, err := c.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(text, "cluster_state:ok") && strings.Contains(text, "cluster_known_nodes:"+strconv.Itoa(nodes))
		})
	}
	return all
}

// meet makes s a member of other's cluster.
func (s *Server) meet(other *Server) {
	s.t.Helper()
	host, port, err := net.SplitHostPort(other.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	bus := other.args[1+slices.Index(other.args, "--cluster-port")]
	s.do("cluster", "meet", host, port, bus)
}

// do carries out a command that has to succeed.
func (s *Server) do(args ...any) {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	if err := c.Do(s.t.Context(), args...).Err(); err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
}
