package message_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/message"
)

func TestOutcomeRoundTrip(t *testing.T) {
	t.Parallel()
	no := false
	for _, o := range []message.Outcome{
		{},
		{Action: message.ActionAgent, Agent: "a", Session: "s", Reply: "é \x00 <b>", Delivered: &no},
		{Action: message.ActionForward, Response: &message.Response{Status: 404, Header: map[string][]string{"X": {"1", "2"}}, Body: []byte("\xff\x00")}},
	} {
		data, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := message.DecodeOutcome(data); err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("DecodeOutcome(Encode(%+v)) = %+v, %v", o, got, err)
		}
	}
	if got, err := message.DecodeOutcome(nil); err != nil || !reflect.DeepEqual(got, message.Outcome{}) {
		t.Errorf("DecodeOutcome(nil) = %+v, %v; want the zero Outcome", got, err)
	}
	if _, err := message.DecodeOutcome([]byte("{")); err == nil {
		t.Error("DecodeOutcome of a broken record succeeded")
	}
}

func TestOutcomeBounded(t *testing.T) {
	t.Parallel()
	response := &message.Response{Status: 201, Body: []byte("12345")}
	for _, c := range []struct {
		name    string
		outcome message.Outcome
		omitted bool
	}{
		{"reply at the bound", message.Outcome{Reply: "12345"}, false},
		{"reply over it", message.Outcome{Reply: "123456"}, true},
		{"body at the bound", message.Outcome{Response: response}, false},
		{"body over it", message.Outcome{Response: &message.Response{Status: 201, Body: []byte(strings.Repeat("x", 6))}}, true},
	} {
		got := c.outcome.Bounded(5)
		if got.Omitted != c.omitted {
			t.Errorf("%s: Omitted = %t, want %t", c.name, got.Omitted, c.omitted)
		}
		if c.omitted && (got.Reply != "" || got.Response != nil && (len(got.Response.Body) > 0 || got.Response.Status != 201)) {
			t.Errorf("%s: kept %+v", c.name, got)
		}
		if c.outcome.Response != nil && len(c.outcome.Response.Body) == 0 {
			t.Errorf("%s: the caller's outcome was changed", c.name)
		}
	}
}
