package platform_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/platform"
)

// limit returns what a platform says that wants a pause.
func limit(d time.Duration) error {
	return fmt.Errorf("wrapped: %w", &platform.SendError{Unsent: true, RetryAfter: d, Err: errors.New("slow down")})
}

// scripted returns a send function that answers one error a call, then nil.
func scripted(answers ...error) func(context.Context, platform.Reply) error {
	return func(context.Context, platform.Reply) error {
		if len(answers) == 0 {
			return nil
		}
		err := answers[0]
		answers = answers[1:]
		return err
	}
}

func TestAShortPauseIsWaitedForOnTheSpot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{send: scripted(limit(platform.Patience), limit(time.Second))}
		f := newFixture(s)
		start := time.Now()
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				if err := f.to(t.Context(), "x", fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if got, want := s.texts(), []string{"x/0", "x/0", "x/0", "x/1"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		want := []time.Duration{0, 5 * time.Second, 6 * time.Second, 6 * time.Second}
		if got := s.after(start); !slices.Equal(got, want) {
			t.Errorf("sent after %s, want %s", got, want)
		}
		if want := []string{"a", "a"}; !slices.Equal(f.limited, want) {
			t.Errorf("limited was called with %q, want %q", f.limited, want)
		}
		if n := f.Lanes(); n != 0 {
			t.Errorf("%d targets are remembered, want 0", n)
		}
	})
}

func TestAPlatformThatAsksAgainAndAgainIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{send: func(context.Context, platform.Reply) error { return limit(time.Millisecond) }}
		f := newFixture(s)
		e := wantSendError(t, f.to(t.Context(), "x", "1"))
		if !e.Unsent || e.Refused || e.RetryAfter != time.Millisecond {
			t.Errorf("error = %+v, want the last of the platform", e)
		}
		if n := len(s.texts()); n != platform.MaxRetries+1 || len(f.limited) != n {
			t.Errorf("%d sends, %d counted; want %d", n, len(f.limited), platform.MaxRetries+1)
		}
	})
}

func TestALongPauseHoldsTheTargetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{send: scripted(limit(time.Minute))}
		f := newFixture(s)
		start := time.Now()
		if e := wantSendError(t, f.to(t.Context(), "x", "1")); !e.Unsent || e.Refused || e.RetryAfter != time.Minute || e.Err.Error() != "slow down" {
			t.Errorf("error = %+v, want the platform's", e)
		}
		time.Sleep(20 * time.Second)
		e := wantSendError(t, f.to(t.Context(), "x", "2"))
		if !e.Unsent || e.Refused || e.RetryAfter != 40*time.Second {
			t.Errorf("error = %+v, want one that says unsent, and 40s to go", e)
		}
		if err := f.to(t.Context(), "y", "3"); err != nil {
			t.Errorf("another target: Send = %v, want nil", err)
		}
		time.Sleep(35 * time.Second) // so that 5 are left
		if err := f.to(t.Context(), "x", "4"); err != nil {
			t.Errorf("Send shortly before the end = %v, want nil", err)
		}
		if got, want := s.texts(), []string{"x/1", "y/3", "x/4"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		if got, want := s.after(start), []time.Duration{0, 20 * time.Second, time.Minute}; !slices.Equal(got, want) {
			t.Errorf("sent after %s, want %s", got, want)
		}
		if len(f.limited) != 1 || f.Lanes() != 0 {
			t.Errorf("limited %d times, %d targets remembered; want 1 and 0", len(f.limited), f.Lanes())
		}
	})
}

func TestThoseBehindALongPauseAreSentAwayAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{send: func(context.Context, platform.Reply) error {
			time.Sleep(time.Second)
			return limit(time.Hour)
		}}
		f := newFixture(s)
		start := time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if e := wantSendError(t, f.to(t.Context(), "x", "1")); e.RetryAfter != time.Hour {
					t.Errorf("RetryAfter = %s, want 1h", e.RetryAfter)
				}
			})
		}
		all.Wait()
		if n, took := len(s.texts()), time.Since(start); n != 1 || took != time.Second {
			t.Errorf("%d sends in %s, want 1 in 1s", n, took)
		}
		time.Sleep(time.Hour)
		if synctest.Wait(); f.Lanes() != 0 {
			t.Errorf("%d targets are remembered after the pause, want 0", f.Lanes())
		}
	})
}

func TestOnlyWhatSurelyWasNotSentIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{
		"it may have been sent": &platform.SendError{RetryAfter: time.Second, Err: errors.New("broken")},
		"it was refused":        &platform.SendError{Unsent: true, Refused: true, RetryAfter: time.Second, Err: errors.New("no")},
		"no pause is asked for": &platform.SendError{Unsent: true, Err: errors.New("not now")},
		"nothing is known":      errors.New("what is this"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &sender{send: scripted(want)}
				f := newFixture(s)
				if err := f.to(t.Context(), "x", "1"); !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "channel a: ") {
					t.Errorf("Send = %v, want the sender's error after the channel's name", err)
				}
				if got := s.texts(); len(got) != 1 {
					t.Errorf("sent %q, want it once", got)
				}
				time.Sleep(time.Second)
				if synctest.Wait(); f.Lanes() != 0 {
					t.Errorf("%d targets are remembered, want 0", f.Lanes())
				}
			})
		})
	}
}
