package openai

import (
	"errors"
	"strings"

	sdk "github.com/openai/openai-go/v3"

	"github.com/oncegate/oncegate/agent"
)

// question is what one run asks, with every attempt alike.
type question struct {
	turn    agent.Turn
	params  sdk.ChatCompletionNewParams
	private []string // the key, and where the endpoint is
	said    []string // the texts of the messages
}

func (a *Agent) ask(turn agent.Turn) (question, error) {
	c := a.config
	if isBlank(turn.Prompt()) {
		return question{}, &agent.Error{Kind: agent.Refused, Err: errors.New("the message has no text to ask about")}
	}
	q := question{
		turn:    turn,
		params:  sdk.ChatCompletionNewParams{Model: c.Model},
		private: []string{c.APIKey.Reveal(), c.BaseURL, a.host},
	}
	if !isBlank(c.Instructions) {
		q.add(sdk.SystemMessage(c.Instructions), c.Instructions)
	}
	for _, l := range conversation(turn) {
		if l.role == agent.Assistant {
			q.add(sdk.AssistantMessage(l.text), l.text)
		} else {
			q.add(sdk.UserMessage(l.text), l.text)
		}
	}
	if c.Temperature != nil {
		q.params.Temperature = sdk.Float(*c.Temperature)
	}
	if c.MaxOutputTokens != nil {
		limit := sdk.Int(int64(*c.MaxOutputTokens))
		if hasNewNames(a.host) {
			q.params.MaxCompletionTokens = limit
		} else {
			q.params.MaxTokens = limit
		}
	}
	return q, nil
}

func (q *question) add(m sdk.ChatCompletionMessageParamUnion, text string) {
	q.params.Messages = append(q.params.Messages, m)
	q.said = append(q.said, text)
}

// hasNewNames reports whether the limit of the output is max_completion_tokens.
// OpenAI's newer models refuse the old name, max_tokens; many compatible servers
// know no other, or refuse names that they do not know; and both in one request
// are refused by OpenAI. So the host decides.
func hasNewNames(host string) bool {
	host = strings.ToLower(host)
	return strings.HasSuffix(host, ".openai.com") || strings.HasSuffix(host, ".openai.azure.com")
}

type line struct {
	role agent.Role
	text string
}

// conversation returns the history and the turn as some endpoints demand it:
// nothing empty, the user first and last, and the roles by turns.
func conversation(turn agent.Turn) []line {
	var all []line
	add := func(role agent.Role, text string) {
		last := len(all) - 1
		switch {
		case isBlank(text), last < 0 && role == agent.Assistant:
		case last >= 0 && all[last].role == role:
			all[last].text += "\n\n" + text
		default:
			all = append(all, line{role, text})
		}
	}
	for _, row := range turn.History {
		text := row.Text
		if row.Prompt != "" {
			text = row.Prompt
		}
		add(row.Role, text)
	}
	add(agent.User, turn.Prompt())
	return all
}

func isBlank(text string) bool { return strings.TrimSpace(text) == "" }
