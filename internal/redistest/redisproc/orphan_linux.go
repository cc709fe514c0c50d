package redisproc

import "syscall"

// dieWithParent has the kernel end the server when this process ends without
// calling Kill, as a test that panics or times out does.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
