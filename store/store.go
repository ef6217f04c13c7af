package store

import (
	"errors"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
)

// ErrNotReadOnly is returned by Store.Txn for a transaction that could write:
// propose it instead.
var ErrNotReadOnly = errors.New("transaction has operations that write: propose it")

// Options configures a Store. The zero value is ready to use.
type Options struct {
	// OnLease, when set, is called within Apply and Restore for each change
	// of the set of leases, in order. It must return at once and must not
	// call the store.
	OnLease func(LeaseChange)
}

// Store is the state machine. See the package's documentation for who may
// call what.
type Store struct {
	onLease      func(LeaseChange)
	leaseVersion atomic.Uint64

	// mu guards cur. It is held for one request at a time.
	mu  sync.Mutex
	cur *state
	// published is a fork of cur that is up to date, or nil when a change
	// came after the last fork; set and cleared under mu.
	published atomic.Pointer[state]

	// auth is cur's; set under mu, for readers that ask for nothing else.
	auth    atomic.Pointer[Auth]
	onToken []*func(TokenChange) // guarded by mu; replaced, not changed

	watches watchIndex

	puts, deletes atomic.Uint64
}

// New returns an empty store at revision 1.
func New(o Options) *Store {
	s := &Store{onLease: o.OnLease, cur: newState()}
	s.auth.Store(s.cur.auth)
	s.watches.init()
	return s
}

// view returns the current state, immutable.
func (s *Store) view() *state {
	if v := s.published.Load(); v != nil {
		return v
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.published.Load()
	if v == nil {
		v = s.cur.fork()
		s.published.Store(v)
	}
	return v
}

// Revision returns the revision of the last change; 1 when there was none.
func (s *Store) Revision() int64 { return s.view().rev }

// CompactRevision returns the revision of the last compaction, the oldest that
// can be read; -1 when there was none, as in etcd.
func (s *Store) CompactRevision() int64 { return s.view().compactRev }

// Size estimates the bytes that keys and values take in memory, history
// included. It is the same on every peer.
func (s *Store) Size() int64 { return s.view().size }

// Range reads the local state, without waiting for anything. The error is an
// rpctypes gRPC error. The response's key-values are shared: do not change
// them.
func (s *Store) Range(r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return s.view().rangeNow(r)
}

func (st *state) rangeNow(r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if st.alarmed(pb.AlarmType_CORRUPT) {
		return nil, rpctypes.ErrGRPCCorrupt
	}
	return st.execRange(r, st.rev)
}

// Txn executes a read-only transaction on the local state. It returns
// ErrNotReadOnly when r could write, else rpctypes gRPC errors.
func (s *Store) Txn(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if !readOnly(r) {
		return nil, ErrNotReadOnly
	}
	st := s.view()
	if st.alarmed(pb.AlarmType_CORRUPT) {
		return nil, rpctypes.ErrGRPCCorrupt
	}
	p, err := st.planTxn(r)
	if err != nil {
		return nil, err
	}
	t := st.begin()
	return t.execTxn(p)
}

// ReadOnlyTxn tells whether Txn accepts r.
func ReadOnlyTxn(r *pb.TxnRequest) bool { return readOnly(r) }

// Apply applies one committed request. It takes over the byte slices of r.
func (s *Store) Apply(r *pb.InternalRaftRequest) Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark := s.cur.log.n
	compacted := s.cur.compactRev
	resp, err := s.dispatch(r)
	res := Result{Err: err, Revision: s.cur.rev}
	if err == nil {
		res.Response = resp
	}
	if s.auth.Load() != s.cur.auth {
		s.auth.Store(s.cur.auth)
	}
	s.published.Store(nil)
	if s.cur.compactRev == compacted {
		s.count(mark)
		s.watches.notify(&s.cur.log, mark)
	}
	return res
}

// count counts the changes from the given one on.
func (s *Store) count(mark int) {
	for i := mark; i < s.cur.log.n; i++ {
		if live(s.cur.log.at(i)) {
			s.puts.Add(1)
		} else {
			s.deletes.Add(1)
		}
	}
}

// Changes returns how many keys were put and deleted by Apply since the store was made.
func (s *Store) Changes() (puts, deletes uint64) { return s.puts.Load(), s.deletes.Load() }

// dispatch applies r to s.cur.
func (s *Store) dispatch(r *pb.InternalRaftRequest) (proto.Message, error) {
	st := s.cur
	if err := st.refuse(r); err != nil {
		return nil, err
	}
	if err := st.permitRequest(r); err != nil {
		return nil, err
	}
	switch {
	case r.Range != nil:
		return st.execRange(r.Range, st.rev)
	case r.Put != nil:
		if err := st.checkPut(r.Put); err != nil {
			return nil, err
		}
		t := st.begin()
		defer t.end()
		return t.execPut(r.Put), nil
	case r.DeleteRange != nil:
		if len(r.DeleteRange.Key) == 0 {
			return nil, rpctypes.ErrGRPCEmptyKey
		}
		t := st.begin()
		defer t.end()
		return t.execDelete(r.DeleteRange), nil
	case r.Txn != nil:
		p, err := st.planTxn(r.Txn)
		if err != nil {
			return nil, err
		}
		t := st.begin()
		defer t.end()
		return t.execTxn(p)
	case r.Compaction != nil:
		rev := r.Compaction.Revision
		if rev <= st.compactRev {
			return nil, rpctypes.ErrGRPCCompacted
		}
		if rev > st.rev {
			return nil, rpctypes.ErrGRPCFutureRev
		}
		st.compact(rev)
		return &pb.CompactionResponse{Header: &pb.ResponseHeader{Revision: st.rev}}, nil
	case r.LeaseGrant != nil:
		return s.applyLeaseGrant(r.LeaseGrant)
	case r.LeaseRevoke != nil:
		return s.applyLeaseRevoke(r.LeaseRevoke)
	case r.LeaseCheckpoint != nil:
		return s.applyLeaseCheckpoint(r.LeaseCheckpoint)
	case r.Alarm != nil:
		return s.applyAlarm(r.Alarm), nil
	case r.ClusterMemberAttrSet != nil:
		st.setMember(r.ClusterMemberAttrSet)
		return &pb.EmptyResponse{}, nil
	case r.ClusterVersionSet != nil:
		st.clusterVersion = r.ClusterVersionSet.Ver
		return &pb.EmptyResponse{}, nil
	}
	return s.applyAuth(r)
}

// refuse answers what active alarms forbid: without space nothing may grow,
// and a corrupt store answers nothing.
func (st *state) refuse(r *pb.InternalRaftRequest) error {
	if len(st.alarms) == 0 {
		return nil
	}
	if st.alarmed(pb.AlarmType_CORRUPT) && (r.Range != nil || r.Put != nil || r.DeleteRange != nil || r.Txn != nil ||
		r.Compaction != nil || r.LeaseGrant != nil || r.LeaseRevoke != nil) {
		return rpctypes.ErrGRPCCorrupt
	}
	if st.alarmed(pb.AlarmType_NOSPACE) && (r.Put != nil || r.LeaseGrant != nil || r.Txn != nil && puts(r.Txn)) {
		return rpctypes.ErrGRPCNoSpace
	}
	return nil
}
