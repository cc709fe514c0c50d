package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/config"
	"github.com/oncegate/oncegate/gateway"
	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
)

// port tries to listen where the gateway would, unless it does already.
func (d *Doctor) port(ctx context.Context, cfg gateway.Config) health.Check {
	address := net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port))
	c := health.Check{ID: CheckPort, Source: address, Status: health.CheckOK}
	l, err := gateway.Listen(ctx, cfg)
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		if _, notOurs := d.Backends.Health(ctx, cfg.LocalURL(), cfg.AuthToken); notOurs == nil {
			c.Detail = address + " is in use by the running gateway"
			return c
		}
		c.Status, c.Detail = health.CheckFail, err.Error()
		c.Hint = "end the program that listens there, or change gateway.host or gateway.port"
		return c
	}
	c.Detail = address + " is free"
	return c
}

// stateDir checks that the directory, or the one it will be made in, can be
// written.
func stateDir(dir string) health.Check {
	c := health.Check{ID: CheckStateDir, Source: dir}
	fail := func(detail, hint string) health.Check {
		c.Status, c.Detail, c.Hint = health.CheckFail, detail, hint
		return c
	}
	const hint = "change its owner, or set gateway.state_dir to a directory that the gateway's user may write"
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		parent := existingParent(dir)
		if unix.Access(parent, unix.W_OK) != nil {
			return fail(fmt.Sprintf("%s does not exist and %s cannot be written", dir, parent), hint)
		}
		c.Status, c.Detail = health.CheckOK, dir+" does not exist yet; the gateway makes it when it starts"
	case err != nil:
		return fail(err.Error(), hint)
	case !info.IsDir():
		return fail(dir+" is not a directory", "move it away, or set gateway.state_dir to a directory")
	case unix.Access(dir, unix.W_OK) != nil:
		return fail(dir+" cannot be written", hint)
	default:
		c.Status, c.Detail = health.CheckOK, dir+" can be written"
	}
	return c
}

func existingParent(dir string) string {
	for {
		parent := filepath.Dir(dir)
		if _, err := os.Stat(parent); err == nil || parent == dir {
			return parent
		}
		dir = parent
	}
}

// fileSystem wants the kind that a database with a write-ahead log needs.
func (d *Doctor) fileSystem(cfg config.Config) health.Check {
	dir := cfg.Gateway.StateDir
	c := health.Check{ID: CheckFileSystem, Source: dir, Status: health.CheckOK}
	if cfg.Hooks.Idempotency.StoreBackend == idempotency.BackendMemory {
		return skipped(c.ID, dir, "store_backend is memory; no file is used")
	}
	if _, err := os.Stat(dir); err != nil {
		dir = existingParent(dir)
	}
	unshared, err := d.Backends.FileSystem(dir)
	switch {
	case err != nil:
		return skipped(c.ID, dir, "the kernel does not tell the file system of "+dir)
	case unshared != "":
		c.Status = health.CheckWarn
		c.Detail = fmt.Sprintf("%s is on %s, which gives processes no reliable shared memory: the database runs without a write-ahead log and is slower, and locks between machines may not hold", dir, unshared)
		c.Hint = "set gateway.state_dir to a directory on a local disk"
	default:
		c.Detail = dir + " is on a file system that a database can use"
	}
	return c
}

// database checks the file that holds claims, or takes them while Redis is
// away.
func (d *Doctor) database(ctx context.Context, cfg config.Config) health.Check {
	path := filepath.Join(cfg.Gateway.StateDir, DatabaseName)
	c := health.Check{ID: CheckDatabase, Source: path}
	if cfg.Hooks.Idempotency.StoreBackend == idempotency.BackendMemory {
		return skipped(c.ID, path, "store_backend is memory; no file is used")
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		c.Status, c.Detail = health.CheckOK, path+" does not exist yet; the gateway makes it when it starts"
		return c
	}
	for _, file := range []string{path, path + "-wal", path + "-shm"} {
		if err := unix.Access(file, unix.W_OK); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.Status, c.Hint = health.CheckFail, health.FileHint(DatabaseName, "not_writable")
			c.Detail = fmt.Sprintf("not_writable: %s cannot be written by this user: %v", file, err)
			return c
		}
	}
	if class, err := d.Backends.Database(ctx, path); err != nil {
		c.Status, c.Detail, c.Hint = health.CheckFail, class+": "+err.Error(), health.FileHint(DatabaseName, class)
		return c
	}
	c.Status, c.Detail = health.CheckOK, path+" is a sound database"
	return c
}
