package idempotencytest

import (
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/health"
	"github.com/oncegate/oncegate/idempotency"
)

// Faulty is a store that fails on demand. Without a fault it passes every call
// through; those of a Settler, a Shadow and a Roll to a Store that is one.
type Faulty struct {
	Store idempotency.Store

	mu    sync.Mutex
	err   error
	after bool
	only  string
	slow  time.Duration
	calls int
}

var (
	_ idempotency.Settler = (*Faulty)(nil)
	_ idempotency.Shadow  = (*Faulty)(nil)
	_ idempotency.Roll    = (*Faulty)(nil)
)

// Fail makes every call fail with err and do nothing; nil ends every fault.
func (f *Faulty) Fail(err error) { f.set(err, false, "") }

// FailAfter makes every call do its work and then fail with err, as a
// connection does that breaks before the answer.
func (f *Faulty) FailAfter(err error) { f.set(err, true, "") }

// FailOnly makes the calls of one method, in lower case, fail with err.
func (f *Faulty) FailOnly(method string, err error) { f.set(err, false, method) }

// FailOnlyAfter makes the calls of one method, in lower case, do their work
// and then fail with err.
func (f *Faulty) FailOnlyAfter(method string, err error) { f.set(err, true, method) }

// Slow makes every call take d before it does anything, or until its context
// ends.
func (f *Faulty) Slow(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = d
}

// Replace puts another store behind the faults.
func (f *Faulty) Replace(s idempotency.Store) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Store = s
}

func (f *Faulty) inner() idempotency.Store {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Store
}

// Calls returns how many calls there were.
func (f *Faulty) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *Faulty) set(err error, after bool, only string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.after, f.only = err, after, only
}

func (f *Faulty) do(ctx context.Context, method string, call func() error) error {
	f.mu.Lock()
	f.calls++
	slow := f.slow
	f.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	fault, after := f.err, f.after
	if f.only != "" && f.only != method {
		fault = nil
	}
	f.mu.Unlock()
	if fault != nil && !after {
		return fault
	}
	if err := call(); fault == nil {
		return err
	}
	return fault
}

// Reserve implements idempotency.Store.
func (f *Faulty) Reserve(ctx context.Context, key idempotency.Key, req idempotency.Request) (res idempotency.Reservation, err error) {
	err = f.do(ctx, "reserve", func() error {
		res, err = f.inner().Reserve(ctx, key, req)
		return err
	})
	if err != nil {
		return idempotency.Reservation{}, err
	}
	return res, nil
}

// Renew implements idempotency.Store.
func (f *Faulty) Renew(ctx context.Context, c idempotency.Claim) error {
	return f.do(ctx, "renew", func() error { return f.inner().Renew(ctx, c) })
}

// Record implements idempotency.Store.
func (f *Faulty) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	return f.do(ctx, "record", func() error { return f.inner().Record(ctx, c, outcome) })
}

// Release implements idempotency.Store.
func (f *Faulty) Release(ctx context.Context, c idempotency.Claim) error {
	return f.do(ctx, "release", func() error { return f.inner().Release(ctx, c) })
}

// Settle implements idempotency.Settler.
func (f *Faulty) Settle(ctx context.Context, c idempotency.Claim, outcome []byte) (slipped bool, err error) {
	err = f.do(ctx, "settle", func() error {
		slipped, err = f.inner().(idempotency.Settler).Settle(ctx, c, outcome)
		return err
	})
	return slipped, err
}

// Uncarried implements idempotency.Shadow.
func (f *Faulty) Uncarried(ctx context.Context, all bool, req idempotency.ListRequest) (page idempotency.Page, err error) {
	err = f.do(ctx, "uncarried", func() error {
		page, err = f.inner().(idempotency.Shadow).Uncarried(ctx, all, req)
		return err
	})
	return page, err
}

// Carried implements idempotency.Shadow.
func (f *Faulty) Carried(ctx context.Context, key idempotency.Key, token string) error {
	return f.do(ctx, "carried", func() error { return f.inner().(idempotency.Shadow).Carried(ctx, key, token) })
}

// Backlog implements idempotency.Shadow.
func (f *Faulty) Backlog(ctx context.Context) (n int, err error) {
	err = f.do(ctx, "backlog", func() error {
		n, err = f.inner().(idempotency.Shadow).Backlog(ctx)
		return err
	})
	return n, err
}

// Beat implements idempotency.Roll.
func (f *Faulty) Beat(ctx context.Context, own health.Replica, ttl time.Duration) (all []health.Replica, err error) {
	err = f.do(ctx, "beat", func() error {
		all, err = f.inner().(idempotency.Roll).Beat(ctx, own, ttl)
		return err
	})
	return all, err
}

// Leave implements idempotency.Roll.
func (f *Faulty) Leave(ctx context.Context, replica string) error {
	return f.do(ctx, "leave", func() error { return f.inner().(idempotency.Roll).Leave(ctx, replica) })
}

// Ping implements idempotency.Store.
func (f *Faulty) Ping(ctx context.Context) error {
	return f.do(ctx, "ping", func() error { return f.inner().Ping(ctx) })
}

// Close implements idempotency.Store.
func (f *Faulty) Close() error { return f.inner().Close() }
