package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/config"
)

// The exit codes, as docs/operations.md lists them.
const (
	exitOK     = 0
	exitError  = 1
	exitUsage  = 2
	exitConfig = 78 // as EX_CONFIG of sysexits(3): starting again does not help
)

// streams are the process's standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is what every command needs.
type app struct {
	streams
	env        config.Env
	configFlag string
}

// errReported ends a command with exit code 1 after it has printed its result.
var errReported = errors.New("already reported")

// usageError says that the command line is wrong: exit code 2.
type usageError struct{ error }

// Unwrap returns what is wrong with it.
func (e usageError) Unwrap() error { return e.error }

// run is the whole program. It returns the exit code.
func run(ctx context.Context, args []string, s streams, env config.Env) int {
	a := &app{streams: s, env: env}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var invalid *config.Error
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitError
	case errors.As(err, &invalid):
		_, _ = fmt.Fprintln(s.err, err) // one problem per line, each with its place
		return exitConfig
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(s.err, "gateway: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return exitUsage
	}
	_, _ = fmt.Fprintf(s.err, "gateway: %v\n", err)
	return exitError
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gateway",
		Short: "Answer every chat message once, on any number of replicas",
		Long: `Oncegate stands between chat platforms and agents. Senders deliver at least
once; the gateway runs every message once and answers each redelivery with the
first result.`,
		Example: `  gateway serve
  gateway config check -c gateway.yaml
  gateway doctor --prove 200`,
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2, // letters between what was typed and a command to suggest
		Args:                       onlyCommands,
		RunE:                       help,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.PersistentFlags().StringVarP(&a.configFlag, "config", "c", "",
		"configuration file (default $GATEWAY_CONFIG, else ./gateway.yaml, else the embedded default)")
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml") // the flag exists
	root.AddCommand(a.serveCommand(), a.configCommand(), a.hooksCommand(), a.messagesCommand(), a.sessionsCommand(), a.doctorCommand(), a.versionCommand())
	root.InitDefaultCompletionCmd() // here already, to be marked with the others
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	markUsage(root)
	return root
}

// markUsage makes a usageError of every refusal of a command's arguments.
func markUsage(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		markUsage(sub)
	}
}

// onlyCommands refuses an argument that names no command.
func onlyCommands(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q for %q; did you mean %s?", args[0], c.CommandPath(), strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
}

func help(c *cobra.Command, _ []string) error { return c.Help() }

// path returns the configuration file in use, "" for the embedded default.
func (a *app) path() string { return config.Locate(a.configFlag, a.env) }

func (a *app) load() (config.Config, error) { return config.Load(a.path(), a.env) }

func (a *app) print(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }

func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// group makes a command that only holds others; its examples are the first of
// each of them.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: onlyCommands, RunE: help, SuggestionsMinimumDistance: 2}
	c.AddCommand(commands...)
	var examples []string
	for _, sub := range commands {
		first, _, _ := strings.Cut(sub.Example, "\n")
		examples = append(examples, first)
	}
	c.Example = strings.Join(examples, "\n")
	return c
}

// progress says on standard error, once a second, how far a long piece of work
// has come.
func (a *app) progress(what string) func(done, total int) {
	last := time.Now()
	return func(done, total int) {
		if time.Since(last) < time.Second {
			return
		}
		last = time.Now()
		_, _ = fmt.Fprintf(a.err, "%s %d of %d\n", what, done, total)
	}
}
