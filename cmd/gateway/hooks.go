package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/hooks"
)

func (a *app) hooksCommand() *cobra.Command {
	return group("hooks", "Work with inbound hooks", a.hooksSendCommand())
}

// send is one `hooks send`.
type send struct {
	url     string
	body    string
	headers []string
	timeout time.Duration
	asJSON  bool
}

// maxAnswer bounds what is read of a gateway's answer.
const maxAnswer = 16 << 20

func (a *app) hooksSendCommand() *cobra.Command {
	var s send
	c := &cobra.Command{
		Use:   "send PATH",
		Short: "Sign a test event and post it to a running gateway",
		Long: `Post a test event to a hook of the configuration, with the token and signature
that the hook demands. The body is JSON with a new id, unless --body names a
file, or - for standard input. Post the same body twice to see the duplicate.

Exit code 0 for an answer of 2xx, 1 otherwise.`,
		Example: `  gateway hooks send echo
  gateway hooks send github --body event.json -H 'X-GitHub-Delivery: 1' -H 'X-GitHub-Event: issues'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.send(cmd.Context(), s, args[0]) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			cfg, err := a.load()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return hookPaths(cfg), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := c.Flags()
	f.StringVar(&s.url, "url", "", "the gateway (default from gateway.host and gateway.port)")
	f.StringVar(&s.body, "body", "", "file with the body, - for standard input")
	f.StringArrayVarP(&s.headers, "header", "H", nil, "header to add, as 'Name: value'; repeatable")
	f.DurationVar(&s.timeout, "timeout", 10*time.Minute, "how long to wait for the answer")
	f.BoolVar(&s.asJSON, "json", false, "print JSON")
	return c
}

func (a *app) send(ctx context.Context, s send, path string) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(cfg.Hooks.Hooks, func(h hooks.Hook) bool { return h.Path == path })
	if i < 0 {
		return fmt.Errorf("%s has no hook %q; it has: %s", orDefault(a.path()), path, strings.Join(hookPaths(cfg), ", "))
	}
	body, err := a.body(s.body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	base := s.url
	if base == "" {
		base = "http://" + net.JoinHostPort(cfg.Gateway.Host, strconv.Itoa(cfg.Gateway.Port))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(base, "/")+"/hooks/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if err := addHeaders(req.Header, s.headers); err != nil {
		return err
	}
	cfg.Hooks.Hooks[i].Sign(req.Header, body, cfg.Gateway.AuthToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w; is the gateway running? start it with: gateway serve", err)
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return a.show(s, res, answer)
}

func (a *app) show(s send, res *http.Response, answer []byte) error {
	status := res.Header.Get("X-Idempotency-Status")
	if s.asJSON {
		body := json.RawMessage(answer)
		if !json.Valid(answer) {
			body, _ = json.Marshal(string(answer)) // a string always encodes
		}
		if err := a.printJSON(map[string]any{"status": res.StatusCode, "idempotency_status": status, "body": body}); err != nil {
			return err
		}
	} else {
		a.print("%s (%s)\n%s\n", res.Status, status, bytes.TrimSpace(answer))
	}
	if res.StatusCode/100 != 2 {
		return errReported
	}
	return nil
}

func (a *app) body(from string) ([]byte, error) {
	switch from {
	case "":
		return json.Marshal(map[string]string{"id": rand.Text(), "message": "test event of gateway hooks send"})
	case "-":
		return io.ReadAll(a.in)
	}
	return os.ReadFile(from)
}

func addHeaders(h http.Header, lines []string) error {
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return fmt.Errorf("--header %q: write it as 'Name: value'", line)
		}
		h.Add(name, strings.TrimSpace(value))
	}
	return nil
}

func hookPaths(cfg config.Config) []string {
	var paths []string
	for _, h := range cfg.Hooks.Hooks {
		paths = append(paths, h.Path)
	}
	return paths
}
