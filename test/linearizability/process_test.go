package linearizability

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// process is a member's server process. Its methods are called by one goroutine at a
// time, but for pid and exited.
type process struct {
	log string // file that its output is appended to

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

func (p *process) start(binary string, env, args []string) error {
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Fprintf(f, "--- start %s: %s %q\n", time.Now().Format(time.RFC3339Nano), filepath.Base(binary), args)
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = f, f
	// A test that dies takes its servers along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	done := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	go func() {
		cmd.Wait()
		p.mu.Lock()
		if p.cmd == cmd {
			p.cmd = nil
		}
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// pid is 0 while no process runs.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		p.cmd.Process.Signal(s)
	}
}

// kill ends the process as a crash does, and returns when it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	p.wait(0)
}

// stop asks the process to end; false when it had to be killed after limit.
func (p *process) stop(limit time.Duration) bool {
	p.signal(syscall.SIGTERM)
	if p.wait(limit) {
		return true
	}
	p.kill()
	return false
}

// wait waits for the end of the process, if limit is not 0 no longer than that.
func (p *process) wait(limit time.Duration) bool {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return true
	}
	var out <-chan time.Time
	if limit != 0 {
		out = time.After(limit)
	}
	select {
	case <-done:
		return true
	case <-out:
		return false
	}
}
