package store

import (
	"cmp"
	"maps"
	"slices"
	"sort"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
)

// model is the store written the slow way: it remembers every change ever
// made, and computes each answer by replaying them. Compaction only limits
// what may be asked.
type model struct {
	rev, compactRev int64
	history         []modelChange
	leases          map[int64]int64
}

type modelChange struct {
	rev        int64
	key, value string
	lease      int64
	del        bool
}

func newModel() *model {
	return &model{rev: 1, compactRev: -1, leases: map[int64]int64{}}
}

// clone returns a model that goes its own way.
func (m *model) clone() *model {
	c := *m
	c.history, c.leases = slices.Clone(m.history), maps.Clone(m.leases)
	return &c
}

// at returns what is live at revision rev.
func (m *model) at(rev int64) map[string]*mvccpb.KeyValue {
	return replay(m.history[:sort.Search(len(m.history), func(i int) bool { return m.history[i].rev > rev })])
}

func replay(history []modelChange) map[string]*mvccpb.KeyValue {
	kvs := map[string]*mvccpb.KeyValue{}
	for _, c := range history {
		if c.del {
			delete(kvs, c.key)
			continue
		}
		kv := &mvccpb.KeyValue{Key: []byte(c.key), Value: []byte(c.value), Lease: c.lease, ModRevision: c.rev, CreateRevision: c.rev, Version: 1}
		if old := kvs[c.key]; old != nil {
			kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		}
		kvs[c.key] = kv
	}
	return kvs
}

func modelIn(key, start, end string) bool {
	switch end {
	case "":
		return key == start
	case "\x00":
		return key >= start
	}
	return key >= start && key < end
}

func (m *model) inRange(kvs map[string]*mvccpb.KeyValue, start, end []byte) []*mvccpb.KeyValue {
	var out []*mvccpb.KeyValue
	for k, kv := range kvs {
		if modelIn(k, string(start), string(end)) {
			out = append(out, proto.Clone(kv).(*mvccpb.KeyValue))
		}
	}
	slices.SortFunc(out, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(string(a.Key), string(b.Key)) })
	return out
}

func (m *model) rangeAt(r *pb.RangeRequest, current int64) (*pb.RangeResponse, error) {
	rev := r.Revision
	if rev > current {
		return nil, rpctypes.ErrGRPCFutureRev
	}
	if rev > 0 && rev < m.compactRev {
		return nil, rpctypes.ErrGRPCCompacted
	}
	if rev == 0 {
		rev = current
	}
	kvs := m.inRange(m.at(rev), r.Key, r.RangeEnd)
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: current}, Count: int64(len(kvs))}
	if r.CountOnly {
		return resp, nil
	}
	kvs = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return r.MinModRevision != 0 && kv.ModRevision < r.MinModRevision ||
			r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision ||
			r.MinCreateRevision != 0 && kv.CreateRevision < r.MinCreateRevision ||
			r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision
	})
	if r.SortOrder != pb.RangeRequest_NONE {
		value := func(kv *mvccpb.KeyValue) int64 {
			switch r.SortTarget {
			case pb.RangeRequest_VERSION:
				return kv.Version
			case pb.RangeRequest_CREATE:
				return kv.CreateRevision
			case pb.RangeRequest_MOD:
				return kv.ModRevision
			}
			return 0
		}
		sort.SliceStable(kvs, func(i, j int) bool {
			a, b := kvs[i], kvs[j]
			if r.SortOrder == pb.RangeRequest_DESCEND {
				a, b = b, a
			}
			switch r.SortTarget {
			case pb.RangeRequest_KEY:
				return string(a.Key) < string(b.Key)
			case pb.RangeRequest_VALUE:
				return string(a.Value) < string(b.Value)
			}
			return value(a) < value(b)
		})
	}
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, resp.More = kvs[:r.Limit], true
	}
	if r.KeysOnly {
		for _, kv := range kvs {
			kv.Value = nil
			if r.SortTarget != pb.RangeRequest_VALUE {
				kv.Lease = 0
			}
		}
	}
	resp.Kvs = kvs
	return resp, nil
}

