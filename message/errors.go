package message

import "errors"

// The ways in which a delivery ends without an answer. An ingress maps each to
// its own wire form; any other error is internal. Whatever was claimed has been
// given back, so that the sender's next delivery runs, as far as the store
// could be reached; what it did not confirm ends with the lease.
var (
	// ErrRun: the agent or the forward target failed.
	ErrRun = errors.New("message: run failed")
	// ErrTimeout: the run did not end within its time.
	ErrTimeout = errors.New("message: run timed out")
	// ErrBusy: no admission slot or session lock came free in time.
	ErrBusy = errors.New("message: no capacity")
	// ErrDraining: the process is stopping. Either nothing was claimed, or the
	// run was stopped and its claim given back.
	ErrDraining = errors.New("message: draining")
	// ErrStoreUnavailable: the store confirmed no claim, and policy forbids
	// running without one. A claim made without an answer ends with its lease
	// at the latest.
	ErrStoreUnavailable = errors.New("message: claim store unavailable")
)
