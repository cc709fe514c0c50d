package agent_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/message"
)

func TestTheKindDecidesWhetherAnotherAttemptMakesSense(t *testing.T) {
	t.Parallel()
	for _, kind := range agent.Kinds {
		err := fmt.Errorf("run: %w", &agent.Error{Kind: kind})
		if got, want := errors.Is(err, agent.ErrRefused), kind == agent.Refused || kind == agent.TooLarge; got != want {
			t.Errorf("%s: refused for ever = %t, want %t", kind, got, want)
		}
		if got, want := errors.Is(err, message.ErrTimeout), kind == agent.Timeout; got != want {
			t.Errorf("%s: a timeout = %t, want %t", kind, got, want)
		}
		if errors.Is(err, message.ErrRun) {
			t.Errorf("%s: is message.ErrRun by itself", kind)
		}
		if got := agent.KindOf(err); got != kind {
			t.Errorf("KindOf = %s, want %s", got, kind)
		}
	}
}

func TestEveryKindIsListedOnce(t *testing.T) {
	t.Parallel()
	want := []agent.Kind{
		agent.Failed, agent.Malformed, agent.Other, agent.RateLimited, agent.Refused,
		agent.ServerError, agent.SoftFailure, agent.Timeout, agent.TooLarge, agent.Unreachable,
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(agent.Kinds)); !slices.Equal(got, want) {
		t.Errorf("Kinds = %q, want %q", got, want)
	}
}

func TestAnErrorOfAnotherTypeIsOfKindOther(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, io.EOF, agent.ErrRefused} {
		if got := agent.KindOf(err); got != agent.Other {
			t.Errorf("KindOf(%v) = %s, want other", err, got)
		}
	}
}

func TestAnErrorSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]*agent.Error{
		"agent: timeout":                         {Kind: agent.Timeout},
		"agent: rate_limited (status 429)":       {Kind: agent.RateLimited, Status: 429},
		"agent: unreachable: EOF":                {Kind: agent.Unreachable, Err: io.EOF},
		"agent: malformed (status 200): no text": {Kind: agent.Malformed, Status: 200, Err: errors.New("no text")},
	} {
		if got := err.Error(); got != want {
			t.Errorf("Error = %q, want %q", got, want)
		}
		if errors.Is(err, io.EOF) != (err.Err == io.EOF) {
			t.Errorf("%s: what it wraps cannot be told", want)
		}
	}
}
