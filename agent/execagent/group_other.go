//go:build !linux

package execagent

import (
	"errors"
	"syscall"
)

// attributes gives the program a process group of its own. That it dies with
// this process has no counterpart here.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit has no counterpart here: what a program leaves behind is killed
// right after it was collected, and may hold up the run by pipeDelay.
func awaitExit(int) error { return errors.ErrUnsupported }
