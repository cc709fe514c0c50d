package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

func TestAcceptedMessages(t *testing.T) {
	t.Parallel()

	t.Run("B16: a sender is answered before a slow agent, and its retries do not run again", func(t *testing.T) {
		slowly := slow(90 * time.Second)
		p := accepting(slowly)
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			start := time.Now()
			accept(t, r, msg("m"), p)
			for range 3 {
				time.Sleep(10 * time.Second)
				if got := mustProcess(t, r, msg("m"), p, message.InFlight); !got.Stored {
					t.Errorf("retry got %+v, want the word that the message is stored", got)
				}
			}
			if took := time.Since(start); took != 30*time.Second {
				t.Errorf("four answers took %s beside the pauses of 30s", took)
			}
			time.Sleep(61 * time.Second)
			if got := mustProcess(t, r, msg("m"), p, message.Processed); got.Outcome.Reply != "text of m" {
				t.Errorf("answer of the recorded message = %+v", got.Outcome)
			}
			if n := slowly.runs.Load(); n != 1 {
				t.Errorf("%d runs, want 1", n)
			}
		})
	})

	t.Run("B27: a run that fails is repeated by us, with growing pauses, and then dead for all to see", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(message.Turn) error { return errAgent }))
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			accept(t, r, msg("m"), p)
			time.Sleep(3 * time.Minute)
			j.want(t, "m/1", "m/2", "m/3", "m/4", "m/5")
			for i, want := range []time.Duration{time.Second, 4 * time.Second, 16 * time.Second, 64 * time.Second} {
				pause := j.pause(i)
				if pause < want*8/10 || pause > want*12/10+2*time.Second {
					t.Errorf("pause behind attempt %d = %s, want %s ± 20 %% and a look", i+1, pause, want)
				}
			}
			e := f.entry(t, "m")
			if e.State != idempotency.Dead || e.Stored.Cause != "max_attempts: failed/server_error" {
				t.Errorf("entry = %d %q, want dead with its reason and the last error's class", e.State, e.Stored.Cause)
			}
			if got := mustProcess(t, r, msg("m"), p, message.Processed); got.Outcome.Action != "" {
				t.Errorf("duplicate of a dead message got %+v, want nothing but the acknowledgement", got.Outcome)
			}
			if got := r.counter(t, "gateway_dead_messages_total", "max_attempts"); got != 1 {
				t.Errorf("%v dead messages counted, want 1", got)
			}
			if got := r.counter(t, "gateway_retries_total", ""); got != 4 {
				t.Errorf("%v retries counted, want 4", got)
			}
		})
	})

	t.Run("a failure that passes costs attempts and nothing else", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(t message.Turn) error {
			if t.Attempt < 3 {
				return errAgent
			}
			return nil
		}))
		inFleet(t, p, func(t *testing.T, f *fleet) {
			accept(t, f.join(t), msg("m"), p)
			time.Sleep(time.Minute)
			j.want(t, "m/1", "m/2", "m/3")
			f.wantState(t, idempotency.Recorded, "m")
		})
	})

	t.Run("a refusal that would come again is not asked for again", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(message.Turn) error { return &agent.Error{Kind: agent.Refused, Status: 401} }))
		inFleet(t, p, func(t *testing.T, f *fleet) {
			accept(t, f.join(t), msg("m"), p)
			time.Sleep(time.Hour)
			j.want(t, "m/1")
			if e := f.entry(t, "m"); e.State != idempotency.Dead || e.Stored.Cause != "refused: failed/refused" {
				t.Errorf("entry = %d %q", e.State, e.Stored.Cause)
			}
		})
	})

	t.Run("the other side's Retry-After is longer than our pause and is kept", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(t message.Turn) error {
			if t.Attempt == 1 {
				return &agent.Error{Kind: agent.RateLimited, RetryAfter: 30 * time.Second}
			}
			return nil
		}))
		inFleet(t, p, func(t *testing.T, f *fleet) {
			accept(t, f.join(t), msg("m"), p)
			time.Sleep(time.Minute)
			if pause := j.pause(0); pause < 30*time.Second || pause > 32*time.Second {
				t.Errorf("pause = %s, want 30s", pause)
			}
		})
	})

	t.Run("a panic is an attempt that failed", func(t *testing.T) {
		p := accepting(&runner{run: func(context.Context, message.Turn, int) (message.Outcome, error) { panic("agent") }})
		inFleet(t, p, func(t *testing.T, f *fleet) {
			accept(t, f.join(t), msg("m"), p)
			time.Sleep(time.Hour)
			if e := f.entry(t, "m"); e.State != idempotency.Dead || e.Stored.Cause != "max_attempts: panic" {
				t.Errorf("entry = %d %q", e.State, e.Stored.Cause)
			}
		})
	})

	t.Run("a message without identity is stored under a key of its own", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(message.Turn) error { return nil }))
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			keys := make(map[string]bool)
			for range 2 {
				got := mustProcess(t, r, msg(""), p, message.None)
				if !got.Accepted {
					t.Errorf("receipt = %+v, want it accepted", got)
				}
				keys[got.Key] = true
			}
			time.Sleep(time.Second)
			if runs := j.all(); len(keys) != 2 || len(runs) != 2 {
				t.Errorf("%d keys and %d runs, want 2 of each", len(keys), len(runs))
			}
		})
	})

	t.Run("the window of a message that its content identifies counts from its acceptance", func(t *testing.T) {
		p := accepting(slow(time.Minute))
		p.TTL, p.FromFirst = 5*time.Minute, true
		inFleet(t, p, func(t *testing.T, f *fleet) {
			accept(t, f.join(t), msg("m"), p)
			time.Sleep(2 * time.Minute)
			if left := f.entry(t, "m").Left; left != 3*time.Minute {
				t.Errorf("known for another %s, want 3m", left)
			}
		})
	})
}

