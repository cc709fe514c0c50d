package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/secret"
	"github.com/oncegate/oncegate/platform"
	"github.com/oncegate/oncegate/platform/webhook"
)

// The secret of the vectors that all libraries of Standard Webhooks share.
const (
	key64  = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	signed = "whsec_" + key64
)

var reply = platform.Reply{Key: "hook::a%201:42.x", Target: "private:7", Text: "private \"words\"\n<é>😀"}

func configFor(t *testing.T, url, secretText string) platform.Config {
	t.Helper()
	c := platform.Config{Platform: platform.Webhook, URL: url}
	if secretText != "" {
		c.Secret = new(secret.New(secretText))
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// start returns a sender to a server with that handler.
func start(t *testing.T, secretText string, handler http.HandlerFunc) *webhook.Sender {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s, err := webhook.New(configFor(t, server.URL+"/private-path?a=private", secretText))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// roundTrip is the far end of a sender without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// over returns a sender, with a secret, over such a far end.
func over(t *testing.T, f roundTrip) *webhook.Sender {
	t.Helper()
	s, err := webhook.NewWith(configFor(t, "http://private.example/private-path", signed), f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answer returns what a far end says.
func answer(status int, body io.Reader, headers ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(body)}
	for i := 0; i < len(headers); i += 2 {
		resp.Header.Set(headers[i], headers[i+1])
	}
	return resp
}

// fate is what a SendError says of a reply.
type fate string

const (
	unsent  fate = "unsent"
	refused fate = "refused"
	unknown fate = "unknown"
)

func wantFate(t *testing.T, err error, want fate) *platform.SendError {
	t.Helper()
	e, ok := errors.AsType[*platform.SendError](err)
	if !ok {
		t.Fatalf("error = %v, want a *SendError", err)
	}
	got := unknown
	switch {
	case e.Refused:
		got = refused
	case e.Unsent:
		got = unsent
	}
	if got != want || e.Refused && !e.Unsent {
		t.Errorf("error = %+v, want %s", e, want)
	}
	for _, told := range []string{"private", "127.0.0.1", key64} {
		if strings.Contains(err.Error(), told) {
			t.Errorf("error = %v, which tells what nobody may read", err)
		}
	}
	return e
}

func TestAReplyIsPosted(t *testing.T) {
	t.Parallel()
	const want = `{"key":"hook::a%201:42.x","target":"private:7","text":"private \"words\"\n\u003cé\u003e😀"}`
	s := start(t, "", func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.RequestURI != "/private-path?a=private" {
			t.Errorf("request = %s %s, want POST to the URL as it is", r.Method, r.RequestURI)
		}
		if body, err := io.ReadAll(r.Body); err != nil || string(body) != want {
			t.Errorf("body = %s, %v; want %s", body, err, want)
		}
		for name, want := range map[string][]string{
			"Content-Type": {"application/json"}, "Accept": {"application/json"}, "Idempotency-Key": {reply.Key},
			"Webhook-Id": nil, "Webhook-Timestamp": nil, "Webhook-Signature": nil,
		} {
			if got := r.Header[name]; !slices.Equal(got, want) {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
	})
	if err := s.Send(t.Context(), reply); err != nil {
		t.Error(err)
	}
}

func TestAReplyIsSignedAsStandardWebhooksAre(t *testing.T) {
	t.Parallel()
	verifier, err := signature.New(signature.Config{Scheme: signature.Standard, Secrets: []secret.String{secret.New(signed)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{signed, key64} {
		s := start(t, text, func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if err := verifier.Verify(r.Header, signature.Content{Body: body}, time.Now()); err != nil {
				t.Errorf("Verify = %v, want nil", err)
			}
			if got, want := r.Header.Get("Webhook-Signature"), "v1,"+bySpecification(t, r.Header, body); got != want {
				t.Errorf("Webhook-Signature = %q, want %q", got, want)
			}
		})
		if err := s.Send(t.Context(), reply); err != nil {
			t.Error(err)
		}
	}
}

// bySpecification computes a signature as the text of Standard Webhooks says.
func bySpecification(t *testing.T, h http.Header, body []byte) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(key64)
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "." + string(body)))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Receivers remember ids, so that an id must not change with the attempt, the
// time, the replica or the version of the gateway.
func TestEveryAttemptHasTheSameID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ids, times []string
		s := over(t, func(r *http.Request) (*http.Response, error) {
			ids = append(ids, r.Header.Get("Webhook-Id"))
			times = append(times, r.Header.Get("Webhook-Timestamp"))
			return answer(200, http.NoBody), nil
		})
		other := platform.Reply{Key: reply.Key + "1", Target: reply.Target, Text: reply.Text}
		for _, r := range []platform.Reply{reply, reply, other} {
			if err := s.Send(t.Context(), r); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		const want = "msg_1e760d2a10021b51fe66e1ba4b3a1395"
		if ids[0] != want || ids[1] != want || ids[2] == want || strings.Contains(ids[2], ".") {
			t.Errorf("ids = %q, want %s twice and then another", ids, want)
		}
		if want := []string{"946684800", "946684801", "946684802"}; !slices.Equal(times, want) {
			t.Errorf("signed at %q, want %q: the time of each attempt", times, want)
		}
	})
}

func TestAReplyWithoutAKeyIsANewOneEveryTime(t *testing.T) {
	t.Parallel()
	var ids []string
	s := over(t, func(r *http.Request) (*http.Response, error) {
		for name, got := range r.Header {
			if strings.EqualFold(name, "Idempotency-Key") {
				t.Errorf("%s = %q, want none", name, got)
			}
		}
		ids = append(ids, r.Header.Get("Webhook-Id"))
		return answer(200, http.NoBody), nil
	})
	for range 2 {
		if err := s.Send(t.Context(), platform.Reply{Target: "a", Text: "b"}); err != nil {
			t.Error(err)
		}
	}
	if ids[0] == "" || ids[0] == ids[1] {
		t.Errorf("ids = %q, want two", ids)
	}
}

// A POST that net/http knows to be idempotent is sent again by itself when a
// connection that was used before breaks after the request was written.
func TestAReplyIsSentOnceWhateverBecomesOfTheConnection(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	s := start(t, signed, func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		if requests.Add(1) > 1 {
			panic(http.ErrAbortHandler) // hangs up on a connection that has worked before
		}
	})
	if err := s.Send(t.Context(), reply); err != nil {
		t.Fatal(err)
	}
	wantFate(t, s.Send(t.Context(), reply), unknown)
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests for two sends, want 2", n)
	}
}

func TestTheKeyProtectsAgainstDoublesAndThePaceIsFree(t *testing.T) {
	t.Parallel()
	s := over(t, nil)
	if !s.Idempotent() || s.Interval() != 0 {
		t.Errorf("Idempotent = %t, Interval = %s; want true and 0s", s.Idempotent(), s.Interval())
	}
}

func TestASecretThatCannotSignIsRefused(t *testing.T) {
	t.Parallel()
	c := platform.Config{Platform: platform.Webhook, URL: "http://h", Secret: new(secret.New("private!"))}
	if s, err := webhook.New(c); err == nil || strings.Contains(err.Error(), "private") {
		t.Errorf("New = %v, %v; want an error that quotes nothing", s, err)
	}
}
