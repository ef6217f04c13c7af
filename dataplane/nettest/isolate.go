// Package nettest is the stage for dataplane tests: it runs a test binary in network namespaces of its own and builds
// hosts, pods and clients in them, out of processes of the same binary. Nothing outlives the test: namespaces have no
// names, and the processes die with their parent.
package nettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// roleEnv tells a process of the test binary what it is: unset the one that was started by go test, "node" the one
// that runs the tests in a namespace of its own, "agent" a pod or host of the stage.
const roleEnv = "TRIPOD_NETTEST_ROLE"

// Main is what a package's TestMain calls. It runs the tests in a new network namespace, with lo up, or serves as an
// agent; it does not return.
func Main(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "agent":
		agentMain()
		os.Exit(0)
	case "node":
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	os.Exit(reexec())
}

func reexec() int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo -E go test …)")
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), roleEnv+"=node")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "start the tests in a network namespace of their own: %v\n", err)
		return 1
	}
	// go test ends a test that takes too long with SIGQUIT, a person with SIGINT: both are for the inner process.
	c := make(chan os.Signal, 4)
	signal.Notify(c, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for s := range c {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if exit.ExitCode() < 0 {
			return 1
		}
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
