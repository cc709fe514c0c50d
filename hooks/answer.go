package hooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/message"
)

// result is what became of a request: the label of its counter and, unless an
// outcome decides, its status and public text.
type result int

const (
	done result = iota
	duplicate
	skipped
	challenged
	inFlight
	keyReused
	unknownPath
	wrongMethod
	tooLarge
	tooSlow
	unreadable
	tooManyMessages
	unauthorized
	stale
	tooManyFailures
	wrongChallenge
	noChallenge
	unsupportedType
	malformed
	badKey
	missingKey
	runFailed
	timedOut
	busy
	draining
	storeUnavailable
	internal
)

// results is the one place where a public text is made. Whatever else is
// known about a failure stays in the log.
var results = [...]struct {
	label      string
	status     int
	text       string
	level      slog.Level
	retryAfter int // seconds
}{
	done:             {"done", http.StatusOK, "", slog.LevelInfo, 0},
	duplicate:        {"duplicate", http.StatusOK, "", slog.LevelInfo, 0},
	skipped:          {"skipped", http.StatusOK, "", slog.LevelInfo, 0},
	challenged:       {"challenged", http.StatusOK, "", slog.LevelInfo, 0},
	inFlight:         {"in_flight", http.StatusConflict, "in flight", slog.LevelDebug, 1},
	keyReused:        {"key_reused", http.StatusUnprocessableEntity, "idempotency key reused with a different request", slog.LevelInfo, 0},
	unknownPath:      {"unknown_path", http.StatusNotFound, "not found", slog.LevelDebug, 0},
	wrongMethod:      {"wrong_method", http.StatusMethodNotAllowed, "method not allowed", slog.LevelDebug, 0},
	tooLarge:         {"too_large", http.StatusRequestEntityTooLarge, "request body too large", slog.LevelInfo, 0},
	tooSlow:          {"too_slow", http.StatusRequestTimeout, "request body too slow", slog.LevelInfo, 0},
	unreadable:       {"unreadable", http.StatusBadRequest, "request body incomplete or malformed", slog.LevelInfo, 0},
	tooManyMessages:  {"too_many_messages", http.StatusRequestEntityTooLarge, "more than " + strconv.Itoa(maxBatch) + " messages in one request", slog.LevelInfo, 0},
	unauthorized:     {"unauthorized", http.StatusUnauthorized, "unauthorized", slog.LevelInfo, 0},
	stale:            {"stale", http.StatusUnauthorized, "unauthorized", slog.LevelInfo, 0}, // says no more than the one above
	tooManyFailures:  {"too_many_failures", http.StatusTooManyRequests, "too many requests", slog.LevelDebug, 0},
	wrongChallenge:   {"wrong_challenge", http.StatusForbidden, "forbidden", slog.LevelInfo, 0},
	noChallenge:      {"no_challenge", http.StatusBadRequest, "no challenge to answer: missing query parameter", slog.LevelInfo, 0},
	unsupportedType:  {"unsupported_type", http.StatusUnsupportedMediaType, "unsupported content type or encoding; send JSON, a form or text, plain or compressed with gzip or deflate", slog.LevelInfo, 0},
	malformed:        {"malformed", http.StatusBadRequest, "request body cannot be read", slog.LevelInfo, 0},
	badKey:           {"bad_key", http.StatusBadRequest, "Idempotency-Key must be given once, as 1 to 255 printable ASCII characters", slog.LevelInfo, 0},
	missingKey:       {"missing_key", http.StatusBadRequest, "request has no idempotency key", slog.LevelInfo, 0},
	runFailed:        {"run_failed", http.StatusBadGateway, "run failed", slog.LevelWarn, 0},
	timedOut:         {"timed_out", http.StatusGatewayTimeout, "run timed out", slog.LevelWarn, 0},
	busy:             {"busy", http.StatusServiceUnavailable, "busy", slog.LevelWarn, 2},
	draining:         {"draining", http.StatusServiceUnavailable, "draining", slog.LevelInfo, 5},
	storeUnavailable: {"store_unavailable", http.StatusServiceUnavailable, "IDEMPOTENCY_UNAVAILABLE", slog.LevelWarn, 5},
	internal:         {"internal", http.StatusInternalServerError, "internal error", slog.LevelError, 0},
}

// failure classes an error of the pipeline. The more specific sentinel comes
// first, since an error may wrap several.
func failure(err error) result {
	for _, f := range [...]struct {
		err    error
		result result
	}{
		{message.ErrDraining, draining},
		{message.ErrStoreUnavailable, storeUnavailable},
		{message.ErrBusy, busy},
		{message.ErrTimeout, timedOut},
		{message.ErrRun, runFailed},
	} {
		if errors.Is(err, f.err) {
			return f.result
		}
	}
	return internal
}

// answer is what a request gets, decided in full before a byte is written.
type answer struct {
	result  result
	receipt message.Receipt
	detail  string // public; says more than the text of the result

	skipped    string        // why nothing ran
	challenge  string        // what a handshake wants back
	retryAfter time.Duration // of a client that has failed too often
	allow      string        // the methods that the path takes
	err        error         // for the log
}

// skip is the answer to a message that must not run.
func skip(why string) answer { return answer{result: skipped, skipped: why} }

