package etcdapi

import (
	"crypto/sha256"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tripod-cluster/tripod/backup/etcddb"
)

// snapshotChunk is how much of a snapshot one message carries at most. With 64 KiB a
// snapshot costs two fifths more processor time, and with 1 MiB hardly less.
const snapshotChunk = 256 << 10

// Snapshot sends the state as it is now, in the form of an etcd server's database, and
// its checksum in the last message. It is made while it is sent, so that a client that
// is slow holds the store's snapshot and one message, and nothing on disk.
func (m *maintenanceServer) Snapshot(_ *pb.SnapshotRequest, out pb.Maintenance_SnapshotServer) error {
	origin := m.s.snapshotOrigin()
	sn := m.s.cfg.Store.Snapshot()
	defer sn.Close()
	db, err := etcddb.NewStream(sn, origin)
	if err != nil {
		return m.s.snapshotFailed(err)
	}
	m.s.log.Info("sending a snapshot to a client", "bytes", db.Size())
	w := &snapshotSender{out: out, left: db.Size() - sha256.Size}
	if _, err := db.WriteTo(w); w.err != nil {
		return w.err // the client went away
	} else if err != nil {
		return m.s.snapshotFailed(err)
	}
	return nil
}

// snapshotFailed is for a fault of this program, and not of the client.
func (s *Server) snapshotFailed(err error) error {
	s.log.Error("a snapshot that a client asked for failed", "error", err)
	return status.Error(codes.Unavailable, "etcdserver: make the snapshot: "+err.Error())
}

// snapshotSender sends what is written to it. The checksum, at the end, is sent by
// itself and is not counted in what remains.
type snapshotSender struct {
	out  pb.Maintenance_SnapshotServer
	left int64 // bytes before the checksum
	err  error // of a Send
}

// Write sends p. The codec copies it before Send returns, so that it is the caller's
// again.
func (w *snapshotSender) Write(p []byte) (n int, err error) {
	for n < len(p) {
		size := int64(min(len(p)-n, snapshotChunk))
		if w.left > 0 {
			size = min(size, w.left)
			w.left -= size
		}
		blob := p[n : n+int(size)]
		if w.err = w.out.Send(&pb.SnapshotResponse{RemainingBytes: uint64(w.left), Blob: blob, Version: etcddb.SchemaVersion}); w.err != nil {
			return n, w.err
		}
		n += len(blob)
	}
	return n, nil
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
