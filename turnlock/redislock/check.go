package redislock

import (
	"context"
	"fmt"

	"github.com/oncegate/oncegate/internal/redact"
)

// Check makes every kind of call once, on a lock of its own, and hears the
// wake-up that it sends to itself. It needs no Run. Its error is that of the
// first call that was refused.
func (l *Locker) Check(ctx context.Context) error {
	sub := l.cfg.Client.Subscribe(ctx, l.keys.wake+l.cfg.Replica)
	defer func() { _ = sub.Close() }() // only ends the connection
	if _, err := sub.ReceiveTimeout(ctx, l.cfg.Timeout); err != nil {
		return fmt.Errorf("hear wake-ups of the turn lock: %w", redact.Error(err))
	}
	if err := l.exercise(ctx); err != nil {
		return err
	}
	if _, err := sub.ReceiveTimeout(ctx, l.cfg.Timeout); err != nil {
		return fmt.Errorf("hear wake-ups of the turn lock: %w", redact.Error(err))
	}
	return nil
}
