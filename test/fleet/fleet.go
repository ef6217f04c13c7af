// Package fleet drives test/fleet/fleet, the Debian hosts with real systemd that end-to-end tests run on, from Go.
package fleet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Fleet is a set of hosts on one switch. The zero value is the product's own fleet, the one of `make up`; a test that
// wants hosts for itself sets all three fields. Methods may be called at the same time.
type Fleet struct {
	Dir    string // disks; empty: /var/lib/tripod-fleet
	Net    string // first three octets of the hosts' addresses; empty: 172.31.77
	Prefix string // of host names and namespaces, at most 9 characters; empty: fh
	Env    []string
}

// Script is the path of the fleet script.
func Script() string {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) { // -trimpath: the name begins with the module's
		wd, err := os.Getwd()
		for err == nil && wd != "/" {
			if s := filepath.Join(wd, "test/fleet/fleet"); exists(s) {
				return s
			}
			wd = filepath.Dir(wd)
		}
	}
	return filepath.Join(filepath.Dir(file), "fleet")
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// Top is the root of the checkout.
func Top() string { return filepath.Dir(filepath.Dir(filepath.Dir(Script()))) }

// Addr is the address of host i, which counts from 1.
func (f Fleet) Addr(i int) string { return f.net() + "." + strconv.Itoa(10+i) }

// VIP is the virtual address that no host has of its own.
func (f Fleet) VIP() string { return f.net() + ".10" }

// Host is the name of host i.
func (f Fleet) Host(i int) string {
	if f.Prefix == "" {
		return "fh" + strconv.Itoa(i)
	}
	return f.Prefix + strconv.Itoa(i)
}

func (f Fleet) net() string {
	if f.Net == "" {
		return "172.31.77"
	}
	return f.Net
}

// Command is the fleet script with args, not yet started. Ended by ctx, it takes what it runs in a host with it.
func (f Fleet) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, Script(), args...)
	c.Env = append(os.Environ(), f.Env...)
	for k, v := range map[string]string{"FLEET_DIR": f.Dir, "FLEET_NET": f.Net, "FLEET_PREFIX": f.Prefix} {
		if v != "" {
			c.Env = append(c.Env, k+"="+v)
		}
	}
	c.WaitDelay = 5 * time.Second // a grandchild that keeps the pipe open must not hold the test
	return c
}

// Do runs the fleet script with args. It returns the standard output; an error holds both outputs.
func (f Fleet) Do(ctx context.Context, args ...string) (string, error) {
	c := f.Command(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("fleet %s: %w\n%s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), nil
}

// In runs a program in host i and returns its standard output.
func (f Fleet) In(ctx context.Context, i int, cmd ...string) (string, error) {
	return f.Do(ctx, append([]string{"in", strconv.Itoa(i)}, cmd...)...)
}

// Sh runs a shell script in host i and returns its standard output.
func (f Fleet) Sh(ctx context.Context, i int, script string) (string, error) {
	return f.In(ctx, i, "sh", "-euc", script)
}

// Run runs a program of this machine in the fleet's network and returns its standard output. Programs in .tripod/bin
// (kubectl, etcdctl) are found first.
func (f Fleet) Run(ctx context.Context, cmd ...string) (string, error) {
	return f.Do(ctx, append([]string{"run"}, cmd...)...)
}

// Up boots hosts 1 to n and waits for their systemd.
func (f Fleet) Up(ctx context.Context, n int) error { return f.verb(ctx, "up", n) }

// Stop is an orderly power-off, Kill a power cut; Start boots host i again with the same disk.
func (f Fleet) Stop(ctx context.Context, i int) error { return f.verb(ctx, "stop", i) }

// Kill ends everything on host i at once, network first.
func (f Fleet) Kill(ctx context.Context, i int) error { return f.verb(ctx, "kill", i) }

// Start boots host i again. It returns when systemd runs, which may be before its services are ready.
func (f Fleet) Start(ctx context.Context, i int) error { return f.verb(ctx, "start", i) }

// Cut pulls the network cable of host i.
func (f Fleet) Cut(ctx context.Context, i int) error { return f.verb(ctx, "cut", i) }

// Heal plugs it in again.
func (f Fleet) Heal(ctx context.Context, i int) error { return f.verb(ctx, "heal", i) }

// Down removes the whole fleet. It is no error if there is none.
func (f Fleet) Down(ctx context.Context) error {
	_, err := f.Do(ctx, "down")
	return err
}

// Collect saves every host's journal, configuration and network state under dir.
func (f Fleet) Collect(ctx context.Context, dir string) error {
	_, err := f.Do(ctx, "collect", dir)
	return err
}

func (f Fleet) verb(ctx context.Context, verb string, n int) error {
	_, err := f.Do(ctx, verb, strconv.Itoa(n))
	return err
}
