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

// split returns the messages of a request: the elements of an array, each a
// message of its own, or else the request itself. A hook that indexes the array
// in a template takes it as one. batch tells an array of one from a message.
func (rt *route) split(r *http.Request, value payload.Value, body []byte, tokenName string) (deliveries []*delivery, batch bool) {
	whole := &delivery{
		Inputs:    template.Inputs{Payload: value, Request: r},
		tokenName: tokenName, index: -1, body: body, contentType: r.Header.Get("Content-Type"),
	}
	if !value.IsArray() || rt.takesArray {
		return []*delivery{whole}, false
	}
	for element := range value.Elements() {
		if len(deliveries) > maxBatch {
			break // one too many is enough to see that there are
		}
		d := *whole
		d.Payload, d.index, d.body, d.contentType = element, len(deliveries), element, "application/json"
		deliveries = append(deliveries, &d)
	}
	return deliveries, true
}
