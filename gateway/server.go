package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// The server's limits. A run between body and answer may take minutes, so the
// http.Server itself has neither a read nor a write timeout; bounded has them.
const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 10 * time.Second // from the end of the header to the end of the body
	writeTimeout      = 30 * time.Second // from the end of the header to the end of the answer
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
	shutdownTimeout   = 5 * time.Second
)

// hooksPath is what every path of a hook begins with.
const hooksPath = "/hooks/"

// Server is the HTTP side of the gateway.
type Server struct {
	cfg  ServerConfig
	http *http.Server
	log  *slog.Logger
}

// ServerConfig is what NewServer needs.
type ServerConfig struct {
	Gateway  Config
	Clients  clients
	Hooks    http.Handler // everything below /hooks/; moves the connection's deadlines as its work needs
	Pipeline *Pipeline
	Store    idempotency.Store // for POST /api/prove
	Health   *health.Registry
	Metrics  prometheus.Gatherer
	Backends func() map[string]string // in effect now, by their name on /health
	Replicas func() []health.Sighting // that live; nil: nothing tells of them
	Replica  string
	Version  string
	Log      *slog.Logger
}

// clients counts who fails to authenticate.
type clients interface {
	Fail(r *http.Request) (retryAfter time.Duration) // 0 while the client has not failed too often
}

// NewServer returns a server that does not listen yet.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg, log: cfg.Log.With("component", "server")}
	s.http = &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return s
}

// Listen opens the configured address. Its error names the address and what
// to do about it.
func Listen(ctx context.Context, cfg Config) (net.Listener, error) {
	address := net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // the rest of its text repeats the address
		}
		return nil, fmt.Errorf("listen on %s: %w; is another gateway running there? change gateway.host or gateway.port", address, err)
	}
	return l, nil
}

// Handler returns the routes.
func (s *Server) Handler() http.Handler {
	mux := s.cfg.Gateway.newRoutes()
	probes := s.cfg.Health.Handler(s.seesDetail, s.detail)
	for _, path := range []string{"/livez", "/readyz", "/health"} {
		mux.add(path, probes)
	}
	mux.add("GET /metrics", s.guarded(promhttp.HandlerFor(s.cfg.Metrics, promhttp.HandlerOpts{})))
	mux.add("/api/prove", s.guarded(http.HandlerFunc(s.prove)))
	mux.add(hooksPath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.Health.Phase() == health.Starting {
			w.Header().Set("Retry-After", "1")
			w.Header().Set("X-Idempotency-Status", message.None.String())
			refuse(w, http.StatusServiceUnavailable, "starting")
			return
		}
		s.cfg.Hooks.ServeHTTP(w, r)
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "not found") })
	return bounded(mux)
}

// guarded lets through who is authorized. Without a token that is every
// program of this machine, and so no web page, which any of them may open.
func (s *Server) guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.authorized(r) && (!s.cfg.Gateway.AuthToken.IsEmpty() || len(r.Header["Origin"]) == 0) {
			h.ServeHTTP(w, r)
			return
		}
		if wait := s.cfg.Clients.Fail(r); wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
			refuse(w, http.StatusTooManyRequests, "too many requests")
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "unauthorized")
	})
}

// bounded gives every request deadlines, so that nobody holds a connection by
// a body that never ends or an answer that is never read. Those left by the
// connection's request before go with it.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A ResponseWriter without deadlines is bounded by whoever made it.
		conn, now := http.NewResponseController(w), time.Now()
		_ = conn.SetReadDeadline(now.Add(readTimeout))
		_ = conn.SetWriteDeadline(now.Add(writeTimeout))
		h.ServeHTTP(w, r)
	})
}

// setJSON marks an answer as JSON that is true at this moment alone.
func setJSON(header http.Header) {
	header.Set("Content-Type", "application/json; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
}

func refuse(w http.ResponseWriter, status int, text string) {
	setJSON(w.Header())
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "{\"ok\":false,\"error\":%q}\n", text) // a client that is gone needs no answer
}

// authorized reports whether the request may see more than names: it carries
// the gateway's token, or there is none and only this machine can connect.
func (s *Server) authorized(r *http.Request) bool {
	if s.cfg.Gateway.AuthToken.IsEmpty() {
		return s.cfg.Gateway.Private()
	}
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return false // a proxy in front may have looked at another one
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	return strings.EqualFold(scheme, "Bearer") && s.cfg.Gateway.AuthToken.Equal(strings.TrimSpace(token))
}

// seesDetail is authorized for /health, which everybody may ask: a token that
// is wrong gets the answer that none gets, but counts as a failure.
func (s *Server) seesDetail(r *http.Request) bool {
	if s.authorized(r) {
		return true
	}
	if len(r.Header["Authorization"]) > 0 {
		s.cfg.Clients.Fail(r)
	}
	return false
}

func (s *Server) detail() health.Report {
	report := health.Report{Backends: s.cfg.Backends(), Replica: s.cfg.Replica, Version: s.cfg.Version}
	if s.cfg.Replicas != nil {
		report.Replicas = s.cfg.Replicas()
	}
	return report
}

// Run serves on l until ctx ends, and then stops in this order: /readyz turns
// to 503; the pipeline drains, while connections are still answered, new
// deliveries with 503; then the listener and the connections close. It
// returns when all of them have. A connection that is still busy then is cut:
// nothing is lost with it, since every delivery has been answered.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(l) }()
	var failure error
	select {
	case failure = <-served:
		served <- failure
		failure = fmt.Errorf("serve on %s: %w", l.Addr(), failure)
	case <-ctx.Done():
		s.log.Info("draining", "cause", context.Cause(ctx).Error(), "drain_timeout", s.cfg.Gateway.DrainTimeout.String())
	}
	s.cfg.Health.Enter(health.Draining)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Gateway.DrainTimeout)
	drained := s.cfg.Pipeline.Drain(drain)
	cancel()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	shut := s.http.Shutdown(closing)
	if errors.Is(shut, context.DeadlineExceeded) {
		s.log.Warn("connections were still open and have been cut", "after", shutdownTimeout.String())
		shut = s.http.Close()
	}
	<-served
	return errors.Join(failure, drained, shut)
}
