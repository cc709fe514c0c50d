package turnlock_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/turnlock"
	"github.com/oncegate/oncegate/turnlock/turnlocktest"
)

func TestLocal(t *testing.T) {
	t.Parallel()
	turnlocktest.Run(t, turnlocktest.Suite{MaxWait: time.Minute, Rounds: 200, Bubble: true, New: func(*testing.T) *turnlocktest.Backend {
		return &turnlocktest.Backend{Locker: turnlock.NewLocal(time.Now, time.Minute)}
	}})
}

func TestLocalFencesFollowTheClock(t *testing.T) {
	t.Parallel()
	clock := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	start := clock
	l := turnlock.NewLocal(func() time.Time { return clock }, time.Minute)
	fence := func() uint64 {
		lease, err := l.Acquire(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release()
		return lease.Fence()
	}
	first := uint64(start.UnixMicro())
	for i, step := range []struct {
		move time.Duration
		want uint64
	}{
		{0, first},
		{0, first + 1},
		{-time.Hour, first + 2}, // a clock set back
		{2 * time.Hour, first + uint64(time.Hour.Microseconds())},
	} {
		clock = clock.Add(step.move)
		if got := fence(); got != step.want {
			t.Errorf("acquisition %d: fence %d, want %d", i, got, step.want)
		}
	}
	// A restart forgets the last fence, not the time.
	last := fence()
	clock = clock.Add(time.Second)
	l = turnlock.NewLocal(func() time.Time { return clock }, time.Minute)
	if got := fence(); got <= last {
		t.Errorf("fence %d after a restart, want more than %d", got, last)
	}
}
