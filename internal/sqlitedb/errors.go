package sqlitedb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Explain turns an error of a file operation or of the driver into a sentence
// that names the file and the remedy. The error stays in the chain; nil stays
// nil.
func Explain(path string, err error) error {
	if err == nil {
		return nil
	}
	err = withCause(path, err)
	switch {
	case errors.Is(err, ErrReplaced):
		return fmt.Errorf("%s was moved away, deleted or replaced while it was open; the gateway opens what is there now, and the records of the old file are not in it: %w", path, err)
	case errors.Is(err, errEmptied):
		return fmt.Errorf("%s was emptied while it was open; restore a backup while the gateway is stopped, or move it away to begin with an empty one: %w", path, err)
	case isReadOnly(err):
		return fmt.Errorf("%s is on a file system that is mounted read-only; look at the disk and mount it for writing: %w", path, err)
	case isFull(err):
		return fmt.Errorf("%s cannot grow; free some space on its disk: %w", path, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist; the gateway makes it when it starts: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s may not be read and written by user %d; change its owner: %w", path, os.Getuid(), err)
	}
	if sentence := sentence(code(err)); sentence != "" {
		return fmt.Errorf("%s %s: %w", path, sentence, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// withCause adds what SQLite knows and does not tell: that the file was moved,
// or that nobody may write where it is.
func withCause(path string, err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	if e.Code() == sqlite3.SQLITE_READONLY_DBMOVED {
		return fmt.Errorf("%w (%w)", err, ErrReplaced)
	}
	switch e.Code() & primary {
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR:
		if cause := unix.Access(path, unix.W_OK); isReadOnly(cause) {
			return fmt.Errorf("%w (%w)", err, cause)
		}
	}
	return err
}

func sentence(code int) string {
	switch code {
	case sqlite3.SQLITE_NOTADB:
		return "is not a SQLite database; move it away or choose another state directory"
	case sqlite3.SQLITE_CORRUPT:
		return "is damaged; nothing in it was changed: restore a backup, or move it away to begin with an empty one"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Sprintf("was locked by another process for longer than %s; end that process", BusyTimeout)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fmt.Sprintf("may not be written by user %d; change the owner of the file and its directory", os.Getuid())
	case sqlite3.SQLITE_IOERR:
		return "could not be read or written; look at the disk"
	case sqlite3.SQLITE_CANTOPEN:
		return fmt.Sprintf("or the log beside it cannot be opened by user %d; check their owner and mode", os.Getuid())
	}
	return ""
}

// primary masks the part of a result code that is the same for all of a kind.
const primary = 0xff

// code returns the primary result code, or 0 for an error that is not SQLite's.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & primary
	}
	return 0
}

func isBusy(err error) bool { return code(err) == sqlite3.SQLITE_BUSY }

func explainDir(dir string, err error) error {
	remedy := "cannot be used; choose another one"
	switch {
	case isReadOnly(err):
		remedy = "is on a file system that is mounted read-only; mount it for writing or choose another one"
	case isFull(err):
		remedy = "has no room for a file; free some space on its disk"
	case errors.Is(err, fs.ErrPermission):
		remedy = fmt.Sprintf("is not writable by user %d; change its owner or choose another one", os.Getuid())
	}
	return fmt.Errorf("state directory %s %s: %w", dir, remedy, err)
}
