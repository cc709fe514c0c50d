package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
	"github.com/oncegate/oncegate/internal/sqlitedb"
	"github.com/oncegate/oncegate/message"
)

const sqliteExpired = 100_000 // rows pruned beside claims

var sqliteTurns = turns{each: time.Second, rounds: 5}

// benchSQLite compares the store with plain transactions, with itself on a
// table of keys rows, and with itself while it prunes. Its files are in the
// directory for temporary files: that disk decides most of the figures.
func benchSQLite(ctx context.Context, r *report, keys int) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return fmt.Errorf("bench sqlite: %w", err)
	}
	defer os.RemoveAll(dir)
	r.section("SQLite reserve, synchronous FULL, files in " + os.TempDir())
	b := &sqliteBench{dir: dir}
	err = errors.Join(b.groupCommit(ctx, r), ctx.Err())
	if err == nil {
		err = b.largeTable(ctx, r, keys)
	}
	if err = errors.Join(err, b.close()); err != nil {
		return fmt.Errorf("bench sqlite: %w", err)
	}
	return nil
}

// sqliteBench owns the files and what is open on them.
type sqliteBench struct {
	dir     string
	closers []func() error
	id      atomic.Int64 // no two claims have the same key
}

func (b *sqliteBench) close() error {
	var errs []error
	for _, c := range b.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// groupCommit holds the store against one transaction per claim.
func (b *sqliteBench) groupCommit(ctx context.Context, r *report) error {
	plain, err := b.plain(ctx, "plain.db")
	if err != nil {
		return err
	}
	store, err := b.store(ctx, "store.db")
	if err != nil {
		return err
	}
	base, ours, err := sqliteTurns.pair(ctx, 64, plain, b.reserve(store))
	if err != nil {
		return err
	}
	r.atLeast("64 goroutines, claims/s", ours.rate, base.rate, 6)
	r.atMost("64 goroutines, p99 in µs", ours.p99, base.p99, 0.15)
	if base, ours, err = sqliteTurns.pair(ctx, 1, plain, b.reserve(store)); err != nil {
		return err
	}
	r.atMost("1 goroutine, median latency in µs", ours.p50, base.p50, 1.2)
	return nil
}

// largeTable holds a large table against an empty one, and pruning against
// none.
func (b *sqliteBench) largeTable(ctx context.Context, r *report, keys int) error {
	start := time.Now()
	if err := b.fill(ctx, "large.db", keys); err != nil {
		return err
	}
	r.note("%d keys written in %s", keys, time.Since(start).Round(time.Second))
	large, err := b.store(ctx, "large.db")
	if err != nil {
		return err
	}
	empty, err := b.store(ctx, "empty.db")
	if err != nil {
		return err
	}
	base, ours, err := sqliteTurns.pair(ctx, 64, b.reserve(empty), b.reserve(large))
	if err != nil {
		return err
	}
	r.atLeast(fmt.Sprintf("64 goroutines, claims/s among %d keys, base: empty table", keys), ours.rate, base.rate, 0.5)

	var pruned []load
	for range 3 {
		if err := b.addExpired(ctx, "large.db"); err != nil {
			return err
		}
		loads, err := b.whilePruning(ctx, large)
		if err != nil {
			return err
		}
		pruned = append(pruned, loads...)
	}
	r.atMost(fmt.Sprintf("64 goroutines, p99 in µs beside pruning of %d rows", sqliteExpired), medianLoad(pruned).p99, ours.p99, 3)
	return nil
}

// whilePruning measures claims in windows from the start to the end of a
// pruning.
func (b *sqliteBench) whilePruning(ctx context.Context, store *sqlitestore.Store) ([]load, error) {
	done := make(chan error, 1)
	go func() {
		_, err := store.Prune(ctx) // the upkeep may have begun with some of the rows
		done <- err
	}()
	var loads []load
	for {
		l, err := measure(ctx, 64, sqliteTurns.each/2, b.reserve(store))
		if err != nil {
			return nil, errors.Join(err, <-done)
		}
		loads = append(loads, l)
		select {
		case err := <-done:
			return loads, err
		default:
		}
	}
}

func (b *sqliteBench) next() idempotency.Key {
	return idempotency.Key("hook::bench:" + strconv.FormatInt(b.id.Add(1), 10))
}

func (b *sqliteBench) store(ctx context.Context, name string) (*sqlitestore.Store, error) {
	store, err := b.openStore(ctx, name)
	if err == nil {
		b.closers = append(b.closers, store.Close)
	}
	return store, err
}

func (b *sqliteBench) openStore(ctx context.Context, name string) (*sqlitestore.Store, error) {
	return sqlitestore.Open(ctx, sqlitestore.Config{Path: filepath.Join(b.dir, name), Now: time.Now, Log: slog.New(slog.DiscardHandler)})
}

// reserve returns the store's side. Its claims, like those of plain, run on a
// context without an end: watching one costs the driver a goroutine for each
// statement.
func (b *sqliteBench) reserve(store *sqlitestore.Store) side {
	req := idempotency.Request{Token: idempotency.NewToken("bench"), Lease: 15 * time.Minute, TTL: 24 * time.Hour, Fingerprint: message.Fingerprint{1}}
	return func(context.Context) error {
		_, err := store.Reserve(context.Background(), b.next(), req)
		return err
	}
}

// plain returns the base: an immediate transaction for each claim, on the
// table and with the settings of the store. It has one connection, since
// several would only sleep for each other's lock.
func (b *sqliteBench) plain(ctx context.Context, name string) (side, error) {
	if err := b.makeTable(ctx, name); err != nil {
		return nil, err
	}
	db, err := sqlitedb.Open(ctx, sqlitedb.Config{Path: filepath.Join(b.dir, name)})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, db.Close)
	insert, err := db.Writer.PrepareContext(ctx, `
		INSERT INTO claims (id, key, state, token, fingerprint, deadline) VALUES (?, ?, 0, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET token = excluded.token, deadline = excluded.deadline WHERE claims.deadline <= ?`)
	if err != nil {
		return nil, err
	}
	token, print := idempotency.NewToken("bench"), message.Fingerprint{1}
	return func(context.Context) error {
		key := b.next()
		id := sha256.Sum256([]byte(key))
		tx, err := db.Writer.Begin()
		if err != nil {
			return err
		}
		now := time.Now()
		if _, err := tx.Stmt(insert).Exec(id[:16], string(key), token, print[:], now.Add(15*time.Minute).UnixMilli(), now.UnixMilli()); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}, nil
}

