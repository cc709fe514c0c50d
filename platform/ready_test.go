package platform_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/platform"
)

func TestReadyIsCalledJustBeforeEachSend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{send: scripted(limit(2*time.Second), nil)}
		f := newFixture(s)
		start := time.Now()
		var calls []time.Duration
		err := f.Send(t.Context(), "a", platform.Reply{Target: "x"}, func(context.Context) error {
			calls = append(calls, time.Since(start))
			return nil
		})
		if want := []time.Duration{0, 2 * time.Second}; err != nil || !slices.Equal(calls, want) {
			t.Errorf("Send = %v, ready at %v; want it at %v", err, calls, want)
		}
	})
}

func TestAReplyThatIsNotReadyIsNotSent(t *testing.T) {
	t.Parallel()
	s := &sender{}
	lost := errors.New("lost")
	err := newFixture(s).Send(t.Context(), "a", platform.Reply{Target: "x"}, func(context.Context) error { return lost })
	if e := wantSendError(t, err); !e.Unsent || !errors.Is(err, lost) || len(s.texts()) != 0 {
		t.Errorf("Send = %v with %q sent, want it unsent and the cause", err, s.texts())
	}
}
