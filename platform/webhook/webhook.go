// Package webhook sends replies to programs: each one is a POST of
// {"key": …, "target": …, "text": …} to the channel's URL.
//
// The request carries the reply's key as Idempotency-Key and, where the channel
// has a secret, is signed as Standard Webhooks have it, with an id that is the
// same for every attempt. The receiver is expected to take a key only once; it
// takes a reply with any 2xx, unless the body says "ok": false or "success":
// false. What another answer means for the reply, failure.go says.
//
// A Send is one request, whatever becomes of the connection, and follows no
// redirect.
package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/hooks/payload"
	"github.com/oncegate/oncegate/hooks/signature"
	"github.com/oncegate/oncegate/internal/outbound"
	"github.com/oncegate/oncegate/internal/redact"
	"github.com/oncegate/oncegate/platform"
)

// timeout bounds one request. Standard Webhooks gives receivers 15 to 30
// seconds.
const timeout = 15 * time.Second

// maxBody bounds how much of an answer is read, in bytes. A longer one is no
// verdict on the reply, so that only its status counts.
const maxBody = 64 << 10

// Sender posts the replies of one channel.
type Sender struct {
	url    string
	signer *signature.Verifier // nil: nothing is signed
	client *http.Client
}

var _ platform.Sender = (*Sender)(nil)

// New returns the sender of a valid configuration of platform webhook. Nothing
// is sent yet.
func New(c platform.Config) (*Sender, error) { return newSender(c, outbound.NewTransport()) }

func newSender(c platform.Config, transport http.RoundTripper) (*Sender, error) {
	s := &Sender{url: c.URL, client: outbound.NewClient(transport)}
	if c.Secret == nil {
		return s, nil
	}
	var err error
	s.signer, err = signature.New(c.Signature())
	return s, err
}

// Close ends the idle connections. Requests under way go on.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// Idempotent implements platform.Sender: the key is sent.
func (s *Sender) Idempotent() bool { return true }

// Interval implements platform.Sender: a program is fast.
func (s *Sender) Interval() time.Duration { return 0 }

// Send implements platform.Sender. Its error is a *platform.SendError.
func (s *Sender) Send(ctx context.Context, r platform.Reply) error {
	e := exchange{ctx: ctx}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := s.request(httptrace.WithClientTrace(bounded, e.trace()), r)
	if err != nil {
		return &platform.SendError{Unsent: true, Refused: true, Err: redact.Error(err)}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return e.broke(bounded, err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing was written
	if resp.StatusCode/100 != 2 {
		return statusError(resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return e.broke(bounded, err)
	}
	if v, err := payload.Parse("application/json", body); err == nil && (v.Member("ok").IsFalse() || v.Member("success").IsFalse()) {
		return softFailure(resp.StatusCode)
	}
	return nil
}

func (s *Sender) request(ctx context.Context, r platform.Reply) (*http.Request, error) {
	body, err := json.Marshal(struct {
		Key    string `json:"key"`
		Target string `json:"target"`
		Text   string `json:"text"`
	}{r.Key, r.Target, r.Text})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	if r.Key != "" {
		// In lower case net/http does not know the name. Under the one that it
		// knows it would take leave to post again after a broken connection.
		req.Header["idempotency-key"] = []string{r.Key}
	}
	if s.signer != nil {
		if r.Key != "" {
			req.Header.Set("Webhook-Id", messageID(r.Key))
		}
		s.signer.Sign(req.Header, signature.Content{Body: body}, time.Now())
	}
	return req, nil
}

// messageID returns the id under which a reply is signed. It is a digest because
// a key may hold dots, which separate what is signed.
func messageID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "msg_" + hex.EncodeToString(sum[:16])
}

// exchange is what is known of one request.
type exchange struct {
	ctx       context.Context // the caller's
	connected atomic.Bool     // there was a connection, so that anything may have been written
}

// trace notes the last connection: net/http asks for another one only if it
// knows that the server has seen nothing of the request. A connection is
// there when the handshake is over, and nothing is written before.
func (e *exchange) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { e.connected.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { e.connected.Store(true) },
	}
}