func TestAcceptedMessagesOfASession(t *testing.T) {
	t.Parallel()

	t.Run("B53: a message does not overtake the one before that is tried again, on two replicas", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(t message.Turn) error {
			if t.Message.Key.ID == "1" && t.Attempt < 3 {
				return errAgent
			}
			return nil
		}))
		inFleet(t, p, func(t *testing.T, f *fleet) {
			a, b := f.join(t), f.join(t)
			accept(t, a, in("s", "1"), p)
			accept(t, b, in("s", "2"), p)
			accept(t, a, in("s", "3"), p)
			time.Sleep(time.Minute)
			j.want(t, "1/1", "1/2", "1/3", "2/1", "3/1")
		})
	})

	t.Run("one that fails for longer than order_wait gives way and is dead", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(t message.Turn) error {
			if t.Message.Key.ID == "1" {
				return errAgent
			}
			return nil
		}))
		p.Accept.MaxAttempts, p.Accept.OrderWait = 100, 2*time.Minute
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			accept(t, r, in("s", "1"), p)
			accept(t, r, in("s", "2"), p)
			time.Sleep(5 * time.Minute)
			f.wantState(t, idempotency.Dead, "1")
			f.wantState(t, idempotency.Recorded, "2")
			if got := r.counter(t, "gateway_dead_messages_total", idempotency.CauseOvertaken); got != 1 {
				t.Errorf("%v counted, want 1", got)
			}
		})
	})

	t.Run("one that runs is never overtaken", func(t *testing.T) {
		p := accepting(slow(5 * time.Minute))
		p.Accept.OrderWait = time.Minute
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			accept(t, r, in("s", "1"), p)
			accept(t, r, in("s", "2"), p)
			time.Sleep(4 * time.Minute)
			f.wantState(t, idempotency.InFlight, "1")
			f.wantState(t, idempotency.Waiting, "2")
			time.Sleep(7 * time.Minute)
			f.wantState(t, idempotency.Recorded, "1", "2")
		})
	})
}

func TestRoomForAcceptedMessages(t *testing.T) {
	t.Parallel()
	p := accepting(slow(20 * time.Second))

	t.Run("what has no slot waits in the store, not in memory", func(t *testing.T) {
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t) // of 8 slots
			for i := range 20 {
				accept(t, r, msg(fmt.Sprint(i)), p)
			}
			time.Sleep(10 * time.Second)
			page, err := f.inbox.List(t.Context(), idempotency.ListRequest{State: idempotency.InFlight, Limit: 100})
			if err != nil || len(page.Entries) != 8 {
				t.Errorf("%d messages are taken (%v), want 8", len(page.Entries), err)
			}
			time.Sleep(70 * time.Second) // and a count
			if got := r.gauge(t, "gateway_stored_messages"); got != 0 {
				t.Errorf("%v messages are stored after three rounds of 20s, want none", got)
			}
		})
	})

	t.Run("a second replica takes what the first has no room for", func(t *testing.T) {
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			f.join(t)
			for i := range 16 {
				accept(t, r, msg(fmt.Sprint(i)), p)
			}
			time.Sleep(22 * time.Second)
			if n, err := f.inbox.Count(t.Context()); err != nil || n.Stored != 0 {
				t.Errorf("%+v, %v are left after one round", n, err)
			}
		})
	})

	t.Run("slots that requests hold are not promised to stored messages", func(t *testing.T) {
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			var requests sync.WaitGroup
			for i := range 8 {
				requests.Go(func() { mustProcess(t, r, msg(fmt.Sprint("result", i)), policy(slow(20*time.Second)), message.New) })
			}
			synctest.Wait()
			accept(t, r, msg("m"), p)
			time.Sleep(10 * time.Second)
			f.wantState(t, idempotency.Waiting, "m")
			requests.Wait()
			synctest.Wait()
			f.wantState(t, idempotency.InFlight, "m") // at once, not with the next look
			time.Sleep(20 * time.Second)
		})
	})
}

