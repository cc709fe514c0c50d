package sqlitedb

import (
	"errors"
	"io/fs"

	sqlite3 "modernc.org/sqlite/lib"
)

// Classify returns what kind of trouble an error of a file is, in the words of
// the degraded owners on /health, or "" for nil.
func Classify(err error) string {
	switch code(err) {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return "corrupt"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return "locked"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return "not_writable"
	case sqlite3.SQLITE_FULL:
		return "full"
	}
	if err == nil {
		return ""
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok { // the file or its directory cannot be made
		return "not_writable"
	}
	return "unusable"
}
