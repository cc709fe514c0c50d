package main

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncegate/oncegate/doctor"
	"github.com/oncegate/oncegate/health"
)

func (a *app) doctorCommand() *cobra.Command {
	var (
		asJSON, strict, fix bool
		prove               int
		urls                []string
	)
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong",
		Long: `Ask the running gateway what it says of itself, then check the configuration,
the machine, the database and Redis with the same code that serve uses. A check
that cannot be made is skipped, and says why.

With --fix, make the state directory and, where no token is set, one in the file
gateway.env inside it, which only its owner reads. Nothing that exists is changed.

With --prove N, make N claims of one throw-away key at once, ten times, and
demand exactly one winner each time: through the configured store, or with --url
through the gateways that run there, which must share one.

Exit code 0 without a failed check, 1 with one (with --strict also for a
warning), 2 for wrong usage. A configuration that cannot be loaded is a failed
check.`,
		Example: `  gateway doctor
  gateway doctor --strict --json | jq '.checks[] | select(.status != "ok")'
  gateway doctor --fix
  gateway doctor -c gateway.yaml --prove 200
  gateway doctor --prove 200 --url http://10.0.0.11:8765 --url http://10.0.0.12:8765`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("prove") && prove < 2 {
				return usageError{fmt.Errorf("--prove %d: it takes at least 2 claims to race", prove)}
			}
			for _, text := range urls {
				if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
					return usageError{fmt.Errorf("--url: write a gateway's address as http://host:port, without a user")}
				}
			}
			d := doctor.Doctor{Path: a.path(), Env: a.env, URLs: urls, Backends: backends(a.warnings()), Now: time.Now}
			var checks []health.Check
			if fix {
				checks = append(checks, d.Fix())
			}
			checks = append(checks, d.Check(cmd.Context())...)
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
			if doctor.Failed(checks, strict) {
				return errReported
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, and nothing else, on standard output")
	c.Flags().BoolVar(&strict, "strict", false, "exit with 1 for a warning too")
	c.Flags().BoolVar(&fix, "fix", false, "make the state directory and a token that are missing")
	c.Flags().IntVar(&prove, "prove", 0, "race this many claims at once, at least 2")
	c.Flags().StringArrayVar(&urls, "url", nil, "a running gateway to ask; repeatable for several replicas (default: where the configuration listens)")
	return c
}
