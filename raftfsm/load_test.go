package raftfsm

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/store"
)

// BenchmarkLoad reads a snapshot of keys of 1 KiB as a start does: 100 000, or as many as RAFTFSM_KEYS says. The
// processor's time is told beside the clock's.
func BenchmarkLoad(b *testing.B) {
	keys := 100_000
	if s := os.Getenv("RAFTFSM_KEYS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		keys = n
	}
	src := bareFSM()
	value := noise(1, 1024)
	for i := range keys {
		src.store.Apply(&pb.InternalRaftRequest{Put: &pb.PutRequest{Key: fmt.Appendf(nil, "/registry/things/%09d", (i*7919)%keys), Value: value}})
	}
	src.advance(uint64(keys), 1)
	snaps, err := openSnapshots(newOSFiles(), b.TempDir(), quiet(b))
	if err != nil {
		b.Fatal(err)
	}
	sink, err := snaps.Create(1, uint64(keys), 1, raft.Configuration{}, 1, nil)
	if err != nil {
		b.Fatal(err)
	}
	s, err := src.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Persist(sink); err != nil {
		b.Fatal(err)
	}
	src = nil
	var cpu time.Duration
	b.ResetTimer()
	for range b.N {
		n := &Node{snaps: snaps, fsm: bareFSM(), log: quiet(b)}
		n.fsm.store = store.New(store.Options{})
		before := processorTime()
		if at, err := n.loadSnapshot(); err != nil || at != uint64(keys) {
			b.Fatal(at, err)
		}
		cpu += processorTime() - before
		if r := n.fsm.store.Revision(); r != int64(keys)+1 {
			b.Fatalf("revision %d", r)
		}
	}
	b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
