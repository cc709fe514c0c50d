package execagent

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes gives the program a process group of its own, and has the kernel
// kill it when this process dies without doing so. The kernel means the thread
// that has started the program: Run keeps that one alive.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when the process has ended, and leaves it uncollected.
func awaitExit(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
