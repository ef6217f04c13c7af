package etcdapi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tripod-cluster/tripod/backup/etcddb"
)

// snapshotChunk is how much of a snapshot one message carries.
const snapshotChunk = 64 << 10

// Snapshot sends the state as it is now, in the form of an etcd server's
// database, and its checksum in the last message.
func (m *maintenanceServer) Snapshot(_ *pb.SnapshotRequest, out pb.Maintenance_SnapshotServer) error {
	f, err := m.s.snapshotFile(out.Context().Done())
	if err != nil {
		m.s.log.Error("a snapshot that a client asked for failed", "error", err)
		return status.Error(codes.Unavailable, "etcdserver: "+err.Error())
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return status.Error(codes.Unavailable, "etcdserver: "+err.Error())
	}
	m.s.log.Info("sending a snapshot to a client", "bytes", fi.Size())
	// The checksum is sent by itself, and is not counted in what remains.
	for left := fi.Size() - sha256.Size; ; {
		n := min(left, snapshotChunk)
		if left == 0 {
			n = sha256.Size
		}
		b := make([]byte, n) // Send does not wait until it is sent: no buffer is used again
		if _, err := io.ReadFull(f, b); err != nil {
			return status.Error(codes.Unavailable, "etcdserver: read the snapshot: "+err.Error())
		}
		last := left == 0
		if !last {
			left -= n
		}
		if err := out.Send(&pb.SnapshotResponse{RemainingBytes: uint64(left), Blob: b, Version: etcddb.SchemaVersion}); err != nil || last {
			return err
		}
	}
}

// snapshotFile writes a snapshot to a file that is gone when it is closed. One is
// written at a time.
func (s *Server) snapshotFile(done <-chan struct{}) (*os.File, error) {
	select {
	case s.saving <- struct{}{}:
		defer func() { <-s.saving }()
	case <-done:
		return nil, errors.New("the client went away")
	case <-s.stop:
		return nil, errors.New("the server stops")
	}
	f, err := os.CreateTemp(s.cfg.SnapshotDir, ".snapshot-*")
	if err != nil {
		return nil, fmt.Errorf("make a place for the snapshot: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil { // it lives as long as it is open
		return nil, errors.Join(fmt.Errorf("make a place for the snapshot: %w", err), f.Close())
	}
	origin := s.snapshotOrigin()
	sn := s.cfg.Store.Snapshot()
	defer sn.Close()
	if _, err := etcddb.WriteFile(f, sn, origin); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *Server) snapshotOrigin() etcddb.Origin {
	if s.cfg.SnapshotOrigin != nil {
		return s.cfg.SnapshotOrigin()
	}
	c := s.cfg.Cluster
	o := etcddb.Origin{Cluster: c.ClusterID(), Taken: time.Now(), Index: c.AppliedIndex(), Term: c.Term()}
	for _, m := range c.Members() {
		o.Members = append(o.Members, etcddb.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.Learner})
	}
	return o
}
