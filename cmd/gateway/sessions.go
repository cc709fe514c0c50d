package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/redishistory"
	"github.com/oncegate/oncegate/agent/sqlitehistory"
	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/internal/redisclient"
)

func (a *app) sessionsCommand() *cobra.Command {
	return group("sessions", "Look at sessions and their histories", a.sessionsListCommand(), a.sessionsShowCommand(), a.sessionsResetCommand())
}

// sessionReader is what commands that only look need of a history.
type sessionReader interface {
	List(ctx context.Context, limit int) (sessions []agent.Session, more bool, err error)
	Show(ctx context.Context, session string) (agent.Session, []agent.Row, error)
}

func (a *app) sessionsListCommand() *cobra.Command {
	var (
		asJSON bool
		limit  int
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "Show the sessions that were used last",
		Long: `Show the sessions that are known, the one used last first. A session is
forgotten sessions.ttl after its last turn.`,
		Example: `  gateway sessions list
  gateway sessions list --limit 1000 --json | jq -r '.sessions[].session'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usageError{fmt.Errorf("--limit %d: it is at least 1", limit)}
			}
			return a.withSessions(cmd.Context(), func(ctx context.Context, r sessionReader) error {
				sessions, more, err := r.List(ctx, limit)
				if err != nil {
					return err
				}
				return a.printSessions(sessions, more, asJSON)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().IntVar(&limit, "limit", 100, "how many to show at most")
	return c
}

func (a *app) printSessions(sessions []agent.Session, more, asJSON bool) error {
	switch {
	case more:
		_, _ = fmt.Fprintf(a.err, "there are more than %d; see them with --limit\n", len(sessions))
	case len(sessions) == 0:
		_, _ = fmt.Fprintln(a.err, "no session is known")
	}
	if asJSON {
		return a.printJSON(map[string]any{"sessions": append([]agent.Session{}, sessions...), "more": more})
	}
	if len(sessions) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "LAST USED\tTURNS\tSESSION") // Flush has the error
	for _, s := range sessions {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\n", s.LastUsed.Local().Format(time.DateTime), s.Turns, printable(s.ID))
	}
	return w.Flush()
}

// printable returns a stranger's text as it is, or in quotes where a terminal
// would take part of it for an order.
func printable(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}

func (a *app) sessionsShowCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show SESSION",
		Short: "Show what was said in a session",
		Long: `Show a session and the turns that are kept of it, oldest first: what the agent
is told with the next message.`,
		Example: `  gateway sessions show github:acme/app
  gateway sessions show github:acme/app --json | jq -r '.history[].text'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSessions(cmd.Context(), func(ctx context.Context, r sessionReader) error {
				s, rows, err := r.Show(ctx, args[0])
				if err != nil {
					return unknownSession(err, args[0])
				}
				if asJSON {
					return a.printJSON(struct {
						agent.Session
						History []agent.Row `json:"history"`
					}{s, append([]agent.Row{}, rows...)})
				}
				a.print("session    %s\ncreated    %s\nlast used  %s\nturns      %d\n", printable(s.ID),
					s.Created.Local().Format(time.DateTime), s.LastUsed.Local().Format(time.DateTime), s.Turns)
				for _, row := range rows {
					a.print("\n%s, %s\n%s\n", row.Role, row.Time.Local().Format(time.DateTime), strconv.Quote(row.Text))
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func unknownSession(err error, session string) error {
	if errors.Is(err, agent.ErrNoSession) {
		return fmt.Errorf("no session is named %q; gateway sessions list shows the names", session)
	}
	return err
}

func (a *app) sessionsResetCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "reset SESSION",
		Short: "Forget what was said in a session",
		Long: `Forget what was said in a session: the agent answers the next message as the
first one. A turn that is under way is not disturbed, and is the first of the
new history. It may be used while gateways run.`,
		Example: `  gateway sessions reset github:acme/app`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.resetSession(cmd.Context(), args[0], asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) resetSession(ctx context.Context, session string, asJSON bool) error {
	var forgotten agent.Session
	err := a.withSessions(ctx, func(ctx context.Context, r sessionReader) (err error) {
		forgotten, _, err = r.Show(ctx, session)
		if errors.Is(err, agent.ErrUnreadable) {
			return nil // a reset mends it
		}
		return unknownSession(err, session)
	})
	if err != nil {
		return err
	}
	// Only now that nothing looks at it: see sqlitehistory.OpenReadOnly.
	cfg, err := a.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sessionsTimeout)
	defer cancel()
	history, err := a.openHistory(ctx, cfg)
	if err != nil {
		return err
	}
	if err := errors.Join(history.Reset(ctx, session), history.Close()); err != nil {
		return unknownSession(err, session)
	}
	if asJSON {
		return a.printJSON(map[string]any{"session": session, "forgotten_turns": forgotten.Turns})
	}
	a.print("%s is empty: %d turns are forgotten\n", printable(session), forgotten.Turns)
	return nil
}

// sessionsTimeout bounds a command's work on the histories.
const sessionsTimeout = time.Minute

// withSessions gives do the configured histories to look at.
func (a *app) withSessions(ctx context.Context, do func(context.Context, sessionReader) error) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sessionsTimeout)
	defer cancel()
	if cfg.Sessions.Backend == agent.BackendRedis {
		history, err := a.openHistory(ctx, cfg)
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, history), history.Close())
	}
	reader, err := sqlitehistory.OpenReadOnly(ctx, historyFile(cfg, a.warnings()))
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, reader), reader.Close())
}

// openHistory opens the configured histories for a change.
func (a *app) openHistory(ctx context.Context, cfg config.Config) (interface {
	agent.Sessions
	Close() error
}, error) {
	if cfg.Sessions.Backend != agent.BackendRedis {
		history, err := sqlitehistory.Open(ctx, historyFile(cfg, a.warnings()))
		if err != nil {
			return nil, err // and not a nil pointer in the interface
		}
		return history, nil
	}
	client, err := redisclient.New(cfg.Gateway.Push.Redis, redisclient.Options{})
	if err != nil {
		return nil, err
	}
	return ownHistory{redishistory.New(client, redishistory.Config{
		Prefix: cfg.Gateway.Push.Redis.Prefix, MaxTurns: cfg.Sessions.MaxTurns, TTL: cfg.Sessions.TTL,
	}), client.Close}, nil
}

// ownHistory is a history whose client belongs to it alone.
type ownHistory struct {
	*redishistory.History
	close func() error
}

// Close closes the client.
func (h ownHistory) Close() error { return h.close() }
