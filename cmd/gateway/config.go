package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/oncegate/oncegate/config"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Check and show the configuration", a.configCheckCommand(), a.configShowCommand())
}

func (a *app) configCheckCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Report every problem of the configuration",
		Long: `Load the configuration as serve does and report every problem with its place.
Exit code 0 if there is none, 78 otherwise.`,
		Example: `  gateway config check -c gateway.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			path := a.path()
			cfg, err := config.Load(path, a.env)
			if asJSON {
				problems := []config.Problem{}
				var invalid *config.Error
				if errors.As(err, &invalid) {
					problems = invalid.Problems
				}
				return errors.Join(a.printJSON(map[string]any{"file": path, "ok": err == nil, "problems": problems}), err)
			}
			if err != nil {
				return err
			}
			a.print("%s is valid: %d hooks, %d agents\n", orDefault(path), len(cfg.Hooks.Hooks), len(cfg.Agents))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) configShowCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show",
		Short: "Print the effective configuration, secrets as ***",
		Example: `  gateway config show
  gateway config show --json | jq .hooks`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			text, err := cfg.YAML()
			if err != nil {
				return err
			}
			if !asJSON {
				a.print("%s", text)
				return nil
			}
			var tree map[string]any
			if err := yaml.Unmarshal(text, &tree); err != nil {
				return err
			}
			data, err := json.MarshalIndent(tree, "", "  ")
			if err != nil {
				return err
			}
			a.print("%s\n", data)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func orDefault(path string) string {
	if path == "" {
		return "embedded default"
	}
	return path
}
