package execagent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/agent"
	"github.com/oncegate/oncegate/agent/execagent"
	"github.com/oncegate/oncegate/internal/secret"
)

// The test binary is also the program that the agents start. programVar says
// which of programs it is.
const (
	programVar = "TEST_PROGRAM"
	argVar     = "TEST_ARG"
	socketVar  = "TEST_SOCKET" // where report connects to
	readyVar   = "TEST_READY"  // the file in which startChild waits for a byte
)

func TestMain(m *testing.M) {
	name, isProgram := os.LookupEnv(programVar)
	if !isProgram {
		os.Exit(runTests(m))
	}
	program := programs()[name]
	if program == nil {
		panic("no program " + name)
	}
	program(os.Getenv(argVar))
}

// runTests gives the tests the environment of a gateway: with a secret in it,
// and with the test binary in PATH.
func runTests(m *testing.M) int {
	for name, value := range map[string]string{
		"GATEWAY_TOKEN": "private", "LANG": "C.UTF-8", "HOME": "/home/gateway",
		"PATH": filepath.Dir(os.Args[0]) + string(filepath.ListSeparator) + os.Getenv("PATH"),
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	return m.Run()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// programs are given TEST_ARG. One that returns ends with 0.
func programs() map[string]func(arg string) {
	return map[string]func(string){
		"print":       func(arg string) { fmt.Print(arg) },
		"quote":       func(string) { fmt.Printf("%q", must(io.ReadAll(os.Stdin))) },
		"arguments":   func(string) { fmt.Printf("%q", os.Args) },
		"environment": func(string) { fmt.Print(strings.Join(os.Environ(), "\n")) },
		"key":         func(string) { fmt.Print(os.Getenv("ONCEGATE_KEY")) },
		"repeat": func(arg string) {
			n, text, _ := strings.Cut(arg, " ")
			fmt.Print(strings.Repeat(text, must(strconv.Atoi(n))))
		},
		"complain": func(arg string) { fmt.Fprint(os.Stderr, arg); fmt.Print("ok") },
		"exit": func(arg string) {
			fmt.Print("private words")
			fmt.Fprint(os.Stderr, "private reasons")
			os.Exit(must(strconv.Atoi(arg)))
		},
		"kill itself":      func(string) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} },
		"hang":             func(string) { hang(report()) },
		"flood":            func(string) { flood() },
		"child and hang":   func(string) { startChild(nil); hang(report()) },
		"child and leave":  func(string) { startChild(nil); fmt.Print("left") },
		"daemon and leave": func(string) { startChild(&syscall.SysProcAttr{Setsid: true}); fmt.Print("left") },
		"leave the group": func(string) {
			must(0, syscall.Setpgid(0, must(syscall.Getpgid(os.Getppid()))))
			hang(report())
		},
		"gateway": func(string) {
			c := agent.Config{Kind: agent.KindExec, Command: os.Args[:1], Env: map[string]secret.String{
				programVar: secret.New("hang"), socketVar: secret.New(os.Getenv(socketVar)),
			}}
			_, _ = execagent.New(c, slog.New(slog.DiscardHandler)).Run(context.Background(), agent.Turn{})
		},
	}
}

// report connects to the test and says who is there. The kernel closes the
// connection when the process has ended.
func report() net.Conn {
	conn := must(net.Dial("unix", os.Getenv(socketVar)))
	must(fmt.Fprintf(conn, "%d\n", os.Getpid()))
	if file, ok := os.LookupEnv(readyVar); ok {
		ready := os.NewFile(uintptr(must(strconv.Atoi(file))), "ready")
		must(ready.Write([]byte{1}))
		must(0, ready.Close())
	}
	return conn
}

// hang ends with the test.
func hang(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// flood prints without end, and goes on when nobody reads any more.
func flood() {
	conn := report()
	signal.Ignore(syscall.SIGPIPE)
	for text := bytes.Repeat([]byte("a"), 64<<10); ; {
		if _, err := os.Stdout.Write(text); err != nil {
			hang(conn)
			return
		}
	}
}

// startChild starts the program hang with the same pipes, and returns when it
// has reported.
func startChild(attributes *syscall.SysProcAttr) {
	ready, told, err := os.Pipe()
	must(0, err)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), programVar+"=hang", readyVar+"=3")
	c.Stdin, c.Stdout, c.Stderr, c.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, attributes
	c.ExtraFiles = []*os.File{told}
	must(0, errors.Join(c.Start(), told.Close()))
	must(ready.Read(make([]byte, 1)))
}
