package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/message"
)

func TestEcho(t *testing.T) {
	t.Parallel()
	turn := message.Turn{Message: message.Message{Text: "hello"}}
	if got, err := (agent.Echo{}).Run(t.Context(), turn); err != nil || got.Text != "hello" {
		t.Errorf("Run = %+v, %v; want the text back", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (agent.Echo{}).Run(ctx, turn); !errors.Is(err, context.Canceled) {
		t.Errorf("Run with an ended context = %v, want its error", err)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	if err := agent.DefaultConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for _, kind := range []string{"", "ehco"} {
		if err := (agent.Config{Kind: kind}).Validate(); err == nil || !strings.HasPrefix(err.Error(), "kind: ") {
			t.Errorf("kind %q: Validate = %v, want an error that names the key", kind, err)
		}
	}
}
