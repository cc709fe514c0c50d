// Package e2e tests real gateway processes: the built binary, real servers
// behind it, real signals.
package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	hookSecret = "It's a Secret to Everybody"
	// startTimeout bounds the start of a process on a busy machine.
	startTimeout = 30 * time.Second
)

// binary is the gateway under test, built once by TestMain.
var binary string

func TestMain(m *testing.M) {
	os.Exit(build(m))
}

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "oncegate-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "gateway")
	if out, err := exec.Command("go", "build", "-o", binary, "../cmd/gateway").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// target is an HTTP server that counts what is forwarded to it, so that runs
// are counted outside the gateway.
type target struct {
	*httptest.Server
	runs  atomic.Int64
	mu    sync.Mutex
	byKey map[string]int
	delay time.Duration
	slow  int64 // how many runs, from the first, take delay; 0: all
}

func newTarget(t *testing.T) *target {
	tg := &target{byKey: make(map[string]int)}
	tg.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the count is all that matters
		n := tg.runs.Add(1)
		key := r.Header.Get("Idempotency-Key")
		tg.mu.Lock()
		tg.byKey[key]++
		tg.mu.Unlock()
		if tg.delay > 0 && (tg.slow == 0 || n <= tg.slow) {
			select {
			case <-time.After(tg.delay):
			case <-r.Context().Done():
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Run", fmt.Sprint(n))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"run":%d}`, n)
	}))
	t.Cleanup(tg.Close)
	return tg
}

// assertOncePerKey fails for every key that was run more than once.
func (tg *target) assertOncePerKey(t *testing.T) {
	t.Helper()
	tg.mu.Lock()
	defer tg.mu.Unlock()
	for key, n := range tg.byKey {
		if n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
}

// process is one running gateway, or nginx in front of several.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	log  *logBuffer
	done chan struct{}
	code int
}

// logBuffer keeps what a process prints and tells where it listens.
type logBuffer struct {
	mu        sync.Mutex
	text      bytes.Buffer
	listening chan string
	told      bool
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	if _, after, ok := strings.Cut(b.text.String(), `"msg":"listening","address":"`); ok && !b.told {
		if address, _, ok := strings.Cut(after, `"`); ok {
			b.told = true
			b.listening <- address
		}
	}
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// writeConfig writes gateway.yaml with a state directory of its own.
func writeConfig(t *testing.T, text string) (path string) {
	t.Helper()
	dir := t.TempDir()
	text = strings.ReplaceAll(text, "STATE_DIR", filepath.Join(dir, "state"))
	path = filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// replaceOnce replaces the one place where text holds old.
func replaceOnce(t *testing.T, text, old, with string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q does not stand exactly once in\n%s", old, text)
	}
	return strings.Replace(text, old, with, 1)
}

// launch starts a program. It is killed when the test ends.
func launch(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, log: &logBuffer{listening: make(chan string, 1)}, done: make(chan struct{})}
	p.cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit code says it
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", p.url, p.log)
		}
	})
	return p
}

// start runs `gateway serve` and waits until it is ready.
func start(t *testing.T, config string) *process {
	t.Helper()
	p := launch(t, exec.Command(binary, "serve", "-c", config))
	select {
	case address := <-p.log.listening:
		p.url = "http://" + address
	case <-p.done:
		t.Fatalf("gateway ended with %d:\n%s", p.code, p.log)
	case <-time.After(startTimeout):
		t.Fatalf("gateway does not listen:\n%s", p.log)
	}
	eventually(t, "the gateway is ready", func() bool { return p.get("/readyz").status == http.StatusOK })
	return p
}

// pause freezes the process until resume. It returns once all threads stand.
func (p *process) pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(p.t, "the process stands", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		for _, path := range threads {
			// The state follows the name, which stands in parentheses.
			text, readErr := os.ReadFile(path)
			if _, after, _ := strings.Cut(string(text), ") "); readErr == nil && !strings.HasPrefix(after, "T") {
				return false
			}
		}
		return err == nil && len(threads) > 0
	})
}

func (p *process) resume() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

// stop ends the process with SIGTERM and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(startTimeout):
		p.t.Fatalf("%s does not stop:\n%s", p.url, p.log)
	}
	return p.code
}

// eventually waits for another process; there is no other event to wait for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) idempotency() string { return a.header.Get("X-Idempotency-Status") }

func (a answer) String() string { return fmt.Sprintf("%d %s %s", a.status, a.idempotency(), a.body) }

var client = &http.Client{
	Timeout:   time.Minute,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64},
}

// do makes one request; status 0 says that there was no answer.
func do(req *http.Request) answer { return doWith(client, req) }

func doWith(client *http.Client, req *http.Request) answer {
	res, err := client.Do(req)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{status: res.StatusCode, header: res.Header, body: string(body)}
}

func (p *process) get(path string) answer {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.url+path, nil)
	if err != nil {
		return answer{body: err.Error()}
	}
	return do(req)
}

// post sends body to a hook, signed as GitHub signs, under a delivery id.
func (p *process) post(hook, delivery, body string) answer {
	req, err := p.request(context.Background(), hook, delivery, body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return do(req)
}

// postAndHangUp posts and closes the connection after d without an answer.
func (p *process) postAndHangUp(t *testing.T, hook, delivery string, d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	req, err := p.request(ctx, hook, delivery, "{}")
	if err != nil {
		t.Error(err)
		return
	}
	if got := do(req); got.status != 0 {
		t.Errorf("got %s before hanging up", got)
	}
}

func (p *process) request(ctx context.Context, hook, delivery, body string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/hooks/"+hook, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "issue_comment")
	req.Header.Set("X-GitHub-Delivery", delivery)
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	return req, nil
}

// mustPost posts until the message is finished, as a sender that retries does.
func (p *process) mustPost(t *testing.T, hook, delivery, body string) answer {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		a := p.post(hook, delivery, body)
		if a.status/100 == 2 {
			return a
		}
		if a.status != http.StatusConflict || time.Now().After(deadline) {
			t.Errorf("post %s to %s: %s", delivery, hook, a)
			return a
		}
	}
}

// health is the part of /health that tests read.
type healthReport struct {
	Status string `json:"status"`
	Owners []struct {
		Kind   string `json:"owner_kind"`
		ID     string `json:"owner_id"`
		State  string `json:"state"`
		Class  string `json:"class"`
		Reason string `json:"reason"`
	} `json:"degraded_owners"`
	Backends map[string]string `json:"backends"`
	Replica  string            `json:"replica"`
	Replicas []struct {
		ID        string `json:"replica"`
		Unsettled int    `json:"unsettled"`
	} `json:"replicas"`
}

func (p *process) health(t *testing.T) healthReport {
	t.Helper()
	a := p.get("/health")
	var r healthReport
	if err := json.Unmarshal([]byte(a.body), &r); err != nil || a.status != http.StatusOK {
		t.Fatalf("/health: %s, %v", a, err)
	}
	return r
}

// gateway runs a command of the binary to its end.
func gateway(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
