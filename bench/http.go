package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/internal/redistest/redisproc"
)

// The HTTP benchmark: signed posts of 1 KB JSON over 64 connections, to a
// handler that only reads them and to the gateway, which verifies, reserves,
// runs the echo agent and records. Every server is a process of its own; the
// load comes from this one, on the same cores, so that its cost is part of
// both sides: a sender written with Go's HTTP client costs about as much as
// the bare handler, one that writes prepared bytes to a socket a fraction.
const (
	connections = 64
	httpRounds  = 5
	httpTurn    = 2 * time.Second
	httpSecret  = "bench-secret-of-the-hook"
	bodySize    = 1024
)

func benchHTTP(ctx context.Context, r *report) error {
	dir, err := os.MkdirTemp("", "oncegate-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing of value
	binary := filepath.Join(dir, "gateway")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "./cmd/gateway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	redis, err := redisproc.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer redis.Kill()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var servers []*server
	defer func() {
		for _, s := range servers {
			s.stop()
		}
	}()
	add := func(start func() (*server, error)) error {
		s, err := start()
		if err == nil {
			servers = append(servers, s)
		}
		return err
	}
	if err := errors.Join(
		add(func() (*server, error) { return startServer(ctx, self, "-bare") }),
		add(func() (*server, error) { return startGateway(ctx, dir, binary, "redis", redis.Socket()) }),
		add(func() (*server, error) { return startGateway(ctx, dir, binary, "sqlite", "") }),
	); err != nil {
		return err
	}
	r.section("POST /hooks/x, 1 KB JSON, HMAC verified, 64 connections (requests per second)")
	rates, err := rounds(ctx, servers, clientSender)
	if err != nil {
		return err
	}
	r.atLeast("redis: reserve + echo + record / bare handler", rates[1], rates[0], 0.38)
	r.atLeast("sqlite FULL: reserve + echo + record / bare handler", rates[2], rates[0], 0.27)
	if rates, err = rounds(ctx, servers, socketSender); err != nil {
		return err
	}
	r.note("with a sender of bytes: bare %.4g, redis %.4g (%.2f), sqlite FULL %.4g (%.2f)",
		rates[0], rates[1], rates[1]/rates[0], rates[2], rates[2]/rates[0])
	return nil
}

// rounds loads the servers in turns and returns the median rate of each.
func rounds(ctx context.Context, servers []*server, connect func(address string) (sender, error)) ([]float64, error) {
	turns := make([][]float64, len(servers))
	for range httpRounds {
		for i, s := range servers {
			rate, err := postFor(ctx, s.address, connect)
			if err != nil {
				return nil, err
			}
			turns[i] = append(turns[i], rate)
		}
	}
	rates := make([]float64, len(servers))
	for i := range turns {
		rates[i] = median(turns[i])
	}
	return rates, nil
}

// server is a process that said where it listens.
type server struct {
	cmd     *exec.Cmd
	address string
}

// startServer runs a program whose output names its address after "address=".
func startServer(ctx context.Context, program string, args ...string) (*server, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, after, ok := strings.Cut(lines.Text(), "address="); ok {
			address, _, _ := strings.Cut(after, " ")
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
			return &server{cmd: cmd, address: address}, nil
		}
	}
	return nil, fmt.Errorf("%s ended before it listened", program)
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()         // killed
}

func startGateway(ctx context.Context, dir, binary, store, redis string) (*server, error) {
	path := filepath.Join(dir, store+".yaml")
	push := ""
	if redis != "" {
		push = fmt.Sprintf("  push: {redis: {url: \"unix://%s\"}}\n", redis)
	}
	text := fmt.Sprintf(`gateway:
  port: 0
  state_dir: %s
%shooks:
  idempotency: {store_backend: %s}
  hooks:
    - path: x
      agent: assistant
      signature: {scheme: github, secrets: [%s]}
      channel: "{{ payload.channel }}"
      idempotency_key: "{{ payload.id }}"
      message: "New from {{ payload.user }}: {{ payload.text }}"
agents:
  assistant: {kind: echo}
`, filepath.Join(dir, store), push, store, httpSecret)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s, err := startServer(ctx, binary, "serve", "-c", path)
	if err != nil {
		return nil, err
	}
	for range 200 {
		res, err := http.Get("http://" + s.address + "/readyz")
		if err == nil {
			_ = res.Body.Close() // the status is all
			if res.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.stop()
	return nil, errors.New("gateway does not become ready")
}

// serveBare is the baseline: a handler that reads the body and answers.
func serveBare(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "address=%s \n", l.Addr())
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`) // the client counts answers
	}))
}

var messages atomic.Int64 // no two posts carry the same id

// postFor posts over all connections for httpTurn and returns answers per
// second.
func postFor(ctx context.Context, address string, connect func(address string) (sender, error)) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, httpTurn)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total int
		errs  []error
	)
	start := time.Now()
	for range connections {
		wg.Go(func() {
			n, err := postUntil(ctx, address, connect)
			mu.Lock()
			defer mu.Unlock()
			total += n
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return float64(total) / time.Since(start).Seconds(), errors.Join(errs...)
}

// postUntil posts one message after the other over one connection.
func postUntil(ctx context.Context, address string, connect func(address string) (sender, error)) (int, error) {
	s, err := connect(address)
	if err != nil {
		return 0, err
	}
	defer s.close()
	mac := hmac.New(sha256.New, []byte(httpSecret))
	var body bytes.Buffer
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return n, nil
		}
		body.Reset()
		fmt.Fprintf(&body, `{"id":"m-%012d","channel":"C042","user":"ann","text":"hello there","padding":"`, messages.Add(1))
		for body.Len() < bodySize-2 {
			body.WriteByte('x')
		}
		body.WriteString(`"}`)
		mac.Reset()
		mac.Write(body.Bytes())
		if err := s.post(body.Bytes(), "sha256="+hex.EncodeToString(mac.Sum(nil))); err != nil {
			return n, err
		}
	}
}
