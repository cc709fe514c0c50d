package sqlitedb

import "database/sql"

// OpenWith opens a pool with one setting that ought to read back as want.
func OpenWith(path, name, value, want string) (*sql.DB, error) {
	c, err := connect(path, "mode=rw", []pragma{{name, value, want}}, nil)
	if err != nil {
		return nil, err
	}
	return pool(c, 1), nil
}
