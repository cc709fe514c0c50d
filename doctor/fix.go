package doctor

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/health"
)

const (
	// tokenVariable is the environment variable of the gateway's token, as the
	// embedded default and gateway.example.yaml name it.
	tokenVariable = "GATEWAY_AUTH_TOKEN"
	// environmentFile is where Fix keeps it, inside the state directory.
	environmentFile = "gateway.env"
)

// Fix makes what is missing and can be made: the state directory, and a token
// in a file that only its owner reads. Nothing that exists is changed. What it
// made is in force for later calls of d.
func (d *Doctor) Fix() health.Check {
	f := newFinding(CheckFix, d.source())
	token, err := newToken()
	if err != nil {
		f.fail("try again", "no random token can be made: %v", err)
		return f.done("")
	}
	cfg, err := config.Load(d.Path, d.Env)
	withToken := func(name string) (string, bool) {
		if name == tokenVariable {
			return token, true
		}
		return d.Env(name)
	}
	fixed, fixedErr := config.Load(d.Path, withToken)
	switch {
	case err == nil && !cfg.Gateway.AuthToken.IsEmpty():
		makeStateDir(f, cfg.Gateway.StateDir)
	case fixedErr != nil && err == nil:
		makeStateDir(f, cfg.Gateway.StateDir)
	case fixedErr != nil:
		f.warn("see the check of the configuration", "the configuration does not load with a token in %s either; nothing was made", tokenVariable)
	case fixed.Gateway.AuthToken.IsEmpty():
		makeStateDir(f, cfg.Gateway.StateDir)
		f.warn("write auth_token: ${"+tokenVariable+"} into the section gateway, and run this again", "gateway.auth_token is empty and the file does not take it from %s", tokenVariable)
	default:
		if makeStateDir(f, fixed.Gateway.StateDir) {
			d.makeToken(f, filepath.Join(fixed.Gateway.StateDir, environmentFile), token)
		}
	}
	return f.done("nothing was missing")
}

func newToken() (string, error) {
	var random [32]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(random[:]), nil
}

// makeStateDir reports whether the directory is there.
func makeStateDir(f *finding, dir string) bool {
	if _, err := os.Stat(dir); err == nil {
		return true
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.fail("make it by hand, or set gateway.state_dir", "the state directory cannot be made: %v", err)
		return false
	}
	f.note("made %s", dir)
	return true
}

// makeToken writes the token to a new file, or uses the one that is there.
func (d *Doctor) makeToken(f *finding, path, token string) {
	use := "start the gateway with it: EnvironmentFile=" + path + " in its systemd unit, or set -a; . " + path + "; set +a"
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		d.useToken(f, path, use)
		return
	}
	if err == nil {
		_, err = fmt.Fprintf(file, "%s=%s\n", tokenVariable, token)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		f.fail("let the gateway's user write the state directory", "no token can be kept: %v", err)
		return
	}
	f.note("wrote a new token to %s, which only its owner reads", path)
	f.hints = append(f.hints, use)
	d.setToken(token)
}

// useToken takes the token of a file that an earlier run has written.
func (d *Doctor) useToken(f *finding, path, use string) {
	data, err := os.ReadFile(path)
	if err != nil {
		f.fail("let the gateway's user read it", "%v", err)
		return
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if token, ok := strings.CutPrefix(lines.Text(), tokenVariable+"="); ok && token != "" {
			f.note("%s has a token already", path)
			f.hints = append(f.hints, use)
			d.setToken(token)
			return
		}
	}
	f.fail("put the line "+tokenVariable+"=… into it, or move it away", "%s exists and holds no token; it is left as it is", path)
}

func (d *Doctor) setToken(token string) {
	env := d.Env
	d.Env = func(name string) (string, bool) {
		if name == tokenVariable {
			return token, true
		}
		return env(name)
	}
}
