package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// scratch is a fleet of its own, so that the tests leave alone what `make up` made.
func scratch(t *testing.T) (Fleet, context.Context) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("the fleet needs root, for namespaces and control groups")
	}
	pid := os.Getpid()
	// an address range and a name by process, so that two runs do not meet
	f := Fleet{
		Dir:    filepath.Join("/var/tmp", "tripod-fleet-test-"+strconv.Itoa(pid)),
		Net:    "172.30." + strconv.Itoa(pid%256),
		Prefix: "t" + strconv.Itoa(pid%1000000),
		Env:    []string{"FLEET_BINDS="},
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(func() {
		cancel()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := f.Down(ctx); err != nil {
			t.Error(err)
		}
		if left := traces(f); len(left) > 0 {
			t.Errorf("down left %v", left)
		}
	})
	return f, ctx
}

// traces are the mounts, namespaces, control groups and files that belong to f.
func traces(f Fleet) []string {
	var left []string
	for _, pattern := range []string{f.Dir, "/run/netns/" + f.Prefix + "*", "/sys/fs/cgroup/" + f.Prefix + "*", "/sys/fs/cgroup/*/" + f.Prefix + "*"} {
		found, _ := filepath.Glob(pattern)
		left = append(left, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for _, line := range strings.Split(string(mounts), "\n") {
		if strings.Contains(line, f.Dir) || strings.Contains(line, "/run/netns/"+f.Prefix) {
			left = append(left, line)
		}
	}
	cmdlines, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, p := range cmdlines {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), f.Dir+"/") {
			left = append(left, p)
		}
	}
	return left
}

func TestHosts(t *testing.T) {
	f, ctx := scratch(t)
	in := func(i int, script string) string {
		t.Helper()
		out, err := f.Sh(ctx, i, script)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	reach := func(i int, addr string) bool {
		_, err := f.In(ctx, i, "ping", "-c1", "-W2", addr)
		return err == nil
	}
	do(f.Up(ctx, 2))

	if got := in(1, "cat /proc/1/comm; hostname"); got != "systemd\n"+f.Host(1) {
		t.Errorf("first process and name: %q", got)
	}
	if got := in(1, "ip route show default"); got != "" {
		t.Errorf("a host has a default route: %s", got)
	}
	if !reach(1, f.Host(2)) {
		t.Error("hosts do not reach each other by name")
	}
	if out, err := f.Run(ctx, "ip", "-br", "addr", "show", "br0"); err != nil || !strings.Contains(out, f.Net+".1/24") {
		t.Errorf("run is not on the switch: %q, %v", out, err)
	}
	if in(1, "cat /etc/machine-id") == in(2, "cat /etc/machine-id") {
		t.Error("two hosts have one machine ID")
	}
	if out, err := f.In(ctx, 1, "sh", "-c", "echo out; exit 7"); err == nil || !strings.Contains(err.Error(), "exit status 7") || out != "out\n" {
		t.Errorf("exit code of a program in a host: %q, %v", out, err)
	}

	t.Run("cut and heal", func(t *testing.T) {
		do(f.Cut(ctx, 2))
		if reach(1, f.Addr(2)) {
			t.Error("a host without a cable was reached")
		}
		do(f.Heal(ctx, 2))
		if !reach(1, f.Addr(2)) {
			t.Error("a host was not reached after its cable was plugged in")
		}
	})

	for name, off := range map[string]func(context.Context, int) error{"power cut": f.Kill, "power-off": f.Stop} {
		t.Run(name, func(t *testing.T) {
			boot := in(2, "cat /proc/sys/kernel/random/boot_id")
			in(2, "echo kept >/root/file; sync; logger -t fleettest before "+strings.ReplaceAll(name, " ", "-")+"; journalctl --sync")
			do(off(ctx, 2))
			if reach(1, f.Addr(2)) {
				t.Error("a host that is off answers")
			}
			if _, err := f.In(ctx, 2, "true"); err == nil || !strings.Contains(err.Error(), "is off") {
				t.Errorf("a program ran in a host that is off: %v", err)
			}
			do(f.Start(ctx, 2))
			if got := in(2, "cat /root/file; cat /proc/sys/kernel/random/boot_id"); !strings.HasPrefix(got, "kept\n") || strings.Contains(got, boot) {
				t.Errorf("after boot: disk and boot ID %q, boot ID before %s", got, boot)
			}
			if got := in(2, "journalctl -b -1 -t fleettest -o cat --no-pager"); !strings.Contains(got, "before") {
				t.Errorf("journal of the boot before: %q", got)
			}
			if !reach(1, f.Addr(2)) {
				t.Error("the host is not reached after boot")
			}
		})
	}

	t.Run("ended command", func(t *testing.T) {
		short, cancel := context.WithCancel(ctx)
		c := f.Command(short, "in", "1", "sleep", "98765")
		do(c.Start())
		for running := false; !running; { // until it runs there
			out, _ := f.In(ctx, 1, "pgrep", "-f", "^sleep 98765")
			running = out != ""
			if ctx.Err() != nil {
				t.Fatal(ctx.Err())
			}
		}
		cancel()
		_ = c.Wait()
		for {
			_, err := f.In(ctx, 1, "pgrep", "-f", "^sleep 98765")
			if err != nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatal("the program outlived the command that ran it")
			}
		}
	})

	t.Run("collect", func(t *testing.T) {
		dir := t.TempDir()
		do(f.Collect(ctx, dir))
		b, err := os.ReadFile(filepath.Join(dir, f.Host(2), "journal.log"))
		if err != nil || !strings.Contains(string(b), "fleettest") {
			t.Errorf("journal of host 2: %d bytes, %v", len(b), err)
		}
	})
}

func TestDownOfNothing(t *testing.T) {
	f, ctx := scratch(t)
	if err := f.Down(ctx); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	f, ctx := scratch(t)
	for _, args := range [][]string{{"in", "x", "true"}, {"in", "1"}, {"up", "99"}, {"start", "1"}, {"cut", "1"}, {"run", "true"}, {"collect"}, {"bogus"}} {
		out, err := f.Do(ctx, args...)
		if err == nil || (args[0] != "bogus" && !strings.Contains(err.Error(), "fleet: ")) {
			t.Errorf("fleet %v: %q, %v; want a refusal that says why", args, out, err)
		}
	}
	if _, err := os.Stat(f.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("refused commands left %s", f.Dir)
	}
}
