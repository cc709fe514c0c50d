package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/message"
)

// The turn that testdata/turn.json is the wire form of.
var goldenTurn = agent.Turn{
	Turn: message.Turn{
		Key: "hook::%2Fhooks%2Fx:42", Fence: 1<<63 + 1, Attempt: 2,
		Message: message.Message{
			Key:     message.Key{Platform: "hook", Channel: "/hooks/x", ID: "42"},
			Session: "hook:x", Sender: "ann", Thread: "t-1",
			Text: "a \"b\"\n<é>&\u2028😀\x00", Prompt: "not on the wire", Body: []byte("nor this"),
		},
	},
	History: []agent.Row{
		{Role: agent.User, Text: "hello", Prompt: "not this either", Key: "hook:::41", Cut: true, Time: time.Unix(1, 0)},
		{Role: agent.Assistant, Text: "hi"},
	},
	OnDelta: func(string) {},
}

func TestTheWireFormIsTheGoldenFile(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/turn.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(goldenTurn)
	if err != nil || !bytes.Equal(append(got, '\n'), want) {
		t.Errorf("Marshal = %s, %v; want %s", got, err, want)
	}
}

func TestEveryMemberIsOnTheWireAndNoneIsNull(t *testing.T) {
	t.Parallel()
	const want = `{"key":"","session":"","fence":0,"attempt":0,"message":{"id":"","text":"","sender":"","thread":""},"history":[]}`
	got, err := agent.Turn{}.MarshalJSON()
	if err != nil || string(got) != want {
		t.Errorf("MarshalJSON = %s, %v; want %s", got, err, want)
	}
}

func TestATextThatIsNoUTF8IsMadeSo(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(turnOf(message.Message{Text: "a\xffb"}))
	if err != nil {
		t.Fatal(err)
	}
	var wire struct{ Message struct{ Text string } }
	if err := json.Unmarshal(data, &wire); err != nil || wire.Message.Text != "a\uFFFDb" {
		t.Errorf("text = %q, %v; want the byte replaced", wire.Message.Text, err)
	}
}

// answers are what agents say in the wire form. An empty kind is a reply.
var answers = map[string]struct {
	data string
	want string
	kind agent.Kind
}{
	"a text is the reply":                        {data: `{"text":"hello"}`, want: "hello"},
	"white space around it does not matter":      {data: " \n{ \"text\" : \" a \" }\r\n", want: " a "},
	"a text that is null is an empty reply":      {data: `{"text":null}`},
	"an empty text is one too":                   {data: `{"text":""}`},
	"escapes are read":                           {data: `{"text":"\u00e9\n\ud83d\ude00"}`, want: "é\n😀"},
	"what is no UTF-8 is replaced":               {data: "{\"text\":\"a\xffb\"}", want: "a\uFFFDb"},
	"half a pair of surrogates is replaced":      {data: `{"text":"\ud83d"}`, want: "\uFFFD"},
	"other members are the agent's own":          {data: `{"text":"a","ok":true,"success":true,"usage":{"text":1}}`, want: "a"},
	"a success that is no boolean says nothing":  {data: `{"text":"a","success":"false","ok":0}`, want: "a"},
	"names count as they are spelled":            {data: `{"text":"a","Text":"b","OK":false}`, want: "a"},
	"success false is a soft failure":            {data: `{"success":false}`, kind: agent.SoftFailure},
	"ok false is one":                            {data: `{"ok": false ,"error":"private"}`, kind: agent.SoftFailure},
	"one of the two is enough":                   {data: `{"ok":true,"success":false}`, kind: agent.SoftFailure},
	"a failure goes before a text":               {data: `{"ok":false,"text":"private"}`, kind: agent.SoftFailure},
	"a failure goes before a text that is none":  {data: `{"ok":false,"text":{"code":"private"}}`, kind: agent.SoftFailure},
	"a failure after the text is no less of one": {data: `{"text":"private","success":false}`, kind: agent.SoftFailure},
}

// others are no answers in the wire form, and what they are as plain text.
var others = map[string]struct {
	data string
	text string
}{
	"a sentence":                      {"the answer is 42\n", "the answer is 42"},
	"only the end is trimmed":         {"\n  a\n\n b \t\r\n", "\n  a\n\n b"},
	"nothing":                         {"", ""},
	"white space":                     {" \r\n\t", ""},
	"bytes that are no UTF-8":         {"a\xff\xfeb", "a\uFFFDb"},
	"an object without a text":        {`{"answer":"a"}`, `{"answer":"a"}`},
	"an object that says it is well":  {`{"ok":true}`, `{"ok":true}`},
	"another spelling of text":        {`{"Text":"a"}`, `{"Text":"a"}`},
	"an empty object":                 {`{}`, `{}`},
	"a text that is none":             {`{"text":5}`, `{"text":5}`},
	"half an object":                  {`{"text":"a"`, `{"text":"a"`},
	"two objects":                     {`{"text":"a"}{"text":"b"}`, `{"text":"a"}{"text":"b"}`},
	"an object after a word":          {`answer: {"text":"a"}`, `answer: {"text":"a"}`},
	"a list":                          {`[{"text":"a"}]`, `[{"text":"a"}]`},
	"null":                            {"null\n", "null"},
	"a JSON text":                     {`"a"`, `"a"`},
	"an object behind a mark of UTF8": {"\uFEFF{\"text\":\"a\"}", "\uFEFF{\"text\":\"a\"}"},
}

func wantReply(t *testing.T, got agent.Reply, err error, text string, kind agent.Kind) {
	t.Helper()
	if kind == "" {
		if err != nil || got.Text != text {
			t.Errorf("reply = %q, %v; want %q", got.Text, err, text)
		}
		return
	}
	if err == nil || agent.KindOf(err) != kind || got != (agent.Reply{}) {
		t.Errorf("reply = %q, %v; want only an error of kind %s", got.Text, err, kind)
	}
	if err != nil && strings.Contains(err.Error(), "private") {
		t.Errorf("error = %v, which quotes the answer", err)
	}
}

func TestAnAnswerInTheWireForm(t *testing.T) {
	t.Parallel()
	for name, test := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, read := range []func([]byte) (agent.Reply, error){agent.ReadReply, agent.ReadOutput} {
				got, err := read([]byte(test.data))
				wantReply(t, got, err, test.want, test.kind)
			}
		})
	}
}

func TestEverythingElseIsMalformedOrPlainText(t *testing.T) {
	t.Parallel()
	for name, test := range others {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := agent.ReadReply([]byte(test.data))
			wantReply(t, got, err, "", agent.Malformed)
			got, err = agent.ReadOutput([]byte(test.data))
			wantReply(t, got, err, test.text, "")
		})
	}
}

func TestAMalformedAnswerIsNotQuoted(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		`private`:              "agent: malformed: the answer is not a JSON object",
		`{"text":"private" x`:  "agent: malformed: the answer is not a JSON object",
		`{"text":["private"]}`: `agent: malformed: the answer has a "text" that is not a text`,
		`{"private":1}`:        `agent: malformed: the answer has no "text"`,
	} {
		if _, err := agent.ReadReply([]byte(data)); err == nil || err.Error() != want {
			t.Errorf("ReadReply(%s) = %v, want %s", data, err, want)
		}
	}
}

func TestASoftFailureIsAFailedRunThatMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	_, err := agent.ReadReply([]byte(`{"ok":false}`))
	if !errors.Is(err, message.ErrRun) || errors.Is(err, agent.ErrRefused) {
		t.Errorf("error = %v, want message.ErrRun and not refused for ever", err)
	}
}
