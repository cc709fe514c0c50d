package agent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/oncegate/oncegate/agent"
)

// Whatever an agent says, it is a reply in UTF-8 or a typed error that quotes
// nothing of it, and both readings agree where both apply.
func FuzzAnswer(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a.data))
	}
	for _, o := range others {
		f.Add([]byte(o.data))
	}
	known := map[string]bool{}
	for _, seed := range []string{"", "{}", `{"text":1}`, `{"ok":false}`} {
		_, err := agent.ReadReply([]byte(seed))
		known[err.Error()] = true
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		reply, err := agent.ReadReply(data)
		output, outputErr := agent.ReadOutput(data)
		if !utf8.ValidString(reply.Text) || !utf8.ValidString(output.Text) {
			t.Errorf("replies %q and %q, want UTF-8", reply.Text, output.Text)
		}
		if outputErr != nil && agent.KindOf(outputErr) != agent.SoftFailure {
			t.Errorf("ReadOutput = %v, want no other failure than a soft one", outputErr)
		}
		if err == nil {
			if outputErr != nil || reply != output {
				t.Errorf("ReadOutput = %q, %v; want %q as ReadReply has it", output.Text, outputErr, reply.Text)
			}
			var object map[string]any
			if json.Unmarshal(data, &object) != nil || object["text"] != nil && object["text"] != reply.Text {
				t.Errorf("reply %q, want the text of %q", reply.Text, data)
			}
			return
		}
		if reply != (agent.Reply{}) || !known[err.Error()] {
			t.Errorf("ReadReply = %q, %q; want no reply and a sentence of ours", reply.Text, err)
		}
		soft := agent.KindOf(err) == agent.SoftFailure
		if soft != (outputErr != nil) {
			t.Errorf("ReadReply = %v, ReadOutput = %v; want both to say that it failed", err, outputErr)
		}
		if !soft && strings.TrimRight(output.Text, " \t\r\n") != output.Text {
			t.Errorf("plain text %q, want no white space at its end", output.Text)
		}
	})
}
