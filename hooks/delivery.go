package hooks

import (
	"net/http"

	"github.com/oncegate/oncegate/hooks/payload"
	"github.com/oncegate/oncegate/hooks/template"
)

// maxBatch bounds the messages of one request. They run one after the other,
// so that a repeated one meets the first one's record and their order is kept.
const maxBatch = 1000

// delivery is one message of an authenticated request.
type delivery struct {
	template.Inputs
	tokenName   string // of the token that opened the hook
	index       int    // in a batch; below 0 if the request is the message
	body        []byte
	contentType string
}

// whole returns a request as one message.
func whole(r *http.Request, value payload.Value, body []byte, tokenName string) delivery {
	return delivery{
		Inputs:    template.Inputs{Payload: value, Request: r},
		tokenName: tokenName, index: -1, body: body, contentType: r.Header.Get("Content-Type"),
	}
}

// isBatch reports whether each element of the payload is a message of its own.
// A hook that indexes the array in a template takes it as one.
func (rt *route) isBatch(d *delivery) bool { return d.Payload.IsArray() && !rt.takesArray }

// elements returns the messages of a batch, one more than may be if there are
// too many.
func (d *delivery) elements() []delivery {
	d.ParseQuery()
	var all []delivery
	for element := range d.Payload.Elements() {
		if len(all) > maxBatch {
			break
		}
		one := *d
		one.Payload, one.index, one.body, one.contentType = element, len(all), element, "application/json"
		all = append(all, one)
	}
	return all
}
