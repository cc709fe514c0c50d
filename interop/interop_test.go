// Package interop tests the gateway against the senders themselves: requests
// that their own packages have signed go to the built binary.
package interop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// startTimeout bounds the start of a process on a busy machine.
const startTimeout = 30 * time.Second

// request is one that a sender's package has signed.
type request struct {
	Sender  string            `json:"sender"` // the package, and the path of its hook
	Scheme  string            `json:"scheme"`
	Secret  string            `json:"secret"` // of the hook
	Name    string            `json:"name"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Genuine bool              `json:"genuine"` // false: signed with another secret or at another time
}

// signed returns what sign.mjs prints.
func signed(t *testing.T) []request {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "node", "sign.mjs").Output()
	if err != nil {
		var stderr []byte
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = exit.Stderr
		}
		t.Fatalf("node sign.mjs: %v; make interop installs what it needs\n%s", err, stderr)
	}
	var all []request
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var r request
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
}

// config returns a gateway.yaml with a hook for every sender.
func config(t *testing.T, all []request) string {
	t.Helper()
	type signature struct {
		Scheme  string   `json:"scheme"`
		Secrets []string `json:"secrets"`
	}
	type hook struct {
		Path      string    `json:"path"`
		Signature signature `json:"signature"`
	}
	var hooks []hook
	seen := make(map[string]bool)
	for _, r := range all {
		if !seen[r.Sender] {
			hooks = append(hooks, hook{r.Sender, signature{r.Scheme, []string{r.Secret}}})
		}
		seen[r.Sender] = true
	}
	text, err := json.Marshal(hooks) // which is YAML too
	if err != nil {
		t.Fatal(err)
	}
	return `
gateway:
  port: 0
  state_dir: ` + t.TempDir() + `
  log: {format: json}
  auth_failures: {limit: 100000, window: 1m}
hooks:
  idempotency: {store_backend: memory}
  hooks: ` + string(text) + `
agents:
  assistant: {kind: echo}
`
}

// start builds the gateway, runs it until the test ends, and returns its URL.
func start(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	binary, path := filepath.Join(dir, "gateway"), filepath.Join(dir, "gateway.yaml")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/gateway").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", "-c", path)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, ended := make(chan string, 1), make(chan struct{})
	var log bytes.Buffer
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			log.WriteString(lines.Text() + "\n")
			var line struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
				listening <- line.Address
			}
		}
		_ = cmd.Wait() // killed below, or the log says why it ended
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		<-ended
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", &log)
		}
	})
	select {
	case address := <-listening:
		waitUntilReady(t, "http://"+address)
		return "http://" + address
	case <-ended:
		t.Fatal("the gateway ended")
	case <-time.After(startTimeout):
		t.Fatal("the gateway does not listen")
	}
	return ""
}

// waitUntilReady asks a process; there is no other event to wait for.
func waitUntilReady(t *testing.T, url string) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		res, err := http.Get(url + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the gateway does not get ready: %v", err)
		}
	}
}

// post sends a body under headers to a sender's hook.
func post(t *testing.T, url, sender string, headers map[string]string, body string) (status int, idempotency, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/hooks/"+sender, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("X-Idempotency-Status"), string(text)
}

// forgery is a genuine request after somebody has changed it.
type forgery struct {
	name    string
	headers map[string]string
	body    string
}

func forgeries(t *testing.T, r request, all []request) []forgery {
	t.Helper()
	found := []forgery{
		{"without its headers", nil, r.Body},
		{"with a space more", r.Headers, r.Body + " "},
		{"with another first byte", r.Headers, string(r.Body[0]^1) + r.Body[1:]},
		{"with another last byte", r.Headers, r.Body[:len(r.Body)-1] + string(r.Body[len(r.Body)-1]^1)},
	}
	for name, value := range r.Headers {
		lower := strings.ToLower(name)
		switch {
		case lower == "stripe-signature":
			stamp, rest, ok := strings.Cut(strings.TrimPrefix(value, "t="), ",")
			if !ok {
				t.Fatalf("%s: %s does not begin with a time", r.Sender, name)
			}
			found = append(found, forgery{"with another time", with(r.Headers, name, "t="+next(t, stamp)+","+rest), r.Body})
		case strings.HasSuffix(lower, "-timestamp"):
			found = append(found, forgery{"with another time", with(r.Headers, name, next(t, value)), r.Body})
		case strings.HasSuffix(lower, "-id"):
			found = append(found, forgery{"with another id", with(r.Headers, name, value+"0"), r.Body})
		}
	}
	for _, other := range all {
		if other.Genuine && other.Scheme != r.Scheme && other.Name == r.Name {
			found = append(found, forgery{"with the headers of " + other.Sender, other.Headers, r.Body})
		}
	}
	return found
}

// with returns headers with another value of one of them.
func with(headers map[string]string, name, value string) map[string]string {
	changed := map[string]string{name: value}
	for n, v := range headers {
		if n != name {
			changed[n] = v
		}
	}
	return changed
}

// next returns the second after a time.
func next(t *testing.T, stamp string) string {
	t.Helper()
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(seconds+1, 10)
}

func TestSendersOwnPackagesSign(t *testing.T) {
	t.Parallel()
	all := signed(t)
	url := start(t, config(t, all))
	genuine := make(map[string]int)
	for _, r := range all {
		if r.Genuine {
			genuine[r.Sender]++
		}
	}
	for _, sender := range []string{"octokit", "stripe", "standardwebhooks", "svix"} {
		if genuine[sender] == 0 {
			t.Errorf("%s has signed nothing", sender)
		}
	}
	refused := func(t *testing.T, r request, what string, headers map[string]string, body string) {
		t.Helper()
		if status, _, answer := post(t, url, r.Sender, headers, body); status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s, want 401", what, status, answer)
		}
	}
	// Forgeries go first: had one of them made a claim, the genuine request would be a duplicate.
	for _, r := range all {
		t.Run(r.Sender+"/"+r.Name, func(t *testing.T) {
			if !r.Genuine {
				refused(t, r, "as signed", r.Headers, r.Body)
				return
			}
			for _, f := range forgeries(t, r, all) {
				refused(t, r, f.name, f.headers, f.body)
			}
			if status, idempotency, answer := post(t, url, r.Sender, r.Headers, r.Body); status != http.StatusOK || idempotency != "new" {
				t.Errorf("as signed: %d %s %s, want 200 and a run", status, idempotency, answer)
			}
		})
	}
}
