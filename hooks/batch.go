package hooks

import (
	"bytes"
	"encoding/json"
	"iter"
	"net/http"
	"strconv"

	"github.com/oncegate/oncegate/message"
)

// answers is what became of a request: of its one message, or of each message
// of a batch.
type answers struct {
	only  answer
	batch []answer // instead, unless nil
}

func one(a answer) answers { return answers{only: a} }

func (all *answers) each() iter.Seq[*answer] {
	return func(yield func(*answer) bool) {
		if all.batch == nil {
			yield(&all.only)
			return
		}
		for i := range all.batch {
			if !yield(&all.batch[i]) {
				return
			}
		}
	}
}

// batchBody answers a batch: for each message, in their order, the status and
// body that it would have got alone.
type batchBody struct {
	OK       bool       `json:"ok"`
	Messages []itemBody `json:"messages"`
}

type itemBody struct {
	Status int             `json:"status"`
	Answer json.RawMessage `json:"answer"`
}

// write sends the answer. A batch is answered with the status of the message
// that most needs another delivery: repeating those that are done is harmless.
func (all *answers) write(w http.ResponseWriter) {
	if all.batch == nil {
		all.only.write(w)
		return
	}
	status, retryAfter := http.StatusOK, 0
	body := batchBody{OK: true, Messages: []itemBody{}}
	for a := range all.each() {
		item, code := a.item()
		body.Messages = append(body.Messages, item)
		body.OK = body.OK && code < 300
		if urgency(code) > urgency(status) {
			status = code
		}
		retryAfter = max(retryAfter, a.retrySeconds())
	}
	header := w.Header()
	header["X-Idempotency-Status"] = []string{all.state().String()}
	if retryAfter > 0 {
		header["Retry-After"] = []string{strconv.Itoa(retryAfter)}
	}
	writeJSON(w, status, body)
}

// urgency orders statuses by how much a sender must deliver again: done, wrong
// for ever, refused for now, failed.
func urgency(status int) int {
	switch {
	case status < 400:
		return 0
	case status >= 500:
		return 3
	case status == http.StatusConflict, status == http.StatusTooManyRequests:
		return 2
	}
	return 1
}

// state is the least finished of the messages' states.
func (all *answers) state() message.State {
	state := message.None
	for a := range all.each() {
		switch s := a.receipt.State; {
		case s == message.InFlight:
			return s
		case s == message.New, state == message.None:
			state = s
		}
	}
	return state
}

// item renders what a alone would have been answered with.
func (a *answer) item() (item itemBody, status int) {
	var alone recorder
	a.write(&alone)
	item = itemBody{Status: alone.status, Answer: alone.body.Bytes()}
	if !json.Valid(item.Answer) { // a forward target may answer with anything
		item.Answer, _ = json.Marshal(alone.body.String()) // texts always can be
	}
	return item, alone.status
}

// recorder keeps an answer instead of sending it.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

var _ http.ResponseWriter = (*recorder)(nil)

func (r *recorder) Header() http.Header {
	if r.header == nil {
		r.header = make(http.Header)
	}
	return r.header
}

func (r *recorder) WriteHeader(status int) { r.status = status }

func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }
