// Command etcdserver is the store behind etcd's command line, for tests and
// benchmarks that start an etcd: raftfsm, store and etcdapi in one process, which
// takes etcd's flags and says what etcd says when it is ready.
//
// Peers speak mutual TLS with certificates of one authority that every process
// derives by itself: fit for tests and nothing else. The founders' IDs
// come from --initial-cluster-token and peer URLs, so that they agree without talking.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/tripod-cluster/tripod/internal/heap"
)

func main() {
	o, err := parseFlags(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if o.version {
		fmt.Printf("etcd Version: %s\nGit SHA: tripod\nGo Version: %s\nGo OS/Arch: %s/%s\n", version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return
	}
	heap.Bound()
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		fmt.Fprintf(os.Stderr, "--log-level: %v\n", err)
		os.Exit(2)
	}
	out := os.Stderr
	if o.logOutputs == "stdout" {
		out = os.Stdout
	}
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(log)
	for _, name := range o.ignored {
		log.Warn("flag of etcd without meaning here", "flag", name)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, o, log); err != nil && !errors.Is(err, context.Canceled) {
		log.Error("the server ends", "error", err)
		os.Exit(1)
	}
}
