package linearizability

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/tests/v3/robustness/model"
)

// modelRequest is a replicated request in the terms of etcd's model; nil for one that
// changes no keys, leases or history.
func modelRequest(r *pb.InternalRaftRequest) (*model.EtcdRequest, error) {
	switch {
	case r.Put != nil:
		return writes(model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{
			Key: string(r.Put.Key), Value: model.ToValueOrHash(string(r.Put.Value)), LeaseID: r.Put.Lease,
		}}), nil
	case r.DeleteRange != nil:
		if len(r.DeleteRange.RangeEnd) != 0 {
			return nil, fmt.Errorf("the model has no delete of a range: %v", r.DeleteRange)
		}
		return writes(model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: string(r.DeleteRange.Key)}}), nil
	case r.Txn != nil:
		return modelTxn(r.Txn)
	case r.Compaction != nil:
		return &model.EtcdRequest{Type: model.Compact, Compact: &model.CompactRequest{Revision: r.Compaction.Revision}}, nil
	case r.LeaseGrant != nil:
		return &model.EtcdRequest{Type: model.LeaseGrant, LeaseGrant: &model.LeaseGrantRequest{LeaseID: r.LeaseGrant.ID}}, nil
	case r.LeaseRevoke != nil:
		return &model.EtcdRequest{Type: model.LeaseRevoke, LeaseRevoke: &model.LeaseRevokeRequest{LeaseID: r.LeaseRevoke.ID}}, nil
	}
	return nil, nil
}

func writes(ops ...model.EtcdOperation) *model.EtcdRequest {
	return &model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{OperationsOnSuccess: ops}}
}

func modelTxn(t *pb.TxnRequest) (*model.EtcdRequest, error) {
	m := &model.TxnRequest{Conditions: []model.EtcdCondition{}, OperationsOnSuccess: []model.EtcdOperation{}, OperationsOnFailure: []model.EtcdOperation{}}
	for _, c := range t.Compare {
		cond := model.EtcdCondition{Key: string(c.Key)}
		switch {
		case c.Result != pb.Compare_EQUAL || len(c.RangeEnd) != 0:
			return nil, fmt.Errorf("the model has no comparison %v", c)
		case c.Target == pb.Compare_VERSION:
			cond.ExpectedVersion = c.GetVersion()
		case c.Target == pb.Compare_MOD:
			cond.ExpectedRevision = c.GetModRevision()
		default:
			return nil, fmt.Errorf("the model has no comparison %v", c)
		}
		m.Conditions = append(m.Conditions, cond)
	}
	for _, side := range []struct {
		from []*pb.RequestOp
		to   *[]model.EtcdOperation
	}{{t.Success, &m.OperationsOnSuccess}, {t.Failure, &m.OperationsOnFailure}} {
		for _, op := range side.from {
			o, err := modelOp(op)
			if err != nil {
				return nil, err
			}
			*side.to = append(*side.to, o)
		}
	}
	return &model.EtcdRequest{Type: model.Txn, Txn: m}, nil
}

func modelOp(op *pb.RequestOp) (model.EtcdOperation, error) {
	switch {
	case op.GetRequestRange() != nil:
		r := op.GetRequestRange()
		return model.EtcdOperation{Type: model.RangeOperation, Range: model.RangeOptions{
			Start: string(r.Key), End: string(r.RangeEnd), Limit: r.Limit, KeysOnly: r.KeysOnly,
		}}, nil
	case op.GetRequestPut() != nil:
		p := op.GetRequestPut()
		return model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{
			Key: string(p.Key), Value: model.ToValueOrHash(string(p.Value)), LeaseID: p.Lease,
		}}, nil
	case op.GetRequestDeleteRange() != nil:
		d := op.GetRequestDeleteRange()
		if len(d.RangeEnd) != 0 {
			return model.EtcdOperation{}, fmt.Errorf("the model has no delete of a range: %v", d)
		}
		return model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: string(d.Key)}}, nil
	}
	return model.EtcdOperation{}, fmt.Errorf("the model has no operation %v", op)
}
