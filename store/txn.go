package store

import (
	"bytes"
	"cmp"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// checkPut refuses a put that cannot be made in the state before the request.
func (st *state) checkPut(p *pb.PutRequest) error {
	if len(p.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if p.Lease != 0 {
		if _, ok := st.leases.Get(p.Lease); !ok {
			return rpctypes.ErrGRPCLeaseNotFound
		}
	}
	if (p.IgnoreValue || p.IgnoreLease) && st.get(p.Key, st.rev) == nil {
		return rpctypes.ErrGRPCKeyNotFound
	}
	return nil
}

// put makes a put that checkPut has passed.
func (t *tx) execPut(p *pb.PutRequest) *pb.PutResponse {
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{}}
	value, lease := p.Value, p.Lease
	if p.IgnoreValue || p.IgnoreLease || p.PrevKv {
		prev := t.st.get(p.Key, t.rev())
		if p.IgnoreValue {
			value = prev.GetValue()
		}
		if p.IgnoreLease {
			lease = prev.GetLease()
		}
		if p.PrevKv {
			resp.PrevKv = prev
		}
	}
	resp.Header.Revision = t.put(p.Key, value, lease)
	return resp
}

func (t *tx) execDelete(d *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	resp := &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{}}
	sp := newSpan(d.Key, d.RangeEnd)
	if d.PrevKv {
		t.st.scan(sp, t.rev(), func(kv *mvccpb.KeyValue) bool {
			resp.PrevKvs = append(resp.PrevKvs, kv)
			return true
		})
	}
	resp.Deleted, resp.Header.Revision = t.deleteRange(sp)
	return resp
}

// plan is a transaction whose comparisons are decided. All of them, those of
// nested transactions too, look at the state before the first write.
type plan struct {
	succeeded bool
	ops       []*pb.RequestOp
	nested    []*plan // one for each nested transaction of ops, in order
}

// planTxn decides and checks r; an error means that nothing may be executed.
func (st *state) planTxn(r *pb.TxnRequest) (*plan, error) {
	p := &plan{succeeded: true, ops: r.Success}
	for _, c := range r.Compare {
		if !st.compare(c) {
			p.succeeded, p.ops = false, r.Failure
			break
		}
	}
	for _, op := range p.ops {
		var err error
		switch {
		case op.GetRequestRange() != nil:
			rr := op.GetRequestRange()
			if err = st.checkReadRevision(rr.Revision, st.rev); err == nil && len(rr.Key) == 0 {
				err = rpctypes.ErrGRPCEmptyKey
			}
		case op.GetRequestPut() != nil:
			err = st.checkPut(op.GetRequestPut())
		case op.GetRequestDeleteRange() != nil:
			if len(op.GetRequestDeleteRange().Key) == 0 {
				err = rpctypes.ErrGRPCEmptyKey
			}
		case op.GetRequestTxn() != nil:
			var n *plan
			n, err = st.planTxn(op.GetRequestTxn())
			p.nested = append(p.nested, n)
		default:
			err = rpctypes.ErrGRPCKeyNotFound // what etcd answers to an empty operation
		}
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// execTxn executes p. Reads see the writes before them.
func (t *tx) execTxn(p *plan) (*pb.TxnResponse, error) {
	resp := &pb.TxnResponse{
		Header:    &pb.ResponseHeader{},
		Succeeded: p.succeeded,
		Responses: make([]*pb.ResponseOp, len(p.ops)),
	}
	nested := 0
	for i, op := range p.ops {
		out := &pb.ResponseOp{}
		switch v := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			r, err := t.st.execRange(v.RequestRange, t.rev())
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: r}
		case *pb.RequestOp_RequestPut:
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: t.execPut(v.RequestPut)}
		case *pb.RequestOp_RequestDeleteRange:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: t.execDelete(v.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			r, err := t.execTxn(p.nested[nested])
			if err != nil {
				return nil, err
			}
			nested++
			r.Header.Revision = 0 // etcd gives only the outermost one
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: r}
		}
		resp.Responses[i] = out
	}
	resp.Header.Revision = t.rev()
	return resp, nil
}

// compare tells whether c holds for all keys it names. For a range without
// keys it is asked of a key that does not exist, whose value equals nothing.
func (st *state) compare(c *pb.Compare) bool {
	holds, found := true, false
	st.scan(newSpan(c.Key, c.RangeEnd), st.rev, func(kv *mvccpb.KeyValue) bool {
		found = true
		holds = compareOne(c, kv)
		return holds
	})
	if !found {
		return c.Target != pb.Compare_VALUE && compareOne(c, &mvccpb.KeyValue{})
	}
	return holds
}

func compareOne(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var d int
	switch c.Target {
	case pb.Compare_VALUE:
		d = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_CREATE:
		d = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		d = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		d = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		d = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return d == 0
	case pb.Compare_NOT_EQUAL:
		return d != 0
	case pb.Compare_GREATER:
		return d > 0
	case pb.Compare_LESS:
		return d < 0
	}
	return true
}

// readOnly tells whether no branch of r can write.
func readOnly(r *pb.TxnRequest) bool {
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if n := op.GetRequestTxn(); n != nil {
				if !readOnly(n) {
					return false
				}
			} else if op.GetRequestRange() == nil {
				return false
			}
		}
	}
	return true
}

// puts tells whether some branch of r can put.
func puts(r *pb.TxnRequest) bool {
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if op.GetRequestPut() != nil {
				return true
			}
			if n := op.GetRequestTxn(); n != nil && puts(n) {
				return true
			}
		}
	}
	return false
}
