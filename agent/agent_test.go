package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/message"
)

func turnOf(m message.Message) agent.Turn { return agent.Turn{Turn: message.Turn{Message: m}} }

func TestEcho(t *testing.T) {
	t.Parallel()
	turn := turnOf(message.Message{Text: "hello", Prompt: "marked"})
	if got, err := (agent.Echo{}).Run(t.Context(), turn); err != nil || got.Text != "hello" {
		t.Errorf("Run = %+v, %v; want the text back", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (agent.Echo{}).Run(ctx, turn); !errors.Is(err, context.Canceled) {
		t.Errorf("Run with an ended context = %v, want its error", err)
	}
}

func TestAModelIsToldThePromptIfThereIsOne(t *testing.T) {
	t.Parallel()
	if got := turnOf(message.Message{Text: "raw"}).Prompt(); got != "raw" {
		t.Errorf("Prompt without one = %q, want the text", got)
	}
	if got := turnOf(message.Message{Text: "raw", Prompt: "marked"}).Prompt(); got != "marked" {
		t.Errorf("Prompt = %q, want marked", got)
	}
}

func TestDeltaTellsEachPieceThatHoldsSomething(t *testing.T) {
	t.Parallel()
	var told []string
	turn := agent.Turn{OnDelta: func(text string) { told = append(told, text) }}
	for _, piece := range []string{"a", "", " ", "b"} {
		turn.Delta(piece)
	}
	if want := []string{"a", " ", "b"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	agent.Turn{}.Delta("nobody listens")
}