// makeTable makes a file with the store's tables.
func (b *sqliteBench) makeTable(ctx context.Context, name string) error {
	store, err := b.openStore(ctx, name)
	if err != nil {
		return err
	}
	return store.Close()
}

// fill makes a file with keys records, in the order of their ids and without
// waiting for the disk.
func (b *sqliteBench) fill(ctx context.Context, name string, keys int) error {
	if err := b.makeTable(ctx, name); err != nil {
		return err
	}
	return b.exec(ctx, name, "_pragma=journal_mode(OFF)&_pragma=synchronous(OFF)&_pragma=cache_size(-262144)", `
		WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1)
		INSERT INTO claims SELECT unhex(printf('%014x%s', i * ((1 << 56) / ?1), hex(randomblob(9)))), 'hook::large:' || i, 1,
			'abcdefghijkl.ABCDEFGHIJKLMNOPQRSTUVWXYZ', zeroblob(16), ?2 + i, CAST('{"action":"agent","reply":"ok"}' AS BLOB), 0 FROM n`,
		keys, time.Now().Add(24*time.Hour).UnixMilli())
}

// addExpired adds records all over the table whose window is over.
func (b *sqliteBench) addExpired(ctx context.Context, name string) error {
	return b.exec(ctx, name, "_pragma=busy_timeout(60000)", `
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO claims SELECT randomblob(16), 'hook::expired:' || i, 1,
			'abcdefghijkl.ABCDEFGHIJKLMNOPQRSTUVWXYZ', zeroblob(16), i, CAST('{"action":"agent","reply":"ok"}' AS BLOB), 0 FROM n`,
		sqliteExpired)
}

func (b *sqliteBench) exec(ctx context.Context, name, settings, statement string, args ...any) error {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.dir, name)+"?"+settings)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement, args...)
	return errors.Join(err, db.Close())
}
