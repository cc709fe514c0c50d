package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/health"
)

func (a *app) doctorCommand() *cobra.Command {
	var (
		asJSON bool
		prove  int
	)
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong",
		Long: `Check the configuration, the state directory, the database and Redis with the
same code that serve uses. With --prove N, make N claims of one throw-away key
at once through the configured store, ten times, and demand exactly one winner
each time.

Exit code 0 without a failed check, 1 with one, 2 for wrong usage. A
configuration that cannot be loaded is a failed check.`,
		Example: `  gateway doctor
  gateway doctor -c gateway.yaml --prove 200
  gateway doctor --json | jq '.checks[] | select(.status != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("prove") && prove < 2 {
				return usageError{fmt.Errorf("--prove %d: it takes at least 2 claims to race", prove)}
			}
			d := doctor.Doctor{Path: a.path(), Env: a.env, Backends: backends(a.warnings())}
			checks := d.Check(cmd.Context())
			if prove > 0 {
				checks = append(checks, d.Prove(cmd.Context(), prove, a.progress("prove: round")))
			}
			if asJSON {
				if err := a.printJSON(map[string][]health.Check{"checks": checks}); err != nil {
					return err
				}
			} else {
				a.print("%s", doctor.Text(checks))
			}
			if doctor.Failed(checks) {
				return errReported
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, and nothing else, on standard output")
	c.Flags().IntVar(&prove, "prove", 0, "race this many claims at once, at least 2")
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
