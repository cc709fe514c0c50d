package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/internal/redistest"
)

// freeAddress returns an address that nothing listens on. Each server that is
// to have a known one takes it from a loopback address of its own, where the
// ports that other tests are given cannot collide with it.
func freeAddress(t *testing.T, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// at returns a configuration that listens at an address, behind a proxy on
// this machine.
func at(t *testing.T, text, address string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return replaceOnce(t, text, "port: 0", fmt.Sprintf("host: %s\n  port: %s\n  trusted_proxies: [127.0.0.1]", host, port))
}

// site returns deploy/nginx.conf with addresses and paths of a test in the
// place of its own, listening at listen in front of two replicas.
func site(t *testing.T, dir, listen string, replicas [2]string) string {
	t.Helper()
	data, err := os.ReadFile("../deploy/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, r := range [][2]string{
		{"127.0.0.1:8765", replicas[0]},
		{"127.0.0.1:8766", replicas[1]},
		{"listen 80;", "listen " + listen + ";"},
		{"/var/log/nginx/oncegate.log", filepath.Join(dir, "access.log")},
	} {
		text = replaceOnce(t, text, r[0], r[1])
	}
	return text
}

// nginxMain stands for a distribution's nginx.conf: it includes the site.
const nginxMain = `
daemon off;
pid nginx.pid;
error_log stderr;
events {}
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    access_log off;
    include site.conf;
}
`

// nginxCommand returns nginx with a site, at home in dir.
func nginxCommand(t *testing.T, dir, site string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatalf("%v; make deps installs it", err)
	}
	for name, text := range map[string]string{"main.conf": nginxMain, "site.conf": site} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return exec.Command(path, append([]string{"-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "main.conf")}, args...)...)
}

// nginx is a running one, and what senders reach.
type nginx struct {
	*process
	dir string
}

// startNginx runs nginx in front of two replicas; edit changes its site.
func startNginx(t *testing.T, replicas [2]string, edit func(site string) string) *nginx {
	t.Helper()
	dir, listen := t.TempDir(), freeAddress(t, "127.0.0.4")
	n := &nginx{launch(t, nginxCommand(t, dir, edit(site(t, dir, listen, replicas)))), dir}
	n.url = "http://" + listen
	t.Cleanup(func() {
		select {
		case <-n.done:
		default:
			n.stop() // a killed master would leave its workers behind
		}
	})
	eventually(t, "nginx listens", func() bool { return n.get("/").status != 0 })
	return n
}

func unchanged(site string) string { return site }

// stopped ends nginx and returns its access log, which is whole only then.
func (n *nginx) stopped() string {
	n.t.Helper()
	if code := n.stop(); code != 0 {
		n.t.Errorf("nginx ends with %d", code)
	}
	data, err := os.ReadFile(filepath.Join(n.dir, "access.log"))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(data)
}

func TestNginxAcceptsTheDeployedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := site(t, dir, freeAddress(t, "127.0.0.4"), [2]string{"127.0.0.2:8765", "127.0.0.3:8765"})
	out, err := nginxCommand(t, dir, text, "-t").CombinedOutput()
	if err != nil || strings.Contains(string(out), "[warn]") {
		t.Errorf("nginx -t: %v\n%s", err, out)
	}
}

// behindNginx starts one replica and nginx in front of it and of another one
// that is not there; edit changes the replica's configuration.
func behindNginx(t *testing.T, editConfig, editSite func(string) string) (*nginx, *process) {
	t.Helper()
	addresses := [2]string{freeAddress(t, "127.0.0.2"), freeAddress(t, "127.0.0.3")}
	text := at(t, config(newTarget(t).URL, sqliteStore), addresses[0])
	p := start(t, writeConfig(t, editConfig(text)))
	return startNginx(t, addresses, editSite), p
}

func TestB94NginxPassesOnWhatSendersSign(t *testing.T) {
	t.Parallel()
	front, _ := behindNginx(t, func(text string) string {
		text = replaceOnce(t, text, "  state_dir:", "  public_url: https://bot.example.com/api\n  state_dir:")
		return replaceOnce(t, text, "agents:", `
    - path: signed/url
      signature: {scheme: hmac-hex, header: X-Signature, signed_url: before, secrets: ["`+hookSecret+`"]}
      message: "{{ query.x }} {{ header.X_Odd_Name }}"
agents:`)
	}, func(site string) string { return replaceOnce(t, site, "location /hooks/ {", "location /api/hooks/ {") })
	for _, uri := range []string{
		"/api/hooks/signed/url?x=a%2Fb&y=%41%20+",
		"/api/hooks/signed/%75rl?x=a%2Fb",
		"/api/hooks/signed/url?x=a/b&",
	} {
		mac := hmac.New(sha256.New, []byte(hookSecret))
		mac.Write([]byte("https://bot.example.com" + uri + "{}"))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.url+uri, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
		req.Header.Set("X_Odd_Name", "kept")
		if got := do(req); got.status != 200 || !strings.Contains(got.body, `"a/b kept"`) {
			t.Errorf("%s: got %s, want it verified and run", uri, got)
		}
	}
}

func TestB96NginxTellsTheGatewayWhoFails(t *testing.T) {
	t.Parallel()
	front, _ := behindNginx(t, func(text string) string {
		return replaceOnce(t, text, "  state_dir:", "  auth_failures: {limit: 3, window: 10m}\n  state_dir:")
	}, unchanged)
	forge := func(from, forwarded string) answer {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
		req, err := front.request(t.Context(), "count", "delivery-1", "{}")
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Hub-Signature-256", "sha256="+strings.Repeat("0", 64))
		req.Header.Set("X-Forwarded-For", forwarded)
		return doWith(&http.Client{Transport: transport}, req)
	}
	for i, want := range []int{401, 401, 401, 429, 429} {
		if got := forge("127.0.0.5", fmt.Sprintf("192.0.2.%d", i)); got.status != want {
			t.Errorf("forgery %d got %s, want %d whatever the sender forwards", i+1, got, want)
		}
	}
	if got := forge("127.0.0.6", "127.0.0.5"); got.status != 401 {
		t.Errorf("another client got %s, want 401: its failures are its own", got)
	}
}

func TestNginxShowsHooksAlone(t *testing.T) {
	t.Parallel()
	front, p := behindNginx(t, unchanged, unchanged)
	for _, path := range []string{"/", "/livez", "/readyz", "/health", "/metrics", "/api/prove", "/hooks/../metrics", "/hooks/..%2Fmetrics", "/hooks/%2e%2e/health"} {
		if got := front.get(path); got.status != 404 || strings.Contains(got.body, `"ok":false`) {
			t.Errorf("%s: got %s, want nginx's own 404", path, got)
		}
	}
	if got := p.get("/metrics"); got.status == 404 {
		t.Errorf("the replica's own /metrics: %s", got)
	}
}

func TestNginxTakesTheBodiesThatTheGatewayTakes(t *testing.T) {
	t.Parallel()
	front, p := behindNginx(t, unchanged, unchanged)
	const limit = 1 << 20 // gateway.max_body_bytes
	body := func(size int) string { return `"` + strings.Repeat("x", size-2) + `"` }
	for _, to := range []*process{front.process, p} {
		if got := to.post("count", "largest", body(limit)); got.status != 201 {
			t.Errorf("%d bytes to %s: got %s, want 201", limit, to.url, got)
		}
	}
	if got := p.post("count", "too large", body(limit+1)); got.status != 413 {
		t.Errorf("%d bytes to the gateway: got %s, want 413", limit+1, got)
	}
	if got := front.post("count", "too large", body(limit+1)); got.status != 413 || strings.Contains(got.body, `"ok"`) {
		t.Errorf("%d bytes to nginx: got %s, want its own 413", limit+1, got)
	}
}

func TestNginxHandsARefusalOfEveryReplicaOn(t *testing.T) {
	t.Parallel()
	redis, address := redistest.Start(t), freeAddress(t, "127.0.0.2")
	text := replaceOnce(t, config(newTarget(t).URL, redisStore(redis.Addr(), "gateway:")), "store_backend: redis", "store_backend: redis, on_unavailable: closed")
	start(t, writeConfig(t, at(t, text, address)))
	front := startNginx(t, [2]string{address, address}, unchanged)
	redis.Stop()
	if got := front.post("count", "delivery-1", "{}"); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("got %s, want the replica's 503 with Retry-After", got)
	}
}
