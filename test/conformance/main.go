package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tripod-cluster/tripod/test/cluster"
	"github.com/tripod-cluster/tripod/test/fleet"
)

// options are the flags.
type options struct {
	bin, images, hostImages, kubectl, out string
	focus, skip                           string
	resume, quick                         bool
	procs                                 int
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "", "directory of e2e.test and ginkgo")
	flag.StringVar(&o.images, "images", "", "directory of the image archives")
	flag.StringVar(&o.hostImages, "host-images", "/srv/images/conformance", "the same directory as hosts see it")
	flag.StringVar(&o.kubectl, "kubectl", "", "the kubectl that tests run")
	flag.StringVar(&o.out, "out", "", "directory of results")
	flag.StringVar(&o.focus, "focus", "", "run only conformance tests whose name matches this regular expression")
	flag.StringVar(&o.skip, "skip", "", "and does not match this one")
	flag.BoolVar(&o.resume, "resume", false, "run what failed or did not run last time; keep the other results")
	flag.BoolVar(&o.quick, "quick", false, "run the tests of quick.txt, some of every SIG")
	flag.IntVar(&o.procs, "procs", 4, "tests at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := run(ctx, o, os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

// run does what o asks for, and tells whether everything went as expected.txt says.
func run(ctx context.Context, o options, screen io.Writer) (good bool, err error) {
	for name, value := range map[string]*string{"-bin": &o.bin, "-images": &o.images, "-kubectl": &o.kubectl, "-out": &o.out} {
		if *value == "" {
			return false, fmt.Errorf("%s is missing; make conformance gives all flags", name)
		}
		if *value, err = filepath.Abs(*value); err != nil {
			return false, err
		}
	}
	here := filepath.Join(fleet.Top(), "test", "conformance")
	causes, err := readExpected(filepath.Join(here, "expected.txt"))
	if err != nil {
		return false, err
	}
	c, err := cluster.FromEnv()
	if err != nil {
		return false, err
	}
	s := suite{cluster: c, bin: o.bin, kubectl: o.kubectl, out: o.out, screen: screen}
	all, err := s.list(ctx)
	if err != nil {
		return false, err
	}
	if names := unknown(maps.Keys(causes), all); len(names) > 0 {
		return false, fmt.Errorf("expected.txt lists what is no test of this Kubernetes version:\n  %s", strings.Join(names, "\n  "))
	}
	rs, todo, err := selection(o, here, all)
	if err != nil {
		return false, err
	}
	if err := preload(ctx, c, o.images, o.hostImages, screen); err != nil {
		return false, err
	}
	if err := s.attempt(ctx, rs, todo, causes, o.procs); err != nil {
		return false, err
	}
	return report(ctx, c, o.out, rs, causes, screen)
}

// selection returns the records of this run and the tests of them that are to run.
func selection(o options, here string, all []string) (rs records, todo []string, err error) {
	if o.resume {
		if rs, err = load(o.out); err != nil {
			return nil, nil, err
		}
		if todo, err = choose(rs.unfinished(), o.focus, o.skip); err != nil {
			return nil, nil, err
		}
		for i := range rs {
			if slices.Contains(todo, rs[i].Name) {
				rs[i].Attempts = 0
			}
		}
		return rs, todo, nil
	}
	from := all
	if o.quick {
		if from, err = readNames(filepath.Join(here, "quick.txt")); err != nil {
			return nil, nil, err
		}
		if names := unknown(slices.Values(from), all); len(names) > 0 {
			return nil, nil, fmt.Errorf("quick.txt lists what is no test of this Kubernetes version:\n  %s", strings.Join(names, "\n  "))
		}
	}
	if todo, err = choose(from, o.focus, o.skip); err != nil {
		return nil, nil, err
	}
	if len(todo) == 0 {
		return nil, nil, fmt.Errorf("no conformance test matches focus %q and not skip %q", o.focus, o.skip)
	}
	if err := os.RemoveAll(o.out); err != nil {
		return nil, nil, err
	}
	return newRecords(todo), todo, os.MkdirAll(o.out, 0o755)
}

// attempt runs tests into rs: side by side, then those that need the cluster alone, then once more those that failed
// and should not have. The results are saved after each part.
func (s suite) attempt(ctx context.Context, rs records, tests []string, causes map[string]string, procs int) error {
	part := func(name string, tests []string, procs int) error {
		if len(tests) == 0 || ctx.Err() != nil {
			return nil
		}
		got, err := s.run(ctx, name, tests, procs)
		if err != nil {
			return err
		}
		rs.put(got)
		return rs.save(s.out)
	}
	if err := rs.save(s.out); err != nil {
		return err
	}
	parallel, serial := split(tests)
	if err := part("parallel", parallel, procs); err != nil {
		return err
	}
	if err := part("serial", serial, 1); err != nil {
		return err
	}
	again := slices.DeleteFunc(rs.failures(causes), func(name string) bool { return !slices.Contains(tests, name) })
	return part("again", again, 1)
}

// report writes what a run leaves, and tells whether it went as expected.
func report(ctx context.Context, c cluster.Cluster, out string, rs records, causes map[string]string, screen io.Writer) (good bool, err error) {
	if err := rs.writeJUnit(filepath.Join(out, "junit.xml")); err != nil {
		return false, err
	}
	page, err := os.Create(filepath.Join(out, "summary.txt"))
	if err != nil {
		return false, err
	}
	defer page.Close()
	wrong := judge(rs, causes)
	if len(wrong) > 0 {
		if err := c.Collect(context.WithoutCancel(ctx), filepath.Join(out, "fleet")); err != nil {
			fmt.Fprintln(screen, err)
		}
	}
	summarize(io.MultiWriter(page, screen), rs, causes)
	return len(wrong) == 0 && ctx.Err() == nil, page.Close()
}
