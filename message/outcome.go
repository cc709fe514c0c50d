package message

import (
	"encoding/json"
	"fmt"
)

// The actions that an Outcome can come from.
const (
	ActionAgent   = "agent"
	ActionForward = "forward"
	ActionWake    = "wake"    // an agent's turn whose reply nobody is sent
	ActionDeliver = "deliver" // the message itself is what is sent
)

// Outcome is what a finished run leaves behind. It is stored with the record
// and answered again to every duplicate inside the record window.
type Outcome struct {
	Action    string    `json:"action"`
	Agent     string    `json:"agent,omitempty"`
	Session   string    `json:"session,omitempty"`
	Reply     string    `json:"reply,omitempty"`
	Delivered *bool     `json:"delivered,omitempty"` // nil: the route has no delivery target
	Response  *Response `json:"response,omitempty"`  // of a forward
	Omitted   bool      `json:"omitted,omitempty"`   // the reply or body was too large to keep
}

// Response is a forward target's answer: the part of it that is replayed.
type Response struct {
	Status int                 `json:"status"`
	Header map[string][]string `json:"header,omitempty"`
	Body   []byte              `json:"body,omitempty"`
}

// Size returns the bytes of the reply and the response body.
func (o Outcome) Size() int64 {
	size := int64(len(o.Reply))
	if o.Response != nil {
		size += int64(len(o.Response.Body))
	}
	return size
}

// Bounded returns the outcome without its reply and response body when they
// are larger than limit bytes together, and with Omitted set. It cuts nothing
// in half: a replay is the whole answer or says that it is not.
func (o Outcome) Bounded(limit int64) Outcome {
	if o.Size() <= limit {
		return o
	}
	o.Reply, o.Omitted = "", true
	if o.Response != nil {
		kept := *o.Response
		kept.Body = nil
		o.Response = &kept
	}
	return o
}

// Encode returns the stored form.
func (o Outcome) Encode() ([]byte, error) { return json.Marshal(o) }

// DecodeOutcome reads what Encode wrote. Empty data is the zero Outcome.
func DecodeOutcome(data []byte) (Outcome, error) {
	var o Outcome
	if len(data) == 0 {
		return o, nil
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return Outcome{}, fmt.Errorf("decode stored outcome: %w", err)
	}
	return o, nil
}
