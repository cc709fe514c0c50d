package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/idempotency"
	"github.com/oncegate/oncegate/message"
)

// envelope is what is stored of an accepted message: what whoever takes it,
// after a restart or on another replica, needs to run it as its route says then.
type envelope struct {
	Route     string          `json:"route"`
	Message   message.Message `json:"message"`
	FromFirst bool            `json:"from_first,omitempty"` // as in message.Policy
	Accepted  time.Time       `json:"accepted"`
}

// store accepts a message under its key. It is not claimed: whoever has room,
// this replica or another one, takes it.
func (p *Pipeline) store(ctx context.Context, key idempotency.Key, req idempotency.Request, m message.Message, pol message.Policy) (idempotency.Reservation, error) {
	if p.taker == nil {
		return idempotency.Reservation{}, fmt.Errorf("%w: the claim store keeps no messages", idempotency.ErrUnavailable)
	}
	body, err := json.Marshal(envelope{Route: pol.Route, Message: m, FromFirst: pol.FromFirst, Accepted: time.Now()})
	if err != nil {
		return idempotency.Reservation{}, fmt.Errorf("encode message: %w", err)
	}
	return p.taker.inbox.Accept(ctx, key, req, idempotency.Acceptance{Stored: idempotency.Stored{
		Session: m.Session, Body: body, OrderWait: pol.Accept.OrderWait, Keep: pol.Accept.Keep,
	}})
}

// accepted notes that a message is stored, and that there is one to take.
func (p *Pipeline) accepted() message.Receipt {
	p.metrics.claims.WithLabelValues(claimAccepted).Inc()
	p.taker.wake()
	return message.Receipt{State: message.New, Accepted: true}
}

// acceptUnkeyed stores a message without identity, under a key that no other
// delivery has.
func (p *Pipeline) acceptUnkeyed(work context.Context, m message.Message, pol message.Policy) (message.Receipt, error) {
	m.Key.ID = "unkeyed:" + rand.Text()
	key := idempotency.EncodeKey(m.Key)
	if _, err := p.reserve(work, key, m, pol); err != nil {
		return message.Receipt{}, err
	}
	receipt := p.accepted()
	receipt.Key, receipt.State = string(key), message.None
	return receipt, nil
}