func TestTakenOverMessages(t *testing.T) {
	t.Parallel()

	t.Run("B30: what a dead owner ran is not run again where the route says so", func(t *testing.T) {
		var j journal
		p := accepting(noting(&j, func(message.Turn) error { return nil }))
		p.Accept.BuryUnknown = true
		inFleet(t, p, func(t *testing.T, f *fleet) {
			f.abandon(t, 1, nil)
			f.join(t)
			time.Sleep(2 * time.Second)
			j.want(t)
			if e := f.entry(t, "m"); e.State != idempotency.Dead || e.Stored.Cause != "unknown_outcome" {
				t.Errorf("entry = %d %q", e.State, e.Stored.Cause)
			}
		})
	})

	t.Run("else it runs again", func(t *testing.T) {
		var j journal
		inFleet(t, accepting(noting(&j, func(message.Turn) error { return nil })), func(t *testing.T, f *fleet) {
			f.abandon(t, 1, nil)
			f.join(t)
			time.Sleep(2 * time.Second)
			j.want(t, "m/2")
			f.wantState(t, idempotency.Recorded, "m")
		})
	})

	t.Run("a message that kills its owners is dead after its attempts", func(t *testing.T) {
		var j journal
		inFleet(t, accepting(noting(&j, func(message.Turn) error { return nil })), func(t *testing.T, f *fleet) {
			f.abandon(t, 5, nil)
			f.join(t)
			time.Sleep(2 * time.Second)
			j.want(t)
			if e := f.entry(t, "m"); e.State != idempotency.Dead || e.Stored.Cause != "max_attempts" {
				t.Errorf("entry = %d %q", e.State, e.Stored.Cause)
			}
		})
	})

	t.Run("a checkpoint that cannot be read makes the message dead, not lost", func(t *testing.T) {
		inFleet(t, accepting(slow(time.Second)), func(t *testing.T, f *fleet) {
			f.abandon(t, 1, []byte("{"))
			f.join(t)
			time.Sleep(2 * time.Second)
			if e := f.entry(t, "m"); e.State != idempotency.Dead || e.Stored.Cause != "unreadable" {
				t.Errorf("entry = %d %q", e.State, e.Stored.Cause)
			}
		})
	})

	t.Run("a route that nobody knows is waited for, then the message is dead", func(t *testing.T) {
		p := accepting(slow(time.Second))
		inFleet(t, p, func(t *testing.T, f *fleet) {
			r := f.join(t)
			gone := p
			gone.Route = "hook:gone"
			accept(t, r, msg("m"), gone)
			time.Sleep(30 * time.Second)
			f.wantState(t, idempotency.Waiting, "m")
			time.Sleep(5 * time.Minute)
			if e := f.entry(t, "m"); e.State != idempotency.Dead || e.Stored.Cause != "max_attempts: no_route" {
				t.Errorf("entry = %d %q", e.State, e.Stored.Cause)
			}
		})
	})
}

func TestDrainHandsAcceptedMessagesOver(t *testing.T) {
	var j journal
	p := accepting(&runner{run: func(ctx context.Context, t message.Turn, _ int) (message.Outcome, error) {
		j.note(t)
		select {
		case <-time.After(time.Minute):
			return message.Outcome{Reply: "done"}, nil
		case <-ctx.Done():
			return message.Outcome{}, ctx.Err()
		}
	}})
	inFleet(t, p, func(t *testing.T, f *fleet) {
		a := f.join(t)
		for i := range 12 { // 8 run, 4 wait
			accept(t, a, msg(fmt.Sprint(i)), p)
		}
		time.Sleep(2 * time.Second)
		drain, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		start := time.Now()
		if err := a.Drain(drain); err != nil || time.Since(start) != 15*time.Second {
			t.Errorf("Drain = %v after %s, want its 15s", err, time.Since(start))
		}
		if _, err := a.Process(t.Context(), msg("late"), p); !errors.Is(err, message.ErrDraining) {
			t.Errorf("late message: %v, want ErrDraining", err)
		}
		if got := a.counter(t, "gateway_handed_over_messages_total", ""); got != 8 {
			t.Errorf("%v messages handed over, want 8", got)
		}
		f.join(t)
		time.Sleep(3 * time.Minute)
		for i := range 12 {
			e := f.entry(t, fmt.Sprint(i))
			if e.State != idempotency.Recorded {
				t.Errorf("%d is in state %d, want recorded by the other replica", i, e.State)
			}
		}
		for _, run := range j.all() {
			if strings.HasSuffix(run, "/2") {
				t.Errorf("run %s: the drain has used an attempt up", run)
			}
		}
	})
}
