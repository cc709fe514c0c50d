package agent_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/oncegate/oncegate/agent"
)

func TestARowIsCutBetweenTwoCharacters(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("a", agent.MaxRowText)
	for name, test := range map[string]struct {
		row  agent.Row
		want agent.Row
	}{
		"what fits stays":              {agent.Row{Text: fits, Prompt: fits}, agent.Row{Text: fits, Prompt: fits}},
		"a text is cut":                {agent.Row{Text: fits + "b", Prompt: "p"}, agent.Row{Text: fits, Prompt: "p", Cut: true}},
		"a longer prompt is left out":  {agent.Row{Text: "t", Prompt: fits + "b"}, agent.Row{Text: "t", Prompt: "[a message too long to be kept]", Cut: true}},
		"a cut row stays one":          {agent.Row{Text: "t", Cut: true}, agent.Row{Text: "t", Cut: true}},
		"a character is not cut":       {agent.Row{Text: fits[1:] + "é"}, agent.Row{Text: fits[1:], Cut: true}},
		"one that just fits is whole":  {agent.Row{Text: fits[2:] + "é" + "b"}, agent.Row{Text: fits[2:] + "é", Cut: true}},
		"four bytes are one character": {agent.Row{Text: fits[3:] + "😀"}, agent.Row{Text: fits[3:], Cut: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := test.row
			got := test.row.Bounded()
			if got != test.want {
				t.Errorf("Bounded = %d and %d bytes, cut %t; want %d and %d, %t",
					len(got.Text), len(got.Prompt), got.Cut, len(test.want.Text), len(test.want.Prompt), test.want.Cut)
			}
			if test.row != before {
				t.Error("the row itself was changed")
			}
		})
	}
}

func TestACutTextIsValidUTF8(t *testing.T) {
	t.Parallel()
	for shift := range 4 {
		text := strings.Repeat("x", shift) + strings.Repeat("😀", agent.MaxRowText/4+1)
		got := agent.Row{Text: text}.Bounded().Text
		if !utf8.ValidString(got) || len(got) > agent.MaxRowText || len(got) < agent.MaxRowText-3 {
			t.Errorf("shifted by %d: %d bytes, valid %t; want %d at most and no half character", shift, len(got), utf8.ValidString(got), agent.MaxRowText)
		}
	}
}
