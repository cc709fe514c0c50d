package message

import "errors"

// The ways in which a delivery ends without an answer. An ingress maps each to
// its own wire form; any other error is internal. In every case the claim has
// been given back, so the sender's next delivery runs.
var (
	// ErrRun: the agent or the forward target failed.
	ErrRun = errors.New("message: run failed")
	// ErrTimeout: the run did not end within its time.
	ErrTimeout = errors.New("message: run timed out")
	// ErrBusy: no admission slot or session lock came free in time.
	ErrBusy = errors.New("message: no capacity")
	// ErrDraining: the process is stopping and takes no new work.
	ErrDraining = errors.New("message: draining")
	// ErrStoreUnavailable: no claim could be made, and policy forbids running without one.
	ErrStoreUnavailable = errors.New("message: claim store unavailable")
)
