package idempotencytest

import (
	"context"
	"sync"

	"github.com/oncegate/oncegate/idempotency"
)

// Faulty is a store that goes away on demand. The zero mode passes every call
// through.
type Faulty struct {
	Store idempotency.Store

	mu    sync.Mutex
	err   error
	after bool
	calls int
}

var _ idempotency.Store = (*Faulty)(nil)

// Fail makes every call fail with err and do nothing; nil ends the fault.
func (f *Faulty) Fail(err error) { f.set(err, false) }

// FailAfter makes every call do its work and then fail with err, as a
// connection does that breaks before the answer.
func (f *Faulty) FailAfter(err error) { f.set(err, true) }

// Calls returns how many calls there were.
func (f *Faulty) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *Faulty) set(err error, after bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.after = err, after
}

func (f *Faulty) do(call func() error) error {
	f.mu.Lock()
	f.calls++
	fault, after := f.err, f.after
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
	err = f.do(func() error {
		res, err = f.Store.Reserve(ctx, key, req)
		return err
	})
	if err != nil {
		return idempotency.Reservation{}, err
	}
	return res, nil
}

// Renew implements idempotency.Store.
func (f *Faulty) Renew(ctx context.Context, c idempotency.Claim) error {
	return f.do(func() error { return f.Store.Renew(ctx, c) })
}

// Record implements idempotency.Store.
func (f *Faulty) Record(ctx context.Context, c idempotency.Claim, outcome []byte) error {
	return f.do(func() error { return f.Store.Record(ctx, c, outcome) })
}

// Release implements idempotency.Store.
func (f *Faulty) Release(ctx context.Context, c idempotency.Claim) error {
	return f.do(func() error { return f.Store.Release(ctx, c) })
}

// Ping implements idempotency.Store.
func (f *Faulty) Ping(ctx context.Context) error {
	return f.do(func() error { return f.Store.Ping(ctx) })
}

// Close implements idempotency.Store.
func (f *Faulty) Close() error { return f.Store.Close() }