// apply is the model's Apply.
func (m *model) apply(r *pb.InternalRaftRequest) (proto.Message, error) {
	before := len(m.history)
	current := func() int64 {
		if len(m.history) > before {
			return m.rev + 1
		}
		return m.rev
	}
	finish := func() { m.rev = current() }

	checkPut := func(p *pb.PutRequest) error {
		if _, ok := m.leases[p.Lease]; p.Lease != 0 && !ok {
			return rpctypes.ErrGRPCLeaseNotFound
		}
		if (p.IgnoreValue || p.IgnoreLease) && m.at(m.rev)[string(p.Key)] == nil {
			return rpctypes.ErrGRPCKeyNotFound
		}
		return nil
	}
	put := func(p *pb.PutRequest) *pb.PutResponse {
		prev := m.at(current())[string(p.Key)]
		resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: m.rev + 1}}
		c := modelChange{rev: m.rev + 1, key: string(p.Key), value: string(p.Value), lease: p.Lease}
		if p.IgnoreValue {
			c.value = string(prev.GetValue())
		}
		if p.IgnoreLease {
			c.lease = prev.GetLease()
		}
		if p.PrevKv {
			resp.PrevKv = prev
		}
		m.history = append(m.history, c)
		return resp
	}
	del := func(d *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
		doomed := m.inRange(m.at(current()), d.Key, d.RangeEnd)
		resp := &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{}, Deleted: int64(len(doomed))}
		if d.PrevKv {
			resp.PrevKvs = doomed
		}
		for _, kv := range doomed {
			m.history = append(m.history, modelChange{rev: m.rev + 1, key: string(kv.Key), del: true})
		}
		resp.Header.Revision = current()
		return resp
	}

	var choose func(t *pb.TxnRequest) bool
	choose = func(t *pb.TxnRequest) bool {
		// Comparisons see the state before the request.
		for _, c := range t.Compare {
			kvs := m.inRange(m.at(m.rev), c.Key, c.RangeEnd)
			if len(kvs) == 0 {
				if c.Target == pb.Compare_VALUE || !modelCompare(c, &mvccpb.KeyValue{}) {
					return false
				}
			}
			for _, kv := range kvs {
				if !modelCompare(c, kv) {
					return false
				}
			}
		}
		return true
	}
	// decided remembers the outcomes in the order they are needed again.
	var decided []bool
	var check func(t *pb.TxnRequest) error
	check = func(t *pb.TxnRequest) error {
		ok := choose(t)
		decided = append(decided, ok)
		ops := t.Failure
		if ok {
			ops = t.Success
		}
		for _, op := range ops {
			var err error
			switch {
			case op.GetRequestRange() != nil:
				rev := op.GetRequestRange().Revision
				if rev > m.rev {
					err = rpctypes.ErrGRPCFutureRev
				} else if rev > 0 && rev < m.compactRev {
					err = rpctypes.ErrGRPCCompacted
				}
			case op.GetRequestPut() != nil:
				err = checkPut(op.GetRequestPut())
			case op.GetRequestTxn() != nil:
				err = check(op.GetRequestTxn())
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	var exec func(t *pb.TxnRequest) *pb.TxnResponse
	exec = func(t *pb.TxnRequest) *pb.TxnResponse {
		resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: decided[0]}
		decided = decided[1:]
		ops := t.Failure
		if resp.Succeeded {
			ops = t.Success
		}
		for _, op := range ops {
			out := &pb.ResponseOp{}
			switch {
			case op.GetRequestRange() != nil:
				rr, err := m.rangeAt(op.GetRequestRange(), current())
				if err != nil {
					panic(err)
				}
				out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: rr}
			case op.GetRequestPut() != nil:
				out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: put(op.GetRequestPut())}
			case op.GetRequestDeleteRange() != nil:
				out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: del(op.GetRequestDeleteRange())}
			case op.GetRequestTxn() != nil:
				nested := exec(op.GetRequestTxn())
				nested.Header = &pb.ResponseHeader{} // as in etcd
				out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: nested}
			}
			resp.Responses = append(resp.Responses, out)
		}
		resp.Header.Revision = current()
		return resp
	}

	defer finish()
	switch {
	case r.Put != nil:
		if err := checkPut(r.Put); err != nil {
			return nil, err
		}
		return put(r.Put), nil
	case r.DeleteRange != nil:
		return del(r.DeleteRange), nil
	case r.Txn != nil:
		if err := check(r.Txn); err != nil {
			return nil, err
		}
		return exec(r.Txn), nil
	case r.Compaction != nil:
		if r.Compaction.Revision <= m.compactRev {
			return nil, rpctypes.ErrGRPCCompacted
		}
		if r.Compaction.Revision > m.rev {
			return nil, rpctypes.ErrGRPCFutureRev
		}
		m.compactRev = r.Compaction.Revision
		return &pb.CompactionResponse{Header: &pb.ResponseHeader{Revision: m.rev}}, nil
	case r.LeaseGrant != nil:
		if _, ok := m.leases[r.LeaseGrant.ID]; ok {
			return nil, rpctypes.ErrGRPCLeaseExist
		}
		ttl := max(r.LeaseGrant.TTL, 2)
		m.leases[r.LeaseGrant.ID] = ttl
		return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{Revision: m.rev}, ID: r.LeaseGrant.ID, TTL: ttl}, nil
	case r.LeaseRevoke != nil:
		id := r.LeaseRevoke.ID
		if _, ok := m.leases[id]; !ok {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
		delete(m.leases, id)
		for _, kv := range m.inRange(m.at(m.rev), []byte{0}, []byte{0}) {
			if kv.Lease == id {
				m.history = append(m.history, modelChange{rev: m.rev + 1, key: string(kv.Key), del: true})
			}
		}
		return &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{Revision: current()}}, nil
	}
	panic("the model does not know this request")
}

