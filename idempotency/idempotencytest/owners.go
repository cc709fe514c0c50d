package idempotencytest

import (
	"slices"

	"github.com/oncegate/oncegate/idempotency"
)

// Owners is what a test says of owners of claims.
type Owners struct {
	Lost     []string // tokens that no run holds
	TakeOver bool     // the claims of dead replicas may be taken over
}

var _ idempotency.Owners = Owners{}

// Abandoned implements idempotency.Owners.
func (o Owners) Abandoned(token string) bool { return slices.Contains(o.Lost, token) }

// MayTakeOver implements idempotency.Owners.
func (o Owners) MayTakeOver() bool { return o.TakeOver }

// abandoned is what a process says of a token that nobody in it runs.
func abandoned(token string) Owners { return Owners{Lost: []string{token}} }
