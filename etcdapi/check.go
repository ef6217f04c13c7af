package etcdapi

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func checkRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// checkTxn checks everything about r that does not need the store.
func checkTxn(r *pb.TxnRequest, maxOps int) error {
	if err := checkTxnOps(r, maxOps); err != nil {
		return err
	}
	// After the limit on operations, which bounds the work.
	if _, err := checkKeys(r.Success); err != nil {
		return err
	}
	_, err := checkKeys(r.Failure)
	return err
}

func checkTxnOps(r *pb.TxnRequest, maxOps int) error {
	n := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if n > maxOps {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.GetCompare() {
		if len(c.GetKey()) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range ops {
			if err := checkOp(op, maxOps-n); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, maxOps int) error {
	switch {
	case op.GetRequestRange() != nil:
		return checkRange(op.GetRequestRange())
	case op.GetRequestPut() != nil:
		return checkPut(op.GetRequestPut())
	case op.GetRequestDeleteRange() != nil:
		return checkDelete(op.GetRequestDeleteRange())
	case op.GetRequestTxn() != nil:
		return checkTxnOps(op.GetRequestTxn(), maxOps)
	}
	return rpctypes.ErrGRPCKeyNotFound // etcd's answer to an empty operation
}

// touched is what a list of operations puts and deletes.
type touched struct {
	puts map[string]bool
	dels spans
}

// checkKeys refuses operations of which two may change one key: a key put
// twice, or put and deleted. The two branches of a nested transaction exclude
// each other, so both may put a key.
func checkKeys(ops []*pb.RequestOp) (touched, error) {
	t := touched{puts: map[string]bool{}}
	for _, op := range ops {
		if d := op.GetRequestDeleteRange(); d != nil {
			t.dels = append(t.dels, newSpan(d.Key, d.RangeEnd))
		}
	}
	t.dels = t.dels.merged()
	for _, op := range ops {
		n := op.GetRequestTxn()
		if n == nil {
			continue
		}
		then, err := checkKeys(n.Success)
		if err != nil {
			return t, err
		}
		otherwise, err := checkKeys(n.Failure)
		if err != nil {
			return t, err
		}
		for k := range then.puts {
			if t.puts[k] || t.dels.contain(k) {
				return t, rpctypes.ErrGRPCDuplicateKey
			}
		}
		for k := range otherwise.puts {
			if t.puts[k] || t.dels.contain(k) {
				return t, rpctypes.ErrGRPCDuplicateKey
			}
		}
		for _, puts := range []map[string]bool{then.puts, otherwise.puts} {
			for k := range puts {
				t.puts[k] = true
			}
		}
		t.dels = slices.Concat(t.dels, then.dels, otherwise.dels).merged()
	}
	for _, op := range ops {
		p := op.GetRequestPut()
		if p == nil {
			continue
		}
		k := string(p.Key)
		if t.puts[k] || t.dels.contain(k) {
			return t, rpctypes.ErrGRPCDuplicateKey
		}
		t.puts[k] = true
	}
	return t, nil
}

// span is [key, end), or with toEnd everything from key on.
type span struct {
	key, end string
	toEnd    bool
}

func newSpan(key, rangeEnd []byte) span {
	switch {
	case len(rangeEnd) == 0:
		return span{key: string(key), end: string(key) + "\x00"}
	case len(rangeEnd) == 1 && rangeEnd[0] == 0:
		return span{key: string(key), toEnd: true}
	}
	return span{key: string(key), end: string(rangeEnd)}
}

// spans, when merged, are ascending and do not touch.
type spans []span

func (s spans) merged() spans {
	slices.SortFunc(s, func(a, b span) int {
		if a.key < b.key {
			return -1
		}
		if a.key > b.key {
			return 1
		}
		return 0
	})
	out := s[:0]
	for _, x := range s {
		if !x.toEnd && x.key >= x.end {
			continue // empty
		}
		if n := len(out); n > 0 && (out[n-1].toEnd || x.key <= out[n-1].end) {
			if x.toEnd {
				out[n-1].toEnd = true
			} else if x.end > out[n-1].end {
				out[n-1].end = x.end
			}
			continue
		}
		out = append(out, x)
	}
	return out
}

func (s spans) contain(key string) bool {
	i, found := slices.BinarySearchFunc(s, key, func(x span, key string) int {
		if x.key < key {
			return -1
		}
		if x.key > key {
			return 1
		}
		return 0
	})
	if found {
		return true
	}
	return i > 0 && (s[i-1].toEnd || key < s[i-1].end)
}
