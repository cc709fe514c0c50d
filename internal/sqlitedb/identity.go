package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
)

// ErrReplaced is returned for a file that is open but no longer what stands at
// its path: it was moved away or deleted, or another one was put in its place.
// What is written to it now is lost with it.
var ErrReplaced = errors.New("the open file is not the one at its path")

// errEmptied is returned for a file that had pages and has none any more.
var errEmptied = errors.New("the open file has length 0")

// identity tells the files that are open from others that take their places.
// SQLite itself would go on with the old ones, and open new connections to the
// new ones.
type identity struct {
	path, logPath string
	file, log     fs.FileInfo // nil: not known yet
	filled        atomic.Bool // the file had a page once
}

// learn notes what stands at the paths. It is called around the making of the
// first connections, before anybody else knows the file as open.
func (id *identity) learn() (err error) {
	if err := id.check(); err != nil {
		return err
	}
	if id.file, err = os.Stat(id.path); err != nil {
		return err
	}
	id.log, err = os.Stat(id.logPath)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // without a write-ahead log
	}
	return err
}

// check compares what stands at the paths with what is open.
func (id *identity) check() error {
	if id.file == nil {
		return nil
	}
	info, err := stat(id.path, id.file)
	if err != nil {
		return err
	}
	if info.Size() > 0 {
		id.filled.Store(true)
	} else if id.filled.Load() {
		return errEmptied
	}
	if id.log != nil {
		_, err = stat(id.logPath, id.log)
	}
	return err
}

// stat returns ErrReplaced if another file than was, or none, is at path.
func stat(path string, was fs.FileInfo) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, was) {
		return nil, ErrReplaced
	}
	return info, err
}

// Check reports whether the file at the path is still the one that is open, and
// reads its first page through a new connection, which knows nothing from
// earlier: old ones would go on with what they remember of a file that somebody
// has written over. It writes nothing.
func (db *DB) Check(ctx context.Context) error {
	err := db.identity.check()
	if err == nil {
		err = db.readAnew(ctx)
	}
	return Explain(db.Path, err)
}

func (db *DB) readAnew(ctx context.Context) (err error) {
	fresh := sql.OpenDB(db.anew)
	defer func() { err = errors.Join(err, fresh.Close()) }()
	var version int
	return fresh.QueryRowContext(ctx, "PRAGMA schema_version").Scan(&version)
}

// detach completes a file that was moved away or deleted with what is in its
// log, and empties the log. SQLite leaves both as they are, and whoever opens
// the new file takes the old log for its own.
func (db *DB) detach() error {
	id := &db.identity
	if id.log == nil {
		return nil
	}
	if _, err := stat(id.path, id.file); !errors.Is(err, ErrReplaced) {
		return nil
	}
	_, err := db.Writer.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}
