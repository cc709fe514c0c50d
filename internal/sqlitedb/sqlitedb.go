// Package sqlitedb is the one way in which the gateway opens a SQLite file.
//
// The driver ignores a setting that it does not know and a connection pool
// forgets one that was made by hand, so every setting stands in the connector
// and is read back on each connection before it is handed out. What cannot be
// opened is reported with its path and a remedy; the bytes of a bad file are
// never changed and never deleted.
package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
)

// BusyTimeout is how long a statement waits for the lock of another process
// before it fails.
const BusyTimeout = 5 * time.Second

// The journal modes that a file is opened with.
const (
	WAL    = "wal"    // readers and the writer do not meet; needs shared memory
	Delete = "delete" // for file systems without shared memory
)

// Config says which file to open.
type Config struct {
	Path string

	// FileSystem names the type of the file system that holds a directory, as
	// in mount(8); empty if unknown. Nil asks the kernel.
	FileSystem func(dir string) (string, error)
}

// DB is an open file. Its pools are safe for concurrent use.
type DB struct {
	Writer     *sql.DB // one connection, whose transactions take the write lock at once
	Readers    *sql.DB // a few connections that cannot write, except for checkpoints
	Path       string
	Real       string // Path without symbolic links: what belongs to the file stands beside this
	FileSystem string // empty if unknown
	Journal    string // WAL or Delete
	Warning    string // a sentence for the operator if the file system forbids WAL

	identity identity
	anew     *connector // makes connections that the pools do not have
}

// Open opens the file of c for reading and writing, with mode 0600 in a
// directory of mode 0700, both of which it makes if they are absent.
func Open(ctx context.Context, c Config) (*DB, error) {
	path, err := filepath.Abs(c.Path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c.Path, err)
	}
	dir := filepath.Dir(path)
	if err := makeFile(dir, path); err != nil {
		return nil, err
	}
	detect := c.FileSystem
	if detect == nil {
		detect = fileSystem
	}
	db := &DB{Path: path, Journal: WAL}
	if db.Real, err = filepath.EvalSymlinks(path); err != nil {
		return nil, Explain(path, err)
	}
	db.identity.path, db.identity.logPath = path, db.Real+"-wal"
	if db.FileSystem, err = detect(dir); err != nil {
		return nil, fmt.Errorf("find the file system of %s: %w", dir, err)
	}
	if lacksSharedMemory(db.FileSystem) {
		db.Journal = Delete
		db.Warning = fmt.Sprintf("%s is on %s, which gives no reliable shared memory: the database runs without a write-ahead log and is slower; put the state directory on a local disk", dir, db.FileSystem)
	}
	// A commit is durable after fdatasync as after fsync, in half the time:
	// the length of the log is synced, its time stamps need not be. Where the
	// call does not exist the driver keeps fsync.
	_, _ = sqlite.Fdatasync(true)

	write, err := connect(path, "mode=rw&_txlock=immediate", writerPragmas(db.Journal), db.identity.check)
	if err != nil {
		return nil, err
	}
	if db.anew, err = connect(path, "mode=rw", readerPragmas(db.Journal), db.identity.check); err != nil {
		return nil, err
	}
	db.Writer, db.Readers = pool(write, 1), pool(db.anew, readers)
	if err := db.start(ctx); err != nil {
		return nil, errors.Join(Explain(path, err), db.Close())
	}
	return db, nil
}

// start makes the first connections, and sees that they are all to one file.
func (db *DB) start(ctx context.Context) error {
	if err := db.identity.learn(); err != nil {
		return err
	}
	if err := db.connect(ctx); err != nil {
		return err
	}
	return db.identity.learn()
}

// connect makes the first connection of each pool. Changing the journal mode
// of a new file does not wait for a lock as other statements do, so that two
// processes which open it at once may meet; the later one tries again.
func (db *DB) connect(ctx context.Context) error {
	const pause = 10 * time.Millisecond
	giveUp := time.Now().Add(BusyTimeout)
	for {
		err := db.Writer.PingContext(ctx)
		if err == nil {
			err = db.Readers.PingContext(ctx)
		}
		if !isBusy(err) || time.Now().After(giveUp) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Close closes every connection. The last one of all processes folds the
// write-ahead log into the file. A file that was replaced has to be closed
// before the new one is opened: see detach.
func (db *DB) Close() error {
	return errors.Join(db.Readers.Close(), db.detach(), db.Writer.Close())
}

// OpenReadOnly opens a file without making or changing any: neither the file
// itself nor the write-ahead log and index beside it. It is for looking at the
// file of another process; a process that has path open must not call it.
func OpenReadOnly(ctx context.Context, path string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := checkFile(abs); err != nil {
		return nil, err
	}
	mode, err := readOnlyMode(abs)
	if err != nil {
		return nil, Explain(abs, err)
	}
	look, err := connect(abs, mode, []pragma{busyTimeout, {"query_only", "1", "1"}}, nil)
	if err != nil {
		return nil, err
	}
	db := pool(look, 1)
	// A connection reads nothing by itself; the schema tells a database from
	// any other file.
	var tables int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return nil, errors.Join(Explain(abs, err), db.Close())
	}
	return db, nil
}

// readOnlyMode chooses the mode that leaves no trace. A file in WAL mode needs
// its log and index, which SQLite would make if they are absent. They are
// there as long as any process has the file open; without them nobody writes,
// and the file is complete in itself.
func readOnlyMode(path string) (string, error) {
	if log, err := os.Stat(path + "-wal"); err == nil {
		if _, err := os.Stat(path + "-shm"); err == nil {
			return "mode=ro&readonly_shm=1", nil
		}
		if log.Size() > 0 {
			return "", errors.New("the index of its write-ahead log is missing; start the gateway once to recover it")
		}
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	const versionAt, versionWAL = 18, 2 // in the header, see https://www.sqlite.org/fileformat.html
	var version [1]byte
	if _, err := file.ReadAt(version[:], versionAt); err == nil && version[0] == versionWAL {
		return "mode=ro&immutable=1", nil
	}
	return "mode=ro", nil
}

// makeFile makes the directory and the file if they are absent. SQLite would
// make the file with a wider mode; its log and index take over the mode of the
// file. An existing file is not opened here: closing it would drop the locks
// that this process may have on it.
func makeFile(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return explainDir(dir, err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		if err := checkFile(path); err != nil {
			return err
		}
		// SQLite would open a file for reading that it may not write.
		if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
			return Explain(path, &fs.PathError{Op: "access", Path: path, Err: err})
		}
		return nil
	case err != nil:
		return explainDir(dir, err)
	}
	return file.Close()
}

func checkFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return Explain(path, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file but %s; choose another state directory", path, describe(info.Mode()))
	}
	return nil
}

func describe(mode fs.FileMode) string {
	if mode.IsDir() {
		return "a directory"
	}
	return "of mode " + mode.String()
}
