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

// sender is a Sender made of a function. It notes what it was given, and when.
type sender struct {
	send       func(ctx context.Context, r platform.Reply) error // nil: takes everything
	idempotent bool
	interval   time.Duration

	mu    sync.Mutex
	sent  []string // target/text
	times []time.Time
}

func (s *sender) Send(ctx context.Context, r platform.Reply) error {
	s.mu.Lock()
	s.sent = append(s.sent, r.Target+"/"+r.Text)
	s.times = append(s.times, time.Now())
	s.mu.Unlock()
	if s.send == nil {
		return nil
	}
	return s.send(ctx, r)
}

func (s *sender) Idempotent() bool        { return s.idempotent }
func (s *sender) Interval() time.Duration { return s.interval }

// after returns when, from start, each text was sent.
func (s *sender) after(start time.Time) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []time.Duration
	for _, at := range s.times {
		all = append(all, at.Sub(start))
	}
	return all
}

func (s *sender) texts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// fixture is an outbox with one channel, "a", and what it has counted.
type fixture struct {
	*platform.Outbox
	limited []string
}

func newFixture(s platform.Sender) *fixture {
	f := &fixture{}
	f.Outbox = platform.NewOutbox(map[string]platform.Sender{"a": s}, func(channel string) { f.limited = append(f.limited, channel) })
	return f
}

func (f *fixture) to(ctx context.Context, target, text string) error {
	return f.Send(ctx, "a", platform.Reply{Key: "k-" + text, Target: target, Text: text}, nil)
}

func wantSendError(t *testing.T, err error) *platform.SendError {
	t.Helper()
	e, ok := errors.AsType[*platform.SendError](err)
	if !ok {
		t.Fatalf("error = %v, want a *SendError", err)
	}
	return e
}

func TestRepliesToOneTargetKeepTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{send: func(_ context.Context, r platform.Reply) error {
			if r.Text == "0" {
				time.Sleep(time.Minute)
			}
			return nil
		}}
		f := newFixture(s)
		var all sync.WaitGroup
		var want []string
		for i := range 50 {
			want = append(want, fmt.Sprintf("x/%d", i))
			all.Go(func() {
				if err := f.to(t.Context(), "x", fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // until it stands in the queue
		}
		all.Wait()
		if got := s.texts(); !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		if n := f.Lanes(); n != 0 {
			t.Errorf("%d targets are remembered when all is sent, want 0", n)
		}
	})
}

func TestTargetsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := &sender{interval: time.Hour, send: func(_ context.Context, r platform.Reply) error {
			if r.Target == "x" {
				time.Sleep(time.Minute)
			}
			return nil
		}}
		f := &fixture{Outbox: platform.NewOutbox(map[string]platform.Sender{"a": slow, "b": &sender{}}, nil)}
		go func() { _ = f.to(t.Context(), "x", "1") }()
		synctest.Wait()
		start := time.Now()
		if err := errors.Join(f.to(t.Context(), "y", "2"), f.Send(t.Context(), "b", platform.Reply{Target: "x"}, nil)); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("another target, and that name in another channel, waited %s, want 0s", waited)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestAnIntervalIsKeptBetweenTwoReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{interval: 10 * time.Second, send: func(context.Context, platform.Reply) error {
			time.Sleep(time.Second)
			return errors.New("no pause is spared for a failure")
		}}
		f := newFixture(s)
		start := time.Now()
		for range 3 {
			if err := f.to(t.Context(), "x", ""); err == nil {
				t.Error("Send = nil, want the sender's error")
			}
		}
		want := []time.Duration{0, 11 * time.Second, 22 * time.Second}
		if got := s.after(start); !slices.Equal(got, want) {
			t.Errorf("sent after %s, want %s", got, want)
		}
		if n := f.Lanes(); n != 1 {
			t.Errorf("%d targets are remembered during the interval, want 1", n)
		}
		time.Sleep(s.interval)
		if synctest.Wait(); f.Lanes() != 0 {
			t.Errorf("%d targets are remembered after it, want 0", f.Lanes())
		}
		if len(f.limited) != 0 {
			t.Errorf("limited was called %d times, want 0: nobody asked for a pause", len(f.limited))
		}
	})
}

