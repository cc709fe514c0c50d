package sqlitedb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Explain turns an error of a file operation or of the driver into a sentence
// that names the file and the remedy. The error stays in the chain; nil stays
// nil.
func Explain(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist; the gateway makes it when it starts: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s may not be read by user %d; change its owner: %w", path, os.Getuid(), err)
	}
	if sentence := sentence(code(err)); sentence != "" {
		return fmt.Errorf("%s %s: %w", path, sentence, err)
	}
	return fmt.Errorf("%s: %w", path, err)
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
	case sqlite3.SQLITE_FULL:
		return "cannot grow; free some space on its disk"
	case sqlite3.SQLITE_IOERR:
		return "could not be read or written; look at the disk"
	case sqlite3.SQLITE_CANTOPEN:
		return fmt.Sprintf("or the log beside it cannot be opened by user %d; check their owner and mode", os.Getuid())
	}
	return ""
}

// code returns the primary result code, or 0 for an error that is not SQLite's.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

func isBusy(err error) bool { return code(err) == sqlite3.SQLITE_BUSY }

func explainDir(dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("state directory %s is not writable by user %d; change its owner or choose another one: %w", dir, os.Getuid(), err)
	}
	return fmt.Errorf("state directory %s cannot be used; choose another one: %w", dir, err)
}
