package sqlitestore_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/idempotency/idempotencytest"
)

// Each key is made outside of the claim path; what it costs is in the figures.
func benchmarkStore(b *testing.B, parallel int, step func(s idempotency.Store, key idempotency.Key) error) {
	s := mustOpen(b, config(b, tempPath(b)))
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(parallel)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := step(s, idempotencytest.Key(fmt.Sprint(n.Add(1)))); err != nil {
				b.Error(err)
			}
		}
	})
}

func reserve(b *testing.B) func(idempotency.Store, idempotency.Key) error {
	return func(s idempotency.Store, key idempotency.Key) error {
		_, err := s.Reserve(b.Context(), key, request("bench.TOKEN"))
		return err
	}
}

func BenchmarkReserve(b *testing.B) {
	s := mustOpen(b, config(b, tempPath(b)))
	step := reserve(b)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		if err := step(s, idempotencytest.Key(fmt.Sprint(n))); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReserveParallel(b *testing.B) { benchmarkStore(b, 32, reserve(b)) }

// A claim for a claim: what a record costs is this less what BenchmarkReserve says.
func BenchmarkReserveAndRecord(b *testing.B) {
	s := mustOpen(b, config(b, tempPath(b)))
	outcome := []byte("an answer")
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		won, err := s.Reserve(b.Context(), idempotencytest.Key(fmt.Sprint(n)), request("bench.TOKEN"))
		if err == nil {
			err = s.Record(b.Context(), won.Claim, outcome)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRecordParallel(b *testing.B) {
	benchmarkStore(b, 32, func(s idempotency.Store, key idempotency.Key) error {
		won, err := s.Reserve(b.Context(), key, request("bench.TOKEN"))
		if err != nil {
			return err
		}
		return s.Record(b.Context(), won.Claim, []byte("an answer"))
	})
}
