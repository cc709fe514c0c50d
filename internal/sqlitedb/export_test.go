package sqlitedb

import "database/sql"

// OpenWith opens a pool with one setting that ought to read back as want.
func OpenWith(path, name, value, want string) (*sql.DB, error) {
	return open(path, 1, "mode=rw", []pragma{{name, value, want}})
}
