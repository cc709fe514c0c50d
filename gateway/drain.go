package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/message"
)

// stopGrace is how long runs get to return after their context has ended, and
// their claims to be released. It is longer than one store call may take: the
// slowest waits 5 s for a database file that another process has locked.
const stopGrace = 10 * time.Second

// Drain stops the pipeline. It is one path for every reason to stop:
//
//  1. The intake closes: new deliveries are refused with ErrDraining and make
//     no claim; duplicates that wait for a running delivery stop waiting; no
//     accepted message is taken any more, those that wait are left to the
//     other replicas.
//  2. Running turns go on with their deliveries, on contexts of their own,
//     until ctx ends.
//  3. What still runs then is stopped with cause ErrDraining, a send that is
//     under way a moment later. An accepted message waits again, due at once
//     and without an attempt used up; any other claim is released, so that the
//     sender's retry runs at once on another replica. Then the session's lock
//     is released.
//
// Stores and locks must stay usable until Drain has returned. The error says
// that runs did not stop even then; their claims end with their leases.
func (p *Pipeline) Drain(ctx context.Context) error {
	p.intake.close()
	if p.intake.wait(ctx) == nil {
		return nil
	}
	p.stopWork(message.ErrDraining)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if p.intake.wait(grace) != nil {
		return fmt.Errorf("runs ignored their end for %s; their claims end with their leases", stopGrace)
	}
	return nil
}
