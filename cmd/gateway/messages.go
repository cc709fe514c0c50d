package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/message"
)

func (a *app) messagesCommand() *cobra.Command {
	return group("messages", "Look at messages in the claim store", a.messagesListCommand(), a.messagesShowCommand(), a.messagesReleaseCommand())
}

// The states of a message as the commands name them.
var stateNames = map[idempotency.State]string{idempotency.InFlight: "in_flight", idempotency.Recorded: "recorded"}

// messageRow is what the commands say of a message.
type messageRow struct {
	Key         string           `json:"key"`
	State       string           `json:"state"`
	LeftSeconds float64          `json:"left_seconds"` // of the lease, or of the record window
	Replica     string           `json:"replica"`      // that runs it, or ran it
	Fingerprint string           `json:"fingerprint,omitempty"`
	Outcome     *message.Outcome `json:"outcome,omitempty"`
}

func newMessageRow(e idempotency.Entry) messageRow {
	replica, _, _ := strings.Cut(e.Token, ".") // the rest is what proves the ownership
	return messageRow{Key: string(e.Key), State: stateNames[e.State], LeftSeconds: e.Left.Seconds(), Replica: replica}
}

func (a *app) messagesListCommand() *cobra.Command {
	var (
		asJSON bool
		state  string
		limit  int
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "Show what the store knows of messages",
		Long: `Show the messages that run (in_flight) and those that are finished and still
known (recorded), in the order of the store. SQLite is read without changing
the file, Redis with SCAN, which does not hold it up.`,
		Example: `  gateway messages list
  gateway messages list --state in_flight
  gateway messages list --limit 1000 --json | jq -r '.messages[].key'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := idempotency.ListRequest{Limit: limit}
			switch state {
			case "":
			case stateNames[idempotency.InFlight]:
				req.State = idempotency.InFlight
			case stateNames[idempotency.Recorded]:
				req.State = idempotency.Recorded
			default:
				return usageError{fmt.Errorf("--state %q: it is in_flight or recorded", state)}
			}
			if limit < 1 {
				return usageError{fmt.Errorf("--limit %d: it is at least 1", limit)}
			}
			return a.withMessages(cmd.Context(), func(ctx context.Context, _ config.Config, l idempotency.Lister) error {
				rows, more, err := a.collect(ctx, l, req)
				if err != nil {
					return err
				}
				return a.printMessages(rows, more, asJSON)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&state, "state", "", "only messages in this state: in_flight or recorded")
	c.Flags().IntVar(&limit, "limit", 100, "how many to show at most")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"in_flight", "recorded"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return c
}

// collect takes pages until there are as many messages as asked for, or no
// more. A store may name one twice.
func (a *app) collect(ctx context.Context, l idempotency.Lister, req idempotency.ListRequest) (rows []messageRow, more bool, err error) {
	limit, seen := req.Limit, make(map[idempotency.Key]bool)
	progress := a.progress("messages found:")
	rows = []messageRow{}
	for {
		page, err := l.List(ctx, req)
		if err != nil {
			return nil, false, err
		}
		for _, e := range page.Entries {
			if seen[e.Key] {
				continue
			}
			if len(rows) == limit {
				return rows, true, nil
			}
			seen[e.Key] = true
			rows = append(rows, newMessageRow(e))
		}
		if page.Next == "" {
			return rows, false, nil
		}
		req.After = page.Next
		progress(len(rows), limit)
	}
}

func (a *app) printMessages(rows []messageRow, more, asJSON bool) error {
	switch {
	case more:
		_, _ = fmt.Fprintf(a.err, "there are more than %d; see them with --limit\n", len(rows))
	case len(rows) == 0:
		_, _ = fmt.Fprintln(a.err, "the store knows no such message")
	}
	if asJSON {
		return a.printJSON(map[string]any{"messages": rows, "more": more})
	}
	if len(rows) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "STATE\tENDS IN\tREPLICA\tKEY") // Flush has the error
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.State, r.left(), r.Replica, r.Key)
	}
	return w.Flush()
}

func (r messageRow) left() time.Duration {
	return time.Duration(r.LeftSeconds * float64(time.Second)).Round(time.Second)
}

func (a *app) messagesShowCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show KEY",
		Short: "Show one message and its answer",
		Long: `Show what the store knows of one message: its state, how long that lasts, the
replica, and of a finished one the answer that duplicates get.`,
		Example: `  gateway messages show github:4400001:acme%2Fapp%2312:comment%3A700001
  gateway messages show hook::echo:1 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withMessages(cmd.Context(), func(ctx context.Context, _ config.Config, l idempotency.Lister) error {
				e, err := find(ctx, l, args[0])
				if err != nil {
					return err
				}
				row := newMessageRow(e)
				if e.Fingerprint != (message.Fingerprint{}) {
					row.Fingerprint = hex.EncodeToString(e.Fingerprint[:])
				}
				if e.State == idempotency.Recorded {
					outcome, err := message.DecodeOutcome(e.Outcome)
					if err != nil {
						return err
					}
					row.Outcome = &outcome
				}
				if asJSON {
					return a.printJSON(row)
				}
				a.printMessage(row)
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) printMessage(r messageRow) {
	line := func(name, text string) {
		if text != "" {
			a.print("%-12s %s\n", name, text)
		}
	}
	line("key", r.Key)
	line("state", fmt.Sprintf("%s, for another %s", r.State, r.left()))
	line("replica", r.Replica)
	line("fingerprint", r.Fingerprint)
	o := r.Outcome
	if o == nil {
		return
	}
	line("action", o.Action)
	line("agent", o.Agent)
	line("session", o.Session)
	switch {
	case o.Omitted:
		line("answer", "too large to keep")
	case o.Response != nil:
		line("answer", fmt.Sprintf("%d, %d bytes", o.Response.Status, len(o.Response.Body)))
	default:
		line("reply", strconv.Quote(o.Reply))
	}
}

// find looks up the message under the key that a user has typed.
func find(ctx context.Context, l idempotency.Lister, key string) (idempotency.Entry, error) {
	e, err := l.Get(ctx, idempotency.Key(key))
	if errors.Is(err, idempotency.ErrNotFound) {
		return e, fmt.Errorf("the store knows no message %q; gateway messages list shows the keys", key)
	}
	return e, err
}

func (a *app) messagesReleaseCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "release KEY",
		Short: "Give back the claim of a replica that is gone",
		Long: `Give back the claim on a message whose replica is gone, so that the sender's next
delivery runs at once instead of when the lease ends. Whether the replica is
gone is yours to know: if it still runs the message, it runs twice. That of the
gateway which answers at gateway.host and gateway.port is never released, nor is
a finished message.`,
		Example: `  gateway messages release hook::echo:1 --force`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.release(cmd.Context(), args[0], force)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "the replica is gone for certain")
	return c
}

func (a *app) release(ctx context.Context, key string, force bool) error {
	var cfg config.Config
	var held idempotency.Entry
	err := a.withMessages(ctx, func(ctx context.Context, c config.Config, l idempotency.Lister) (err error) {
		cfg = c
		held, err = releasable(ctx, c, l, key, force)
		return err
	})
	if err != nil {
		return err
	}
	// Only now that nothing looks at it: see sqlitestore.OpenReadOnly.
	ctx, cancel := context.WithTimeout(ctx, messagesTimeout)
	defer cancel()
	store, err := openStore(ctx, cfg, a.warnings())
	if err != nil {
		return err
	}
	claim := idempotency.Claim{Key: held.Key, Token: held.Token, Fingerprint: held.Fingerprint}
	err = errors.Join(store.Release(ctx, claim), store.Close())
	if errors.Is(err, idempotency.ErrNotOwner) {
		return fmt.Errorf("%s has changed hands meanwhile; nothing was done", key)
	}
	if err == nil {
		a.print("%s is free: its next delivery runs\n", key)
	}
	return err
}

// releasable returns the claim on key, or the reason why it stays.
func releasable(ctx context.Context, cfg config.Config, l idempotency.Lister, key string, force bool) (idempotency.Entry, error) {
	e, err := find(ctx, l, key)
	if err != nil {
		return e, err
	}
	row := newMessageRow(e)
	if e.State == idempotency.Recorded {
		return e, fmt.Errorf("%s is finished, and a finished message is never released: it would run again. It is known for another %s", key, row.left())
	}
	report, err := askHealth(ctx, cfg.Gateway.LocalURL(), cfg.Gateway.AuthToken)
	switch {
	case err == nil && report.Replica == row.Replica:
		return e, fmt.Errorf("replica %s is running %s right now; stop the gateway first, which gives its claims back", row.Replica, key)
	case !force:
		return e, fmt.Errorf("replica %s may still be running %s, and would then run beside the next delivery. The claim ends by itself within %s unless it is renewed; say --force if that replica is gone", row.Replica, key, row.left())
	}
	return e, nil
}

// messagesTimeout bounds a command's work on the store.
const messagesTimeout = 5 * time.Minute

// withMessages gives do the messages of the configured store to look at.
func (a *app) withMessages(ctx context.Context, do func(context.Context, config.Config, idempotency.Lister) error) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, messagesTimeout)
	defer cancel()
	switch cfg.Hooks.Idempotency.StoreBackend {
	case idempotency.BackendRedis:
		store, err := openRedis(cfg.Gateway.Push.Redis)
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, cfg, store), store.Close())
	case idempotency.BackendSQLite:
		reader, err := sqlitestore.OpenReadOnly(ctx, filepath.Join(cfg.Gateway.StateDir, doctor.DatabaseName), time.Now)
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, cfg, reader), reader.Close())
	}
	return errors.New("store_backend is memory: its messages live inside the gateway's process and cannot be seen from outside")
}

// warnings is a log for what a command's stores have to say.
func (a *app) warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
