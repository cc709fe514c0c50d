package execagent_test

import (
	"os"
	"os/exec"
	"testing"
)

func TestTheProgramDiesWithTheGateway(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	gateway := exec.Command(os.Args[0])
	gateway.Env = append(os.Environ(), programVar+"=gateway", socketVar+"="+w.Addr().String())
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	program := w.mustNext(t)
	if err := gateway.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := gateway.Wait(); err == nil {
		t.Error("the gateway ended with 0, want it killed")
	}
	program.wantGone(t)
}
