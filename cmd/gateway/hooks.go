package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
	"github.com/oncegate/oncegate/hooks/signature"
)

func (a *app) hooksCommand() *cobra.Command {
	return group("hooks", "Work with inbound hooks", a.hooksListCommand(), a.hooksSendCommand())
}

// hookRow is what `hooks list` says of a hook.
type hookRow struct {
	Path   string   `json:"path"`
	URL    string   `json:"url"` // what to give to the sender
	Action string   `json:"action"`
	Agent  string   `json:"agent,omitempty"`
	Guards []string `json:"guards"` // all must pass
	Open   bool     `json:"open"`   // without guards: to programs of this machine; else closed
	Key    string   `json:"key"`    // what identifies a message
	Events []string `json:"events,omitempty"`
}

func (a *app) hooksListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "Show the hooks, what guards them and what identifies their messages",
		Long: `Show the hooks of the configuration: the URL to give to the sender (of
gateway.public_url, if that is set), what they do, what a request must pass, and
what identifies a message.`,
		Example: `  gateway hooks list
  gateway hooks list --json | jq -r '.hooks[].url'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			rows := []hookRow{}
			for _, h := range cfg.Hooks.Hooks {
				rows = append(rows, newHookRow(h, cfg.Gateway))
			}
			if asJSON {
				return a.printJSON(map[string]any{"hooks": rows})
			}
			return a.printHooks(rows)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func newHookRow(h hooks.Hook, g gateway.Config) hookRow {
	row := hookRow{Path: h.Path, URL: publicURL(h, g), Action: h.Action, Agent: h.Agent, Guards: []string{}, Events: h.Events}
	if h.Signature != nil {
		row.Guards = append(row.Guards, "signature "+h.Signature.Scheme)
	}
	switch {
	case h.Auth != nil && len(h.Auth.Named) > 0:
		row.Guards = append(row.Guards, "token of "+strings.Join(slices.Sorted(maps.Keys(h.Auth.Named)), ", "))
	case h.Auth != nil:
		row.Guards = append(row.Guards, "its own token")
	case h.Signature == nil && !g.AuthToken.IsEmpty():
		row.Guards = append(row.Guards, "gateway.auth_token")
	}
	row.Open = len(row.Guards) == 0 && g.Private()
	var sources []string
	if h.AcceptIdempotencyKey {
		sources = append(sources, "Idempotency-Key header")
	}
	switch f := h.Fingerprint; {
	case h.IdempotencyKey != "":
		sources = append(sources, h.IdempotencyKey)
	case f == nil || f.Mode != hooks.FingerprintOff:
		sources = append(sources, "content, for "+h.ContentWindow().String())
	}
	row.Key = strings.Join(sources, ", else ")
	return row
}

// publicURL returns where the sender of a hook posts to.
func publicURL(h hooks.Hook, g gateway.Config) string {
	path := hooks.Prefix + h.Path
	if g.PublicURL != "" {
		return g.SenderURL(&http.Request{RequestURI: path})
	}
	return g.LocalURL() + path
}

func (a *app) printHooks(rows []hookRow) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "URL\tACTION\tGUARDED BY\tKEY\tEVENTS") // Flush has the error
	for _, r := range rows {
		action := strings.TrimSpace(r.Action + " " + r.Agent)
		guards := strings.Join(r.Guards, " and ")
		switch {
		case r.Open:
			guards = "nothing: open to this machine"
		case guards == "":
			guards = "nothing, so it is closed: set gateway.auth_token"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.URL, action, guards, cmp.Or(r.Key, "none"), cmp.Or(strings.Join(r.Events, " "), "all"))
	}
	return w.Flush()
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
file, or - for standard input; another type goes with -H 'Content-Type: …'. Post the same body twice to see the duplicate.

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
	base := cmp.Or(s.url, cfg.Gateway.LocalURL())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(base, "/")+"/hooks/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if err := addHeaders(req.Header, s.headers); err != nil {
		return err
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	hook := cfg.Hooks.Hooks[i]
	content := signature.Content{Body: body, URL: publicURL(hook, cfg.Gateway)}
	if err := hook.Sign(req.Header, content, cfg.Gateway.AuthToken, time.Now()); err != nil {
		return err
	}
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
