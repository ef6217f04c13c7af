package raftfsm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// ReadLog reads the raft log in the raft directory of a peer that does not run, in order of
// index. It changes nothing: it works on a copy, as opening a log mends what a crash left
// behind. The last entries may not be committed.
func ReadLog(dir string) ([]raft.Log, error) {
	tmp, err := os.MkdirTemp("", "raftlog")
	if err != nil {
		return nil, fmt.Errorf("read the raft log in %s: %w", dir, err)
	}
	defer os.RemoveAll(tmp)
	if err := os.CopyFS(tmp, os.DirFS(filepath.Join(dir, walDir))); err != nil {
		return nil, fmt.Errorf("copy the raft log in %s: %w", dir, err)
	}
	quiet := slog.New(slog.DiscardHandler)
	l, err := openWAL(tmp, newOSFiles(), segmentBytes, newHLog(quiet, "raft-wal"), quiet)
	if err != nil {
		return nil, err
	}
	defer l.close()
	first, err := l.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("read the raft log in %s: %w", dir, err)
	}
	var es []raft.Log
	for i := first; i > 0 && i <= l.last; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil {
			return nil, fmt.Errorf("read entry %d of the raft log in %s: %w", i, dir, err)
		}
		es = append(es, e)
	}
	return es, nil
}

// LoggedRequest is a request as the peers applied it.
type LoggedRequest struct {
	Index, Term uint64 // of its raft entry
	Request     *pb.InternalRaftRequest
	Result      store.Result
}

// Replay applies entries, which must begin with the cluster's first, to an empty state as a
// peer does, and returns the requests that were applied: each once, however often it is in
// the log, and without those that came too late for their term.
func Replay(entries []raft.Log) ([]LoggedRequest, error) {
	var out []LoggedRequest
	var failed error
	stop := make(chan struct{})
	close(stop)
	f := newFSM(store.New(store.Options{}), 0, 0)
	f.lease = func(store.LeaseChange) {}
	f.fatal = func(err error) { failed = err }
	f.stop = stop
	next := uint64(1)
	for i := range entries {
		l := &entries[i]
		if l.Index != next {
			return nil, fmt.Errorf("entry %d of the raft log follows entry %d", l.Index, next-1)
		}
		next++
		if l.Type != raft.LogCommand {
			continue
		}
		records, err := openEntry(l.Data)
		if err == nil {
			err = eachRecord(records, func(r record) error {
				res, applied := f.record(&r, l)
				if !applied || r.kind != recRequest || errors.Is(res.Err, errStaleTerm) {
					return failed
				}
				req := &pb.InternalRaftRequest{}
				if err := proto.Unmarshal(r.payload, req); err != nil {
					return err
				}
				out = append(out, LoggedRequest{l.Index, l.Term, req, res})
				return failed
			})
		}
		if err != nil {
			return nil, fmt.Errorf("replay entry %d of the raft log: %w", l.Index, err)
		}
	}
	return out, nil
}
