package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// job is what the launcher leaves for init in the initramfs.
type job struct {
	Programs []string // run one after the other, each with Args
	Args     []string
	Env      []string
	Modules  []string // files, in load order
}

const (
	base     = "/guest"      // where the program, the modules and the job are in the guest
	exitMark = "GUEST-EXIT " // what init prints before the exit code
	jobFile  = base + "/job.json"
)

type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

type options struct {
	root, qemu, mem string
	smp             int
	timeout         time.Duration
	kmsg            bool
	files, env      list
	programs        []string
	args            []string
}

func parse(args []string) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("guest", flag.ContinueOnError)
	fs.StringVar(&o.root, "root", "", "tree of an unpacked Debian kernel package (boot/vmlinuz-*, lib/modules/*)")
	fs.StringVar(&o.qemu, "qemu", "qemu-system-x86_64", "QEMU's program")
	fs.StringVar(&o.mem, "mem", "768M", "the guest's memory")
	fs.IntVar(&o.smp, "smp", 2, "the guest's processors")
	fs.DurationVar(&o.timeout, "timeout", 15*time.Minute, "give up after this long")
	fs.BoolVar(&o.kmsg, "kmsg", false, "show the kernel's messages")
	fs.Var(&o.files, "add", "also put this file of the machine into the guest, with the libraries it needs; HOST or HOST:GUEST, repeatable")
	fs.Var(&o.env, "env", "NAME=VALUE for the program; repeatable")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() == 0 || o.root == "" {
		return nil, errors.New("usage: guest -root KERNEL-TREE [flags] PROGRAM[,PROGRAM...] [ARGS]; or the script test/guest/run")
	}
	o.programs, o.args = strings.Split(fs.Arg(0), ","), fs.Args()[1:]
	return o, nil
}

// launch runs the programs in a guest and returns the exit code of the first that failed, or 0.
func launch(args []string) (int, error) {
	o, err := parse(args)
	if err != nil {
		return 0, err
	}
	kernel, modules, err := findKernel(o.root)
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp("", "guest")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	initrd := filepath.Join(work, "initrd")
	if err := writeInitramfs(initrd, o, modules); err != nil {
		return 0, fmt.Errorf("make the guest's file system: %w", err)
	}
	return boot(o, kernel, initrd)
}

func findKernel(root string) (kernel, modules string, err error) {
	found, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil || len(found) == 0 {
		return "", "", fmt.Errorf("no boot/vmlinuz-* in %s", root)
	}
	kernel = found[len(found)-1]
	release := strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-")
	return kernel, filepath.Join(root, "lib", "modules", release), nil
}

func writeInitramfs(path string, o *options, moduleDir string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := bufio.NewWriterSize(f, 1<<20)
	c := newCPIO(buf)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.file("/init", self, 0o755)
	c.device("/dev/console", 5, 1)
	c.device("/dev/null", 1, 3)
	j := job{Args: o.args, Env: o.env}
	for _, host := range o.programs {
		program := base + "/" + filepath.Base(host)
		c.program(program, host)
		j.Programs = append(j.Programs, program)
	}
	files, err := moduleFiles(moduleDir)
	if err != nil {
		return err
	}
	for _, m := range files {
		at := base + "/modules/" + filepath.Base(m)
		c.file(at, m, 0o644)
		j.Modules = append(j.Modules, at)
	}
	for _, a := range o.files {
		host, guest, ok := strings.Cut(a, ":")
		if !ok {
			guest = host
		}
		c.program(guest, host)
	}
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	c.data(jobFile, b, 0o644)
	c.end()
	return errors.Join(c.err, buf.Flush(), f.Close())
}

func boot(o *options, kernel, initrd string) (int, error) {
	line := "console=ttyS0 panic=-1 reboot=t tsc=unstable no_timer_check random.trust_cpu=on mitigations=off nokaslr"
	if !o.kmsg {
		line += " quiet loglevel=1"
	}
	accel := "tcg,thread=multi"
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		f.Close()
		accel = "kvm"
	}
	cmd := exec.Command(o.qemu, "-M", "q35", "-accel", accel, "-cpu", "max", "-smp", strconv.Itoa(o.smp), "-m", o.mem,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", kernel, "-initrd", initrd, "-append", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start QEMU: %w; install it with make deps", err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(stop)
	ended := make(chan struct{})
	defer close(ended)
	late := time.NewTimer(o.timeout)
	defer late.Stop()
	why := make(chan error, 1)
	go func() {
		select {
		case <-late.C:
			why <- fmt.Errorf("no result after %s", o.timeout)
		case s := <-stop:
			why <- fmt.Errorf("stopped by %s", s)
		case <-ended:
			return
		}
		_ = cmd.Process.Kill()
	}()
	code := relay(out)
	err = cmd.Wait()
	select {
	case e := <-why:
		return 0, e
	default:
	}
	if code < 0 {
		return 0, fmt.Errorf("the guest ended without an exit code (QEMU: %v); -kmsg shows the kernel's messages", err)
	}
	return code, nil
}

// relay copies the guest's console to standard output and picks the exit code out of it; -1: there was none.
func relay(r io.Reader) int {
	code := -1
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadString('\n')
		line = strings.ReplaceAll(line, "\r", "")
		if v, ok := strings.CutPrefix(line, exitMark); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
				code = n
			}
		} else if code < 0 { // what follows is the kernel's farewell
			fmt.Print(line)
		}
		if err != nil {
			return code
		}
	}
}
