// Package config reads gateway.yaml: the one loader for the server, for doctor
// and for every command. It composes the Config of each package and adds only
// the file, the environment, secrets and the checks that concern more than one
// section. It links no driver.
//
// # Strictness
//
// Every problem is reported, all at once, with file, line and path. An unknown
// key, a duplicate key, a second document, a YAML tag, a value of the wrong
// kind and an unset variable are problems, never defaults. A text is taken as
// written, so that no, 12:30, 0123 and a 19-digit id arrive unchanged; a
// boolean is true or false and nothing else. A section without a value keeps
// its defaults; a setting without a value is a problem, and so is an optional
// section without one, because nobody can tell whether it was meant to be on.
//
// A file without any content is valid: it has the defaults of every section,
// no hooks and no agents. Only the absence of a file brings the embedded
// default with its echo agent and hook.
//
// # Anchors and merge keys
//
// Aliases work, within a bound on what they expand to. In a mapping with a
// merge key (<<), the mapping's own keys win over merged ones wherever they
// stand; of a list of merged mappings, the earlier wins. That is no duplicate;
// the same key written twice in one mapping is.
//
// # Environment
//
// In values, ${NAME} is replaced by the environment variable, and
// ${NAME:-default} by the default when the variable is unset or empty. $${
// is a literal ${, and every other $ stands for itself. What comes out is never
// expanded again, nor is it YAML: quotes, # and newlines in it are just text.
// Keys are not expanded.
package config

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/hooks"
)

// Config is gateway.yaml. What Load and Parse return is valid and complete:
// everything that a setting inherits from elsewhere is filled in.
type Config struct {
	Gateway  gateway.Config          `yaml:"gateway"`
	Sessions agent.SessionsConfig    `yaml:"sessions"`
	Hooks    hooks.Config            `yaml:"hooks"`
	Agents   map[string]agent.Config `yaml:"agents"`
}

// Env looks up an environment variable, as os.LookupEnv does.
type Env func(name string) (value string, ok bool)

// fileName is the file that is used when none is named.
const fileName = "gateway.yaml"

// maxFile bounds a configuration file in bytes; a larger one is a mistake.
const maxFile = 8 << 20

//go:embed default.yaml
var defaultYAML []byte

const defaultName = "embedded default"

// Default returns the embedded default: 127.0.0.1:8765, claims in SQLite, an
// echo agent named assistant and one hook named echo. Its StateDir is empty,
// because that depends on the environment.
func Default() Config {
	c, r := read(defaultName, defaultYAML, func(string) (string, bool) { return "", false })
	if err := r.err(); err != nil {
		panic(err)
	}
	return c
}

// Locate returns the file to load: flag if given, else $GATEWAY_CONFIG, else
// ./gateway.yaml if there is one, else "" for the embedded default.
func Locate(flag string, env Env) string {
	if flag != "" {
		return flag
	}
	if path, _ := env("GATEWAY_CONFIG"); path != "" {
		return path
	}
	// Lstat: a link that leads nowhere must be an error, not the default.
	if _, err := os.Lstat(fileName); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return fileName
}

// Load reads the file at path, or the embedded default if path is empty. Its
// error is an *Error.
func Load(path string, env Env) (Config, error) {
	if path == "" {
		return Parse(defaultName, defaultYAML, env)
	}
	data, err := readFile(path)
	if err != nil {
		return Config{}, &Error{Problems: []Problem{{File: path, Reason: err.Error()}}}
	}
	return Parse(path, data, env)
}

// Parse reads a configuration from data; name stands for the file in errors.
// Its error is an *Error.
func Parse(name string, data []byte, env Env) (Config, error) {
	c, r := read(name, data, env)
	dir, err := stateDir(c.Gateway.StateDir, env)
	if err != nil {
		r.add("gateway.state_dir", "%s", err)
	}
	c.Gateway.StateDir = dir
	if err := r.err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// read does everything but find the state directory. The Config is of use only
// if there is no problem.
func read(name string, data []byte, env Env) (Config, *report) {
	c := Config{Gateway: gateway.DefaultConfig(), Sessions: agent.DefaultSessionsConfig(), Hooks: hooks.DefaultConfig()}
	r := &report{file: name, lines: make(map[string]int)}
	root, ok := r.parse(data)
	if !ok {
		return c, r
	}
	b := binder{report: r, env: env, budget: r.nodes + maxExpansion}
	if root != nil {
		b.bind("", root, reflect.ValueOf(&c).Elem())
	}
	inherit(&c, r)
	if b.budget >= 0 {
		check(c, r)
	}
	return c, r
}

// readFile returns the content of a file; its errors leave the path to the caller.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("does not exist")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	}
	defer func() { _ = f.Close() }() // only read
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, errors.New("is a directory, not a file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("is larger than %d MiB", maxFile>>20)
	}
	return data, nil
}

// cause strips the operation and the path from a file error.
func cause(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// stateDir returns the directory of the database: the configured one, else
// where the environment keeps state.
func stateDir(configured string, env Env) (string, error) {
	home, _ := env("HOME")
	if rest, ok := strings.CutPrefix(configured, "~"); ok {
		switch {
		case rest != "" && rest[0] != '/':
			return "", errors.New("begins with ~ and a name; write ~/ for your own home directory, or the whole path")
		case home == "":
			return "", errors.New("begins with ~, but HOME is not set; write the whole path")
		}
		return filepath.Join(home, rest), nil
	}
	if configured != "" {
		return configured, nil
	}
	// systemd separates several state directories with colons.
	dirs, _ := env("STATE_DIRECTORY")
	if dir, _, _ := strings.Cut(dirs, ":"); dir != "" {
		return dir, nil
	}
	if dir, _ := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "oncegate"), nil
	}
	if home != "" {
		return filepath.Join(home, ".local", "state", "oncegate"), nil
	}
	return "", errors.New("is not set, and neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME is; set one of them")
}
