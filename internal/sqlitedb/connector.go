package sqlitedb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"modernc.org/sqlite"
)

// pragma is one setting of a connection.
type pragma struct {
	name, value string
	want        string // as the setting reads back
}

// readers is the size of the pool for reading.
const readers = 4

// The sizes, with 10 million rows measured: more cache than 64 MiB gains
// nothing while the kernel has memory left, and a checkpoint by the writer
// itself, which every claim waits for, must be rare.
const (
	writerCacheKiB = 64 << 10
	readerCacheKiB = 4 << 10
	autocheckpoint = 16000 // pages of log, 64 MB
)

// LogLimit is the size in bytes to which the writer cuts a longer log when it
// starts anew: all that can gather between two checkpoints. Below it every
// commit would make the file system allocate what it has just given up, which
// takes as long as the rest of the commit.
const LogLimit = autocheckpoint * 4096

var busyTimeout = numeric("busy_timeout", BusyTimeout.Milliseconds())

func numeric(name string, n int64) pragma {
	text := strconv.FormatInt(n, 10)
	return pragma{name, text, text}
}

func common(journal string) []pragma {
	return []pragma{busyTimeout, {"journal_mode", journal, journal}, {"synchronous", "FULL", "2"}}
}

func writerPragmas(journal string) []pragma {
	return append(common(journal),
		numeric("cache_size", -writerCacheKiB),
		numeric("wal_autocheckpoint", autocheckpoint),
		numeric("journal_size_limit", LogLimit))
}

func readerPragmas(journal string) []pragma {
	return append(common(journal), numeric("cache_size", -readerCacheKiB), pragma{"query_only", "1", "1"})
}

// connector opens connections and proves their settings.
type connector struct {
	driver.Connector
	pragmas []pragma
	check   func() error // that the file is the right one; nil: any file is
}

// connect returns what makes connections to the file; it makes none yet.
func connect(path, mode string, pragmas []pragma, check func() error) (*connector, error) {
	settings := url.Values{}
	for _, p := range pragmas {
		settings.Add("_pragma", p.name+"("+p.value+")")
	}
	name := url.URL{Scheme: "file", Path: path, RawQuery: mode + "&" + settings.Encode()}
	base, err := sqlite.NewConnector(name.String())
	if err != nil {
		return nil, Explain(path, err)
	}
	return &connector{base, pragmas, check}, nil
}

// pool returns a pool of at most size connections. One that was made is kept.
func pool(c *connector, size int) *sql.DB {
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db
}

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if c.check != nil {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range c.pragmas {
		got, err := readPragma(ctx, conn, p.name)
		if err == nil && got != p.want {
			err = fmt.Errorf("%s is %q after it was set to %q: the SQLite driver does not honour this setting", p.name, got, p.value)
		}
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

func readPragma(ctx context.Context, conn driver.Conn, name string) (string, error) {
	rows, err := conn.(driver.QueryerContext).QueryContext(ctx, "PRAGMA "+name, nil)
	if err != nil {
		return "", err
	}
	value := make([]driver.Value, 1)
	err = rows.Next(value)
	if err := errors.Join(err, rows.Close()); err != nil {
		return "", fmt.Errorf("read back %s: %w", name, err)
	}
	return fmt.Sprint(value[0]), nil
}