// The timer of an idle lane must not drop one that is used again meanwhile.
func TestATargetInUseIsNotForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sender{interval: 10 * time.Second}
		f := newFixture(s)
		start := time.Now()
		if err := f.to(t.Context(), "x", "1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		s.send = func(context.Context, platform.Reply) error { time.Sleep(time.Minute); return nil }
		var all sync.WaitGroup
		for i := range 2 { // the first is under way when the timer of the lane's first rest goes off
			all.Go(func() { _ = f.to(t.Context(), "x", fmt.Sprint(i)) })
			synctest.Wait()
		}
		time.Sleep(30 * time.Second)
		if n := f.Lanes(); n != 1 {
			t.Errorf("%d targets are remembered, want 1", n)
		}
		all.Wait()
		want := []time.Duration{0, 10 * time.Second, 80 * time.Second}
		if got := s.after(start); !slices.Equal(got, want) {
			t.Errorf("sent after %s, want %s", got, want)
		}
		time.Sleep(10 * time.Second)
		if synctest.Wait(); f.Lanes() != 0 {
			t.Errorf("%d targets are remembered in the end, want 0", f.Lanes())
		}
	})
}

func TestTheEndOfAContextEndsEveryWait(t *testing.T) {
	t.Parallel()
	cause := errors.New("the turn is over")
	for name, s := range map[string]*sender{
		"in the queue": {send: func(_ context.Context, r platform.Reply) error {
			if r.Text == "first" {
				time.Sleep(time.Hour)
			}
			return nil
		}},
		"in an interval": {interval: time.Hour},
		"in a pause": {send: func(_ context.Context, r platform.Reply) error {
			if r.Text == "second" {
				return limit(platform.Patience)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(s)
				go func() { _ = f.to(t.Context(), "x", "first") }()
				synctest.Wait()
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(cause) })
				start := time.Now()
				err := f.to(ctx, "x", "second")
				if e := wantSendError(t, err); !e.Unsent || e.Refused || !errors.Is(err, cause) || errors.Is(err, context.Canceled) {
					t.Errorf("error = %+v, want unsent and the cause", e)
				}
				if took := time.Since(start); took != time.Second {
					t.Errorf("Send returned after %s, want 1s", took)
				}
				if err := f.to(t.Context(), "x", "third"); err != nil {
					t.Errorf("the next Send = %v, want nil", err)
				}
				if got := s.texts(); got[len(got)-1] != "x/third" || name != "in a pause" && slices.Contains(got, "x/second") {
					t.Errorf("sent %q, want the third at the end, and no second that had to wait", got)
				}
				time.Sleep(2 * time.Hour)
				if synctest.Wait(); f.Lanes() != 0 {
					t.Errorf("%d targets are remembered, want 0", f.Lanes())
				}
			})
		})
	}
}

func TestNothingIsSentOnAContextThatIsOver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("over")
	cancel(cause)
	s := &sender{}
	f := newFixture(s)
	if err := f.to(ctx, "x", "1"); !errors.Is(err, cause) || !wantSendError(t, err).Unsent || len(s.texts()) != 0 || f.Lanes() != 0 {
		t.Errorf("Send = %v, %d sent, %d targets remembered; want the cause and nothing", err, len(s.texts()), f.Lanes())
	}
}

// A turn that is handed over in the moment in which its owner gives up must
// reach the next one.
func TestNoTurnIsLostToThoseWhoGiveUp(t *testing.T) {
	t.Parallel()
	s := &sender{}
	f := newFixture(s)
	var all sync.WaitGroup
	for i := range 2000 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%2 == 0 {
				go cancel()
			}
			if err := f.to(ctx, "x", "1"); err != nil && i%2 == 1 {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := f.Lanes(); n != 0 {
		t.Errorf("%d targets are remembered, want 0", n)
	}
}

func TestASenderThatPanicsDoesNotBlockItsTarget(t *testing.T) {
	t.Parallel()
	s := &sender{send: func(_ context.Context, r platform.Reply) error {
		if r.Text == "bad" {
			panic("bad")
		}
		return nil
	}}
	f := newFixture(s)
	func() {
		defer func() { _ = recover() }()
		_ = f.to(t.Context(), "x", "bad")
	}()
	if err := f.to(t.Context(), "x", "good"); err != nil {
		t.Errorf("Send = %v, want nil", err)
	}
}

func TestAChannelThatIsNotThereRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(&sender{})
	e := wantSendError(t, f.Send(t.Context(), "b", platform.Reply{Target: "x"}, nil))
	if !e.Unsent || !e.Refused || e.RetryAfter != 0 || !strings.Contains(e.Error(), `"b"`) || f.Lanes() != 0 {
		t.Errorf("error = %+v, want a refusal that names the channel", e)
	}
}

func TestIdempotentIsTheSenders(t *testing.T) {
	t.Parallel()
	o := platform.NewOutbox(map[string]platform.Sender{"yes": &sender{idempotent: true}, "no": &sender{}}, nil)
	for channel, want := range map[string]bool{"yes": true, "no": false, "unknown": false} {
		if got := o.Idempotent(channel); got != want {
			t.Errorf("Idempotent(%q) = %t, want %t", channel, got, want)
		}
	}
}
