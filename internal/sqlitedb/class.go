package sqlitedb

import (
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
	sqlite3 "modernc.org/sqlite/lib"
)

// Classify returns what kind of trouble an error of a file is, in the words of
// the degraded owners on /health, or "" for nil.
func Classify(err error) string {
	if err == nil {
		return ""
	}
	switch {
	case errors.Is(err, ErrReplaced):
		return "replaced"
	case errors.Is(err, errEmptied):
		return "corrupt"
	case isReadOnly(err):
		return "readonly"
	case isFull(err):
		return "full"
	}
	switch code(err) {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return "corrupt"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return "locked"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return "not_writable"
	case sqlite3.SQLITE_IOERR:
		return "io"
	}
	if errors.Is(err, unix.EIO) {
		return "io"
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok { // the file or its directory cannot be made
		return "not_writable"
	}
	return "unusable"
}

// Lasting reports whether a person has to end trouble of a class.
func Lasting(class string) bool {
	return slices.Contains([]string{"corrupt", "readonly", "not_writable", "io", "unusable"}, class)
}

// isReadOnly reports whether the file system is mounted read-only. SQLite does
// not tell; Explain asks the kernel.
func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }

// isFull reports whether the disk, or what a user may have of it, is used up.
func isFull(err error) bool {
	return code(err) == sqlite3.SQLITE_FULL || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
