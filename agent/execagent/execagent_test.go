package execagent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/execagent"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/message"
)

func turn() agent.Turn {
	return agent.Turn{Turn: message.Turn{
		Key: "hook:::a%201", Fence: 1<<63 + 1, Attempt: 2,
		Message: message.Message{Text: "private words", Session: "hook:a b"},
	}}
}

// configFor returns the configuration of an agent that starts one of programs.
func configFor(program, arg string, change ...func(*agent.Config)) agent.Config {
	c := agent.Config{Kind: agent.KindExec, Command: []string{os.Args[0]}, Env: map[string]secret.String{
		programVar: secret.New(program), argVar: secret.New(arg),
	}}
	for _, f := range change {
		f(&c)
	}
	return c
}

func newAgent(t *testing.T, c agent.Config) *execagent.Agent {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return execagent.New(c, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func wantKind(t *testing.T, err error, want agent.Kind) *agent.Error {
	t.Helper()
	e, ok := errors.AsType[*agent.Error](err)
	if !ok || e.Kind != want {
		t.Fatalf("error = %v, want one of kind %s", err, want)
	}
	if strings.Contains(err.Error(), "private") {
		t.Errorf("error = %v, which tells what nobody may read", err)
	}
	return e
}

func wantReply(t *testing.T, a *execagent.Agent, want string) {
	t.Helper()
	if got, err := a.Run(t.Context(), turn()); err != nil || got.Text != want {
		t.Errorf("Run = %.40q (%d bytes), %v; want %.40q (%d bytes)", got.Text, len(got.Text), err, want, len(want))
	}
}

func TestTheTurnIsOnStandardInput(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../testdata/turn.json")
	if err != nil {
		t.Fatal(err)
	}
	golden := agent.Turn{
		Turn: message.Turn{Key: "hook::%2Fhooks%2Fx:42", Fence: 1<<63 + 1, Attempt: 2, Message: message.Message{
			Key: message.Key{ID: "42"}, Session: "hook:x", Sender: "ann", Thread: "t-1", Text: "a \"b\"\n<é>&\u2028😀\x00",
		}},
		History: []agent.Row{{Role: agent.User, Text: "hello"}, {Role: agent.Assistant, Text: "hi"}},
	}
	got, err := newAgent(t, configFor("quote", "")).Run(t.Context(), golden)
	if err != nil {
		t.Fatal(err)
	}
	if input, err := strconv.Unquote(got.Text); err != nil || input != string(want) {
		t.Errorf("standard input = %s, %v; want %s and its end", got.Text, err, want)
	}
}

func TestWhatIsPrintedIsTheReply(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ program, arg, want string }{
		"plain text":                        {"print", " the answer\nis 42 \r\n\n", " the answer\nis 42"},
		"an object with a text":             {"print", `{"text":"hello\n","model":"m"}` + "\n", "hello\n"},
		"an object without one is text":     {"print", `{"answer":42}`, `{"answer":42}`},
		"nothing is an empty reply":         {"print", "", ""},
		"bytes that are no UTF-8":           {"print", "a\xffb", "a\uFFFDb"},
		"as much as a reply may have":       {"repeat", fmt.Sprint(agent.MaxReply, " a"), strings.Repeat("a", agent.MaxReply)},
		"standard error is no part of it":   {"complain", "private", "ok"},
		"a flood of errors does not hinder": {"complain", strings.Repeat("e", 100<<10), "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantReply(t, newAgent(t, configFor(test.program, test.arg)), test.want)
		})
	}
}

func TestAProgramThatSaysThatItFailed(t *testing.T) {
	t.Parallel()
	for _, said := range []string{`{"ok":false,"error":"private"}`, `{"success":false,"text":"private"}`} {
		_, err := newAgent(t, configFor("print", said)).Run(t.Context(), turn())
		wantKind(t, err, agent.SoftFailure)
	}
}

func TestAProgramThatDoesNotEndWith0Failed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ program, arg, want string }{
		"with 1":      {"exit", "1", "exit status 1"},
		"with 255":    {"exit", "255", "exit status 255"},
		"by a signal": {"kill itself", "", "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newAgent(t, configFor(test.program, test.arg)).Run(t.Context(), turn())
			wantKind(t, err, agent.Failed)
			if want := "agent: failed: the program ended with " + test.want; err.Error() != want {
				t.Errorf("error = %v, want %s", err, want)
			}
			if errors.Is(err, agent.ErrRefused) {
				t.Errorf("error = %v, want one that may pass", err)
			}
		})
	}
}

func TestAProgramThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "private")
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		// A program that is started meanwhile would hold the file open for
		// writing, and then it could not be started itself.
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct{ command, want string }{
		"a name that is not in PATH":  {"no-such-program", "no-such-program cannot be started: not found in PATH"},
		"a path that is not there":    {filepath.Join(dir, "gone"), "gone cannot be started: not found, or the interpreter that it names is not"},
		"an interpreter that is gone": {write("script", "#!"+dir+"/interpreter\n", 0o700), "script cannot be started: not found, or the interpreter that it names is not"},
		"a file without permission":   {write("text", "#!/bin/sh\n", 0o600), "text cannot be started: not executable"},
		"a file that is no program":   {write("noise", "\x00\x01", 0o700), "noise cannot be started: exec format error"},
		"a directory":                 {dir, "private cannot be started: is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, configFor("", "", func(c *agent.Config) { c.Command = []string{test.command, "private-argument"} }))
			_, err := a.Run(t.Context(), turn())
			if agent.KindOf(err) != agent.Failed || err.Error() != "agent: failed: the program "+test.want {
				t.Errorf("error = %v, want kind failed and %s", err, test.want)
			}
		})
	}
}

