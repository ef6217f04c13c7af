package store

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// checkReadRevision refuses a revision that cannot be read when current is
// the newest one; 0 means current.
func (st *state) checkReadRevision(rev, current int64) error {
	switch {
	case rev > current:
		return rpctypes.ErrGRPCFutureRev
	case rev > 0 && rev < st.compactRev:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

// execRange answers r, where current is the newest revision the reader may
// see: inside a transaction that has written, one more than st.rev.
func (st *state) execRange(r *pb.RangeRequest, current int64) (*pb.RangeResponse, error) {
	if len(r.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	if err := st.checkReadRevision(r.Revision, current); err != nil {
		return nil, err
	}
	rev := r.Revision
	if rev <= 0 {
		rev = current
	}
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: current}}
	sp := newSpan(r.Key, r.RangeEnd)
	if r.CountOnly {
		resp.Count = st.count(sp, rev)
		return resp, nil
	}

	// One more than the limit is fetched, to know whether there are more. A
	// limit counts after filtering and sorting. A target without an order
	// sorts ascending what the limit left, as in etcd.
	limit := int64(math.MaxInt64)
	if r.Limit > 0 && r.Limit < math.MaxInt64 && defaultOrder(r) && !filtered(r) {
		limit = r.Limit + 1
	}
	var kvs []*mvccpb.KeyValue
	st.scan(sp, rev, func(kv *mvccpb.KeyValue) bool {
		resp.Count++
		if passes(r, kv) {
			kvs = append(kvs, kv)
		}
		return int64(len(kvs)) < limit
	})
	if int64(len(kvs)) == limit {
		// The count is of all keys, also of those that are not fetched.
		rest := sp
		rest.key = keyString(kvs[len(kvs)-1].Key)
		resp.Count += st.count(rest, rev) - 1
	}
	sortKeyValues(kvs, r)
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs = kvs[:r.Limit]
		resp.More = true
	}
	if r.KeysOnly {
		for i, kv := range kvs {
			kvs[i] = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
			if r.SortTarget == pb.RangeRequest_VALUE {
				// etcd 3.7 leaves the lease out unless it had to read the value.
				kvs[i].Lease = kv.Lease
			}
		}
	}
	resp.Kvs = kvs
	return resp, nil
}

func defaultOrder(r *pb.RangeRequest) bool {
	return r.SortOrder == pb.RangeRequest_NONE ||
		r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND
}

func filtered(r *pb.RangeRequest) bool {
	return r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
}

func passes(r *pb.RangeRequest, kv *mvccpb.KeyValue) bool {
	return (r.MaxModRevision == 0 || kv.ModRevision <= r.MaxModRevision) &&
		(r.MinModRevision == 0 || kv.ModRevision >= r.MinModRevision) &&
		(r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision) &&
		(r.MinCreateRevision == 0 || kv.CreateRevision >= r.MinCreateRevision)
}

// sortKeyValues sorts in place; ties stay in key order, so that the result is
// the same everywhere.
func sortKeyValues(kvs []*mvccpb.KeyValue, r *pb.RangeRequest) {
	var by func(a, b *mvccpb.KeyValue) int
	switch r.SortTarget {
	case pb.RangeRequest_VERSION:
		by = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case pb.RangeRequest_CREATE:
		by = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case pb.RangeRequest_MOD:
		by = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case pb.RangeRequest_VALUE:
		by = func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	default: // the key, in which order they already are
		if r.SortOrder == pb.RangeRequest_DESCEND {
			slices.Reverse(kvs)
		}
		return
	}
	if r.SortOrder == pb.RangeRequest_DESCEND {
		asc := by
		by = func(a, b *mvccpb.KeyValue) int { return asc(b, a) }
	}
	slices.SortStableFunc(kvs, by)
}
