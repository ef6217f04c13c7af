package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/tripod-cluster/tripod/test/cluster"
)

// suite runs upstream's programs against a cluster.
type suite struct {
	cluster cluster.Cluster
	bin     string // directory of e2e.test and ginkgo
	kubectl string
	out     string // directory of results
	screen  io.Writer
}

// list returns the names of all tests that e2e.test holds.
func (s suite) list(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(s.bin, "e2e.test"), "-list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("e2e.test -list-tests: %w", err)
	}
	names := parseList(string(out))
	if len(names) == 0 {
		return nil, errors.New("e2e.test -list-tests names no test")
	}
	return names, nil
}

// run runs tests, so many at a time, in a directory of its own under out, and returns how they went. Tests that ctx
// keeps from running are missing. An error means that there are no results.
func (s suite) run(ctx context.Context, name string, tests []string, procs int) ([]result, error) {
	dir := filepath.Join(s.out, name)
	fails := filepath.Join(s.out, "failed")
	for _, d := range []string{dir, fails} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	log, err := os.Create(filepath.Join(dir, "ginkgo.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Fprintf(s.screen, "%s: %d tests, %d at a time; whole output: %s\n", name, len(tests), procs, log.Name())

	args := []string{"run", filepath.Join(s.bin, "ginkgo"), "-v", "--no-color", "--timeout=24h", "--procs=" + strconv.Itoa(procs)}
	args = append(args, focusFlags(tests)...)
	args = append(args, filepath.Join(s.bin, "e2e.test"), "--", "--provider=skeleton", "--kubeconfig="+s.cluster.Kubeconfig(),
		"--kubectl-path="+s.kubectl, "--num-nodes="+strconv.Itoa(cluster.Hosts), "--minStartupPods=0", "--report-dir="+dir)
	c := s.cluster.Command(ctx, args...)
	// Asked to stop, ginkgo cleans up and reports what it has.
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGINT) }
	c.WaitDelay = 2 * time.Minute
	output, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &progress{out: s.screen, total: len(tests), streamed: procs == 1}
	followErr := p.follow(output, log)
	ran := c.Wait()
	if followErr != nil {
		return nil, fmt.Errorf("read ginkgo's output: %w", followErr)
	}
	got, err := readJUnit(filepath.Join(dir, "junit_01.xml"), fails)
	if err != nil {
		return nil, fmt.Errorf("ginkgo left no report (%w); it ended with %v, see the end of %s", err, ran, log.Name())
	}
	return got, nil
}
