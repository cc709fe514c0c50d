package sqlitestore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
	"github.com/oncegate/oncegate/idempotency/sqlitestore"
)

// kilobyte is a message of 1 KB, in a session of its own.
func kilobyte(session string) idempotency.Acceptance {
	return idempotency.Acceptance{Stored: idempotency.Stored{
		Session: session, Body: make([]byte, 1<<10), OrderWait: time.Minute, Keep: 7 * 24 * time.Hour,
	}}
}

func accept(b *testing.B) func(idempotency.Store, idempotency.Key) error {
	return func(s idempotency.Store, key idempotency.Key) error {
		_, err := s.(idempotency.Inbox).Accept(b.Context(), key, request("bench.TOKEN"), kilobyte(string(key)))
		return err
	}
}

func BenchmarkAccept(b *testing.B) { benchmarkAccept(b, mustOpen(b, config(b, tempPath(b)))) }

func benchmarkAccept(b *testing.B, s *sqlitestore.Store) {
	step := accept(b)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		if err := step(s, idempotencytest.Key(fmt.Sprint(n))); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAcceptParallel(b *testing.B) { benchmarkStore(b, 32, accept(b)) }

// What an asynchronous message costs in all, less its run.
func BenchmarkAcceptTakeRecord(b *testing.B) {
	s := mustOpen(b, config(b, tempPath(b)))
	step := accept(b)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		err := step(s, idempotencytest.Key(fmt.Sprint(n)))
		if err != nil {
			b.Fatal(err)
		}
		got, err := s.Take(b.Context(), idempotency.TakeRequest{Tokens: []string{"bench.TAKER"}, Look: time.Second})
		if err == nil {
			err = s.Record(b.Context(), got.Taken[0].Claim, []byte("an answer"))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// crowd is how many messages wait: half of them not due, each alone in its
// session, the others in ten long sessions, each behind one that is not due.
const crowd = 1_000_000

// mustCrowd opens a store in which many messages wait.
func mustCrowd(b *testing.B) *sqlitestore.Store {
	b.Helper()
	cfg := config(b, tempPath(b))
	s := mustOpen(b, cfg)
	db := mustOpenSQL(b, cfg.Path)
	later := time.Now().Add(24 * time.Hour).UnixMilli()
	mustExec(b, db, `
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO messages (number, id, session, queued, order_wait, keep, lease, ttl, accepted, replayed, cause, body)
		SELECT i, randomblob(16), 'test:room:' || iif(i % 2, i, i % 20), 1, 60000, 604800000, 900000, 86400000, 'r1.a', '', '', zeroblob(1024) FROM n`, crowd)
	mustExec(b, db, `
		INSERT INTO claims (id, key, state, token, fingerprint, deadline, number, attempts, until, due)
		SELECT id, 'test::room:' || number, 3, 'r1.a', zeroblob(16), ? + number, number, 1, ?, iif(number % 2 OR number <= 20, ?, NULL)
		FROM messages ORDER BY id`, later, later, later)
	mustExec(b, db, `PRAGMA wal_checkpoint(TRUNCATE)`)
	b.ResetTimer()
	return s
}

func BenchmarkAcceptBesideACrowd(b *testing.B) { benchmarkAccept(b, mustCrowd(b)) }

// A Take that finds nothing is what a sweeper does again and again.
func BenchmarkTakeBesideACrowd(b *testing.B) {
	s := mustCrowd(b)
	b.ReportAllocs()
	for b.Loop() {
		got, err := s.Take(b.Context(), idempotency.TakeRequest{Tokens: []string{"bench.TAKER"}, Look: time.Second})
		if err != nil || len(got.Taken) > 0 {
			b.Fatalf("Take = %+v, %v", got, err)
		}
	}
}

func BenchmarkCountBesideACrowd(b *testing.B) {
	s := mustCrowd(b)
	for b.Loop() {
		if n, err := s.Count(b.Context()); err != nil || n.Stored != crowd {
			b.Fatalf("Count = %+v, %v", n, err)
		}
	}
}