// receiptAnswer maps what the pipeline did to an answer. Other content under a
// key is the caller's mistake only if the caller chose the key; a sender that
// reuses its own ids would retry a refusal for ever, so it hears "duplicate".
func receiptAnswer(m message.Message, receipt message.Receipt, err error) answer {
	a := answer{receipt: receipt, err: err}
	switch {
	case err != nil:
		a.result = failure(err)
	case receipt.Mismatch && m.CallerKey:
		a.result = keyReused
	case receipt.State == message.InFlight:
		a.result = inFlight
	case receipt.State == message.Processed:
		a.result = duplicate
	default:
		a.result = done
	}
	return a
}

// write sends the answer. Errors of the connection are the sender's to notice.
func (a *answer) write(w http.ResponseWriter) {
	header := w.Header()
	header["X-Idempotency-Status"] = []string{a.receipt.State.String()}
	if a.result == duplicate {
		header["Idempotency-Replayed"] = []string{"true"}
	}
	outcome := a.receipt.Outcome
	switch {
	case a.result == skipped:
		writeJSON(w, http.StatusOK, doneBody{OK: true, Skipped: a.skipped})
	case a.result == challenged:
		writeText(w, a.challenge)
	case a.result != done && a.result != duplicate:
		a.writeFailure(w)
	case outcome.Action == message.ActionAgent, outcome.Action == message.ActionWake:
		writeJSON(w, http.StatusOK, agentBody{
			OK: true, Action: outcome.Action, Agent: outcome.Agent, Session: textOrNull(outcome.Session, outcome.Session == ""),
			Reply: textOrNull(outcome.Reply, outcome.Omitted || outcome.Action == message.ActionWake), Delivered: outcome.Delivered,
			ReplyOmitted: outcome.Omitted, Deduplicated: a.result == duplicate,
		})
	case outcome.Response == nil: // recorded without an answer
		writeJSON(w, http.StatusOK, doneBody{OK: true, Deduplicated: a.result == duplicate})
	case outcome.Omitted:
		status := outcome.Response.Status
		writeJSON(w, status, doneBody{OK: status < 400, Deduplicated: a.result == duplicate, ReplyOmitted: true})
	default:
		writeResponse(w, outcome.Response)
	}
}

func (a *answer) writeFailure(w http.ResponseWriter) {
	r := results[a.result]
	body := failureBody{Error: r.text}
	if a.detail != "" {
		body.Error += ": " + a.detail
	}
	retryAfter := a.retrySeconds()
	switch a.result {
	case inFlight:
		body.RetryAfter = retryAfter
	case wrongMethod:
		w.Header().Set("Allow", a.allow)
		fallthrough
	case unknownPath, tooLarge, tooSlow, unreadable:
		// The body was not read to its end. Without this, net/http would wait
		// for the rest before it answers.
		w.Header().Set("Connection", "close")
	}
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	writeJSON(w, r.status, body)
}

// retrySeconds returns when a retry makes sense, 0 if nobody can tell. It is
// rounded up: a retry a moment early would only be refused again.
func (a *answer) retrySeconds() int {
	wait := max(a.retryAfter, a.receipt.RetryAfter)
	if a.result != inFlight && a.result != tooManyFailures {
		wait = 0
	}
	return max(results[a.result].retryAfter, int((wait+time.Second-1)/time.Second))
}

// writeText sends text as it is, and nothing may read more into it: a
// challenge is the text of a stranger.
func writeText(w http.ResponseWriter, text string) {
	header := w.Header()
	header["Content-Type"] = []string{"text/plain; charset=utf-8"}
	header["X-Content-Type-Options"] = []string{"nosniff"}
	_, _ = io.WriteString(w, text) // errors of the connection are the sender's to notice
}

// writeResponse sends a forward target's answer as it was.
func writeResponse(w http.ResponseWriter, r *message.Response) {
	header := w.Header()
	maps.Copy(header, r.Header) // never one of ours: Validate refuses those names
	if _, typed := header["Content-Type"]; !typed {
		header["Content-Type"] = nil // the target named none, so net/http must not guess one
	}
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body)
}

// agentBody answers a finished run. Session, Reply and Delivered are null where
// there is none, which is not the same as empty.
type agentBody struct {
	OK           bool    `json:"ok"`
	Action       string  `json:"action"`
	Agent        string  `json:"agent"`
	Session      *string `json:"session"`
	Reply        *string `json:"reply"`
	Delivered    *bool   `json:"delivered"`
	ReplyOmitted bool    `json:"reply_omitted,omitempty"`
	Deduplicated bool    `json:"deduplicated,omitempty"`
}

type doneBody struct {
	OK           bool   `json:"ok"`
	Skipped      string `json:"skipped,omitempty"`
	Deduplicated bool   `json:"deduplicated,omitempty"`
	ReplyOmitted bool   `json:"reply_omitted,omitempty"`
}

type failureBody struct {
	OK         bool   `json:"ok"`
	Error      string `json:"error"`
	RetryAfter int    `json:"retry_after,omitempty"`
}

func textOrNull(text string, null bool) *string {
	if null {
		return nil
	}
	return &text
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	header := w.Header()
	header["Content-Type"] = []string{"application/json; charset=utf-8"}
	header["X-Content-Type-Options"] = []string{"nosniff"}
	w.WriteHeader(status)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // plain structs; cannot fail
	_, _ = w.Write(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
}
