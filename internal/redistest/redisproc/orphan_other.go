//go:build !linux

package redisproc

import "syscall"

// dieWithParent has no counterpart here.
func dieWithParent() *syscall.SysProcAttr { return nil }
