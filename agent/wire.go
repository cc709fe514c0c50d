package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/message"
)

// The wire form of a turn, in which http and exec agents get it.
type (
	wireTurn struct {
		Key     string      `json:"key"`
		Session string      `json:"session"`
		Fence   uint64      `json:"fence"`
		Attempt int         `json:"attempt"`
		Message wireMessage `json:"message"`
		History []wireRow   `json:"history"`
	}
	wireMessage struct {
		ID     string `json:"id"`
		Text   string `json:"text"`
		Sender string `json:"sender"`
		Thread string `json:"thread"`
	}
	wireRow struct {
		Role Role   `json:"role"`
		Text string `json:"text"`
	}
)

// MarshalJSON returns the wire form.
func (t Turn) MarshalJSON() ([]byte, error) {
	w := wireTurn{
		Key: t.Key, Session: t.Message.Session, Fence: t.Fence, Attempt: t.Attempt,
		Message: wireMessage{ID: t.Message.Key.ID, Text: t.Message.Text, Sender: t.Message.Sender, Thread: t.Message.Thread},
		History: make([]wireRow, len(t.History)), // never null
	}
	for i, r := range t.History {
		w.History[i] = wireRow{Role: r.Role, Text: r.Text}
	}
	return json.Marshal(w)
}

// wireReply is what an agent answers. Its members are looked for by their exact
// names; others are the agent's own.
type wireReply struct {
	Text    *string
	Failed  bool // "success": false or "ok": false
	IsReply bool // an object that has one of the three
}

func parseReply(data []byte) (wireReply, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return wireReply{}, errors.New("is not a JSON object") // the decoder's own words quote it
	}
	var r wireReply
	for _, name := range []string{"success", "ok"} {
		r.Failed = r.Failed || string(members[name]) == "false"
	}
	text, ok := members["text"]
	if ok && !r.Failed && string(text) != "null" {
		if err := json.Unmarshal(text, &r.Text); err != nil {
			return r, errors.New(`has a "text" that is not a text`)
		}
	}
	r.IsReply = r.Failed || ok
	return r, nil
}

// ReadReply reads an agent's answer in the wire form, {"text": …}. A text that
// is null is an empty reply.
func ReadReply(data []byte) (Reply, error) {
	r, err := parseReply(data)
	switch {
	case err != nil:
		return Reply{}, &Error{Kind: Malformed, Err: fmt.Errorf("the answer %w", err)}
	case r.Failed:
		return Reply{}, errSoftFailure()
	case !r.IsReply:
		return Reply{}, &Error{Kind: Malformed, Err: errors.New(`the answer has no "text"`)}
	}
	return r.reply(), nil
}

// ReadOutput is ReadReply for a program, which may also answer in plain text:
// everything that is not in the wire form, without white space at its end.
func ReadOutput(data []byte) (Reply, error) {
	if r, err := parseReply(data); err == nil && r.IsReply {
		if r.Failed {
			return Reply{}, errSoftFailure()
		}
		return r.reply(), nil
	}
	return Reply{Text: string(bytes.ToValidUTF8(bytes.TrimRight(data, " \t\r\n"), []byte("\uFFFD")))}, nil
}

func errSoftFailure() error {
	return &Error{Kind: SoftFailure, Err: fmt.Errorf("%w: the answer says that it failed", message.ErrRun)}
}

func (r wireReply) reply() Reply {
	if r.Text == nil {
		return Reply{}
	}
	return Reply{Text: *r.Text}
}
