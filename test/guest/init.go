package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// initMain is pid 1 of the guest: it mounts, loads modules, runs the programs and ends the machine.
func initMain() {
	code, err := runJob()
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest init:", err)
		code = 125
	}
	unix.Sync()
	fmt.Printf("\n%s%d\n", exitMark, code)
	drainConsole()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // QEMU runs with -no-reboot: it ends
	fmt.Fprintln(os.Stderr, "guest init: reboot:", err)
	select {}
}

// drainConsole waits until the serial line has sent everything.
func drainConsole() { _ = unix.IoctlSetInt(1, unix.TCSBRK, 1) }

func runJob() (int, error) {
	for _, m := range []struct{ what, where, data string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""}, {"tmpfs", "/run", "mode=755"},
		{"tmpfs", "/tmp", ""}, {"cgroup2", "/sys/fs/cgroup", ""}, {"bpf", "/sys/fs/bpf", ""}, {"devpts", "/dev/pts", ""},
	} {
		if err := os.MkdirAll(m.where, 0o755); err != nil {
			return 0, err
		}
		if err := unix.Mount(m.what, m.where, m.what, 0, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			return 0, fmt.Errorf("mount %s on %s: %w", m.what, m.where, err)
		}
	}
	b, err := os.ReadFile(jobFile)
	if err != nil {
		return 0, err
	}
	var j job
	if err := json.Unmarshal(b, &j); err != nil {
		return 0, fmt.Errorf("read %s: %w", jobFile, err)
	}
	for _, m := range j.Modules {
		if err := load(m); err != nil {
			fmt.Fprintf(os.Stderr, "guest init: module %s: %v\n", filepath.Base(m), err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return 0, fmt.Errorf("set lo up: %w", err)
	}
	code := 0
	for _, p := range j.Programs {
		c, err := runProgram(p, j)
		if err != nil {
			return 0, err
		}
		if code == 0 {
			code = c
		}
	}
	return code, nil
}

// runProgram runs one program to its end and returns its exit code.
func runProgram(path string, j job) (int, error) {
	cmd := exec.Command(path, j.Args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Dir = base
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "TMPDIR=/tmp"}, j.Env...)
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		if exit.ExitCode() < 0 {
			return 0, fmt.Errorf("%s: %w", path, err) // a signal
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
