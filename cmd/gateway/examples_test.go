package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/agent/openai/openaitest"
)

// TestDocumentedTurnIsTheGoldenOne compares the turn that docs/agents.md shows
// with what the package agent is tested to send.
func TestDocumentedTurnIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(mustReadText(t, "../../docs/agents.md"), -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/agents.md shows %d turns, want 1", len(blocks))
	}
	var got bytes.Buffer
	if err := json.Compact(&got, []byte(blocks[0][1])); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(mustReadText(t, "../../agent/testdata/turn.json")); got.String() != want {
		t.Errorf("docs/agents.md shows\n%s\nagents get\n%s", got.String(), want)
	}
}

// TestDocumentedAgentsAnswer runs every agent of docs/agents.md and README.md
// as it stands there, with servers of the test behind the URLs.
func TestDocumentedAgentsAnswer(t *testing.T) {
	t.Parallel()
	for path, kinds := range map[string][]string{"../../docs/agents.md": {"openai", "http", "exec"}, "../../README.md": {"echo", "openai", "http", "exec"}} {
		blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(mustReadText(t, path), -1)
		if len(blocks) != len(kinds) {
			t.Fatalf("%s shows %d configurations, want one for each of %v", path, len(blocks), kinds)
		}
		for i, kind := range kinds {
			if kind == "echo" {
				continue // claims in a Redis, and takes signed requests; see the recipes
			}
			t.Run(filepath.Base(path)+" "+kind, func(t *testing.T) {
				t.Parallel()
				answersAsDocumented(t, kind, blocks[i][1])
			})
		}
	}
}

// answersAsDocumented sends the only hook of a configuration two messages, the
// second one twice.
func answersAsDocumented(t *testing.T, kind, text string) {
	if !regexp.MustCompile(`kind: ` + kind + `\b`).MatchString(text) {
		t.Fatalf("not of kind %s:\n%s", kind, text)
	}
	model := openaitest.Start(t)
	model.RequireKey("secret-of-the-test")
	service := target(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing of it shows below
		if r.Header.Get("Authorization") != "Bearer secret-of-the-test" || r.Header.Get("Idempotency-Key") == "" || r.Header.Get("X-Turn-Fence") == "" {
			t.Errorf("the service got the headers %v", r.Header)
		}
		var turn struct {
			Message struct{ Text string }
			History []struct{ Text string }
		}
		if err := json.Unmarshal(body, &turn); err != nil {
			t.Errorf("the service got %s: %v", body, err)
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"text": fmt.Sprintf("%s after %d rows", turn.Message.Text, len(turn.History))})
	})
	text = regexp.MustCompile(`\$\{[A-Z_]+\}`).ReplaceAllString(text, "secret-of-the-test")
	text = strings.NewReplacer("https://api.openai.com/v1", model.URL(), "https://agent.example.com", service).Replace(text)
	r := assembled(t, text)
	path := mustParse(t, text).Hooks.Hooks[0].Path
	wants := map[string][2]string{
		"openai": {`^hello 1$`, `^hello 2$`},
		"http":   {`^hello 1 after 0 rows$`, `^hello 2 after 2 rows$`},
		"exec":   {`^\d\d:\d\d`, `^\d\d:\d\d`},
	}[kind]
	say := func(id int) string {
		return fmt.Sprintf(`{"id":"%d","customer":"ann","user":"ann","ticket":"T-1","text":"hello %d"}`, id, id)
	}
	for i, id := range []int{1, 2, 2} {
		w := r.post(path, say(id))
		var got struct {
			Reply        string
			Deduplicated bool
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
			t.Fatalf("message %d: %d %s", id, w.Code, w.Body)
		}
		if !regexp.MustCompile(wants[id-1]).MatchString(got.Reply) || got.Deduplicated != (i == 2) {
			t.Errorf("message %d: %+v, want %s", id, got, wants[id-1])
		}
	}
}

// TestEmbedExample builds examples/embed as anybody's module, and runs it. That
// it builds shows that embedding takes no internal package.
func TestEmbedExample(t *testing.T) {
	t.Parallel()
	const dir = "../../examples/embed"
	if strings.HasPrefix(mustReadText(t, dir+"/go.mod"), "module github.com/oncegate/") {
		t.Error("a module with a name below this one's may import internal packages")
	}
	sources, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("sources %v, %v", sources, err)
	}
	for _, path := range append(sources, dir+"/go.sum") {
		mustReadText(t, path) // so that a cached result of this test is one of these sources
	}
	program := filepath.Join(t.TempDir(), "embed")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v (after a change of go.mod: go mod tidy in examples/embed)\n%s", err, out)
	}
	state := filepath.Join(t.TempDir(), "state")

	e := startEmbedded(t, program, state)
	e.want("1", "message 1: hello", "new")
	e.want("1", "message 1: hello", "processed")
	e.want("2", "message 2: hello", "new") // so that the first one ran once
	e.stop()

	e = startEmbedded(t, program, state)
	e.want("1", "message 1: hello", "processed")
	e.want("3", "message 3: hello", "new")
	e.stop()
}

// embedded is a run of examples/embed.
type embedded struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	url    string
}

// startEmbedded starts the program on a free port and waits for its address. It
// is killed if the test does not stop it, or in vain.
func startEmbedded(t *testing.T, program, state string) *embedded {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	e := &embedded{t: t, cmd: exec.CommandContext(ctx, program, "-listen", "127.0.0.1:0", "-state", state)}
	e.cmd.Stderr = t.Output()
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.cmd.Wait() }) // an error where stop has waited
	e.stdout = bufio.NewReader(stdout)
	line, err := e.stdout.ReadString('\n')
	url, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !found {
		t.Fatalf("the program says %q, %v; want its address", line, err)
	}
	e.url = url
	return e
}

// want sends a message and checks the answer.
func (e *embedded) want(id, reply, status string) {
	e.t.Helper()
	body := `{"chat":"ann","id":"` + id + `","text":"hello"}`
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }() // nothing was written
	var got struct {
		Reply        string
		Deduplicated bool
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || res.StatusCode != http.StatusOK {
		e.t.Fatalf("message %s: status %d, %v", id, res.StatusCode, err)
	}
	if s := res.Header.Get("X-Idempotency-Status"); got.Reply != reply || s != status || got.Deduplicated != (status == "processed") {
		e.t.Errorf("message %s: %+v and %s, want %q and %s", id, got, s, reply, status)
	}
}

// stop interrupts the program, which ends well and in time.
func (e *embedded) stop() {
	e.t.Helper()
	if err := e.cmd.Process.Signal(os.Interrupt); err != nil {
		e.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, e.stdout) // to its end, before Wait closes it
	if err := e.cmd.Wait(); err != nil {
		e.t.Errorf("the program ended with %v", err)
	}
}