func modelCompare(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var a, b any
	switch c.Target {
	case pb.Compare_VALUE:
		a, b = string(kv.Value), string(c.GetValue())
	case pb.Compare_CREATE:
		a, b = kv.CreateRevision, c.GetCreateRevision()
	case pb.Compare_MOD:
		a, b = kv.ModRevision, c.GetModRevision()
	case pb.Compare_VERSION:
		a, b = kv.Version, c.GetVersion()
	case pb.Compare_LEASE:
		a, b = kv.Lease, c.GetLease()
	}
	less := func(x, y any) bool {
		if s, ok := x.(string); ok {
			return s < y.(string)
		}
		return x.(int64) < y.(int64)
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return a == b
	case pb.Compare_NOT_EQUAL:
		return a != b
	case pb.Compare_GREATER:
		return less(b, a)
	}
	return less(a, b)
}

// events returns what a watch of [start, end) sees in revisions first to last.
func (m *model) events(o WatchOptions, first, last int64) []*mvccpb.Event {
	var out []*mvccpb.Event
	for i, c := range m.history {
		if c.rev < first || c.rev > last || !modelIn(c.key, string(o.Key), string(o.RangeEnd)) {
			continue
		}
		if c.del && o.NoDelete || !c.del && o.NoPut {
			continue
		}
		ev := &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(c.key), ModRevision: c.rev}}
		if !c.del {
			ev.Type = mvccpb.Event_PUT
			ev.Kv = replay(m.history[:i+1])[c.key]
		}
		if created := ev.Kv.CreateRevision == c.rev; o.PrevKV && !created && c.rev-1 >= m.compactRev {
			ev.PrevKv = m.at(c.rev - 1)[c.key]
		}
		out = append(out, ev)
	}
	return out
}