func TestTheArgumentsArePassedWithoutAShell(t *testing.T) {
	t.Parallel()
	command := []string{filepath.Base(os.Args[0]), "$HOME; exit 1", "*", "", "a  b"} // looked up in PATH
	a := newAgent(t, configFor("arguments", "", func(c *agent.Config) { c.Command = command }))
	wantReply(t, a, fmt.Sprintf("%q", command))
}

func TestTheEnvironmentIsNoMoreThanSaid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  map[string]string
		turn agent.Turn
		want []string
	}{
		"three variables, the configured ones and the turn": {
			map[string]string{"API_KEY": "k=1\n2"}, turn(), []string{
				"PATH=" + os.Getenv("PATH"), "HOME=/home/gateway", "LANG=C.UTF-8", "API_KEY=k=1\n2",
				"ONCEGATE_KEY=hook:::a%201", "ONCEGATE_SESSION=hook:a b", "ONCEGATE_FENCE=9223372036854775809", "ONCEGATE_ATTEMPT=2",
			},
		},
		"the configuration goes before the gateway, and the turn before both": {
			map[string]string{"LANG": "de_DE.UTF-8", "HOME": "", "PATH": "/bin", "ONCEGATE_KEY": "configured"}, agent.Turn{}, []string{
				"PATH=/bin", "HOME=", "LANG=de_DE.UTF-8", "ONCEGATE_KEY=", "ONCEGATE_SESSION=", "ONCEGATE_FENCE=0", "ONCEGATE_ATTEMPT=0",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, configFor("environment", "", func(c *agent.Config) {
				for name, value := range test.env {
					c.Env[name] = secret.New(value)
				}
			}))
			got, err := a.Run(t.Context(), test.turn)
			if err != nil {
				t.Fatal(err)
			}
			sorted := func(text string) string { return strings.Join(slices.Sorted(strings.SplitSeq(text, "\n")), "\n") }
			want := strings.Join(append(test.want, programVar+"=environment", argVar+"="), "\n")
			if sorted(got.Text) != sorted(want) {
				t.Errorf("environment =\n%s\nwant\n%s", sorted(got.Text), sorted(want))
			}
		})
	}
}

func TestWhatNoEnvironmentCanHoldIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*agent.Turn){
		"a NUL in the session": func(t *agent.Turn) { t.Message.Session = "private\x00" },
		"a NUL in the key":     func(t *agent.Turn) { t.Key = "private\x00" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := turn()
			change(&asked)
			_, err := newAgent(t, configFor("print", "")).Run(t.Context(), asked)
			wantKind(t, err, agent.Refused)
		})
	}
}

func TestStandardErrorIsForThoseWhoDebug(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 40_000) + "the end" // more than is read at once
	for name, test := range map[string]struct {
		level        slog.Level
		program, arg string
		want         string // of the log
		wantErr      agent.Kind
	}{
		"what was written":              {slog.LevelDebug, "complain", "some\nreason", "some\nreason", ""},
		"the end of a long one":         {slog.LevelDebug, "complain", long, "\uFFFD" + long[len(long)-4095:], ""},
		"also of a program that failed": {slog.LevelDebug, "exit", "1", "private reasons", agent.Failed},
		"nothing where there is none":   {slog.LevelDebug, "print", "a", "", ""},
		"and nobody else":               {slog.LevelInfo, "exit", "1", "", agent.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var buf bytes.Buffer
			log := slog.New(slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: test.level}))
			_, err := execagent.New(configFor(test.program, test.arg), log).Run(t.Context(), turn())
			if test.wantErr != "" {
				wantKind(t, err, test.wantErr)
			} else if err != nil {
				t.Fatal(err)
			}
			if test.want == "" {
				if buf.Len() > 0 {
					t.Errorf("log = %s, want nothing", &buf)
				}
				return
			}
			var got struct{ Level, Program, Key, Stderr string }
			if err := json.Unmarshal(buf.Bytes(), &got); err != nil || got.Level != "DEBUG" || got.Stderr != test.want {
				t.Errorf("log = %s, %v; want %q at level debug", &buf, err, test.want)
			}
			if got.Program != filepath.Base(os.Args[0]) || got.Key != turn().Key {
				t.Errorf("log = %s, want the program's name and the turn's key", &buf)
			}
		})
	}
}

func TestOneAgentRunsManyTurnsAtOnce(t *testing.T) {
	t.Parallel()
	a := newAgent(t, configFor("key", ""))
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			asked := turn()
			asked.Key = fmt.Sprint("k", i)
			if got, err := a.Run(t.Context(), asked); err != nil || got.Text != asked.Key {
				t.Errorf("Run = %q, %v; want %q", got.Text, err, asked.Key)
			}
		})
	}
	wg.Wait()
}
