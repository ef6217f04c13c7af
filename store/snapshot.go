package store

import (
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Snapshot is the state at one moment. It costs nothing to take; while it is
// held, memory that changed since is held with it.
type Snapshot struct{ st *state }

// Snapshot returns a handle on the current state.
func (s *Store) Snapshot() *Snapshot { return &Snapshot{st: s.view()} }

// Revision is the store's revision at that moment.
func (sn *Snapshot) Revision() int64 { return sn.st.rev }

// CompactRevision is the oldest revision that can be read; -1 for all.
func (sn *Snapshot) CompactRevision() int64 { return sn.st.compactRev }

// Range reads the snapshot; see Store.Range.
func (sn *Snapshot) Range(r *pb.RangeRequest) (*pb.RangeResponse, error) { return sn.st.rangeNow(r) }

// Close lets go of the state. The snapshot must not be used afterwards.
func (sn *Snapshot) Close() { sn.st = nil }

// WriteTo writes the snapshot in the format that Restore reads. Equal states
// give equal bytes.
func (sn *Snapshot) WriteTo(w io.Writer) (int64, error) {
	e := &encoder{w: w}
	e.state(sn.st)
	return e.n, e.err
}
