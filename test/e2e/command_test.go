package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// result is how a command ended and what it printed.
type result struct {
	out, errs string
	code      int
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstandard output: %s\nstandard error: %s", r.code, r.out, r.errs)
}

// run runs a program of this machine in the fleet's network to its end, which may
// be a failure: that is for the caller to judge.
func run(t testing.TB, env []string, stdin io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := cluster.Command(ctx, append([]string{"run"}, args...)...)
	c.Env = append(c.Env, env...)
	c.Stdin = stdin
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		t.Fatalf("%s: %v: %v\n%s%s", strings.Join(args, " "), err, ctx.Err(), out.String(), errs.String())
	}
	return result{out.String(), errs.String(), c.ProcessState.ExitCode()}
}

// kubectlIn is the command line of kubectl in a namespace.
func kubectlIn(ns string, args ...string) []string {
	return append([]string{"kubectl", "--kubeconfig", kubeconfig(), "-n", ns}, args...)
}

// kubectlVia goes through host i's peer instead of the virtual address: a
// connection that lasts does not break when the leadership moves, as it does on
// a machine that is too busy.
func kubectlVia(i int, ns string, args ...string) []string {
	return kubectlIn(ns, append([]string{"--server", "https://" + cluster.Addr(i) + ":6443"}, args...)...)
}

// process is a command that runs beside the test; what it prints on both outputs
// is kept together. It is ended with the test.
type process struct {
	what string
	cmd  *exec.Cmd
	tty  *os.File // the near end of its terminal, nil when it has none
	done chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes what the process prints.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func start(t testing.TB, args ...string) *process {
	t.Helper()
	p := newProcess(t, args)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.begin(t)
	return p
}

func newProcess(t testing.TB, args []string) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{what: strings.Join(args, " "), cmd: cluster.Command(ctx, append([]string{"run"}, args...)...), done: make(chan struct{})}
	t.Cleanup(func() {
		cancel()
		<-p.done
		if t.Failed() {
			t.Logf("%s printed:\n%s", p.what, p.output())
		}
	})
	return p
}

func (p *process) begin(t testing.TB) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		close(p.done)
		t.Fatalf("%s: %v", p.what, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // its state tells how it ended
	}()
}

// startTTY starts a command on a terminal of the given size, as a person does.
func startTTY(t testing.TB, rows, columns uint16, args ...string) *process {
	t.Helper()
	near, far, err := openTTY()
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	p := newProcess(t, args)
	p.tty = near
	t.Cleanup(func() { near.Close() })
	p.resize(t, rows, columns)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = far, far, far
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.begin(t)
	far.Close()
	go func() { _, _ = io.Copy(p, near) }() // ends with an error when the far end is gone
	return p
}

// openTTY gives both ends of a new pseudo-terminal.
func openTTY() (near, far *os.File, err error) {
	near, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	raw, err := near.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var n int
	var ioErr error
	if err := raw.Control(func(fd uintptr) {
		if ioErr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioErr == nil {
			n, ioErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil {
		return nil, nil, err
	}
	if ioErr != nil {
		return nil, nil, ioErr
	}
	far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	return near, far, err
}

func (p *process) resize(t testing.TB, rows, columns uint16) {
	t.Helper()
	raw, err := p.tty.SyscallConn()
	if err == nil {
		var ioErr error
		if err = raw.Control(func(fd uintptr) {
			ioErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		}); err == nil {
			err = ioErr
		}
	}
	if err != nil {
		t.Fatalf("size of the terminal: %v", err)
	}
}

// key types on the terminal.
func (p *process) key(t testing.TB, s string) {
	t.Helper()
	if _, err := p.tty.WriteString(s); err != nil {
		t.Fatalf("type %q: %v", s, err)
	}
}

// prints waits until the process has printed a text, while it runs or as its last words.
func (p *process) prints(t testing.TB, want string) {
	t.Helper()
	eventually(t, 2*time.Minute, fmt.Sprintf("%s prints %q", p.what, want), func() error {
		ended := false
		select {
		case <-p.done:
			ended = true
		default:
		}
		out := p.output()
		switch {
		case strings.Contains(out, want):
			return nil
		case ended && p.tty == nil: // a terminal may still hold some
			t.Fatalf("%s ended with %s and did not print %q, but:\n%s", p.what, p.cmd.ProcessState, want, out)
		}
		return fmt.Errorf("%d bytes so far", len(out))
	})
}

// exits waits for the end of the process and returns its exit code.
func (p *process) exits(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s does not end", p.what)
	}
	return p.cmd.ProcessState.ExitCode()
}

// ended says whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process, as one who types Control-C.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	<-p.done
}
