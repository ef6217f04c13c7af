package etcdapi

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/tripod-cluster/tripod/store"
)

// sessionTTL is the life of a lease that is made for a lock or a candidate who
// brought none, in seconds; that of etcd's client.
const sessionTTL = 60

// queue is those who wait for one name: keys under its prefix, each with the
// lease of its owner, in the order of their creation. The first has the lock, or
// leads. The keys are those of etcd's concurrency package, so that its users and
// those of the lock and election services wait in one queue.
//
// Everything is done in the name of the caller of the context.
type queue struct {
	s      *Server
	kv     *kvServer
	prefix string
}

func (s *Server) queue(name []byte) *queue {
	return &queue{s: s, kv: &kvServer{s: s}, prefix: string(name) + "/"}
}

// place is one key of a queue.
type place struct {
	key     []byte
	created int64 // revision
	lease   int64
	value   []byte
	header  *pb.ResponseHeader
	first   bool // there was nobody before it
}

func rangeOf(op *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: op}}
}

func putOf(op *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: op}}
}

// createdAt compares the create revision of key; 0 is a key that is not there.
func createdAt(key []byte, revision int64) []*pb.Compare {
	return []*pb.Compare{{Key: key, Target: pb.Compare_CREATE, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: revision}}}
}

func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	end[len(end)-1]++ // the prefix ends with a slash
	return end
}

// byCreation reads the one key of the queue that comes first in order, among
// those created up to a revision; 0 is no limit.
func (q *queue) byCreation(order pb.RangeRequest_SortOrder, upTo int64) *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(q.prefix), RangeEnd: prefixEnd(q.prefix), Limit: 1,
		SortOrder: order, SortTarget: pb.RangeRequest_CREATE, MaxCreateRevision: upTo}
}

// enter takes the place of a lease, at the end unless it is in the queue already;
// lease 0 makes one.
func (q *queue) enter(ctx context.Context, lease int64, value []byte) (place, error) {
	if lease == 0 {
		l := leaseServer{s: q.s}
		if err := q.s.requireUser(ctx); err != nil {
			return place{}, err
		}
		granted, err := l.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: sessionTTL})
		if err != nil {
			return place{}, err
		}
		lease = granted.ID
	}
	p := place{key: fmt.Appendf(nil, "%s%x", q.prefix, lease), lease: lease, value: value}
	first := rangeOf(q.byCreation(pb.RangeRequest_ASCEND, 0))
	resp, err := q.kv.Txn(ctx, &pb.TxnRequest{
		Compare: createdAt(p.key, 0),
		Success: []*pb.RequestOp{putOf(&pb.PutRequest{Key: p.key, Value: value, Lease: lease}), first},
		Failure: []*pb.RequestOp{rangeOf(&pb.RangeRequest{Key: p.key}), first},
	})
	if err != nil {
		return place{}, err
	}
	p.created, p.header = resp.Header.Revision, resp.Header
	if !resp.Succeeded {
		own := resp.Responses[0].GetResponseRange().Kvs[0]
		p.created, p.value = own.CreateRevision, own.Value
	}
	kvs := resp.Responses[1].GetResponseRange().Kvs
	p.first = len(kvs) == 0 || kvs[0].CreateRevision == p.created
	return p, nil
}

// leave gives a place up. It is also for a caller that is gone: what it began must
// not stand in the way of the others.
func (q *queue) leave(ctx context.Context, p place) {
	if _, err := q.kv.DeleteRange(context.WithoutCancel(ctx), &pb.DeleteRangeRequest{Key: p.key}); err != nil {
		q.s.log.Debug("a place in a queue is left to its lease", "key", string(p.key), "error", err)
	}
}

// turn returns when nobody who came before p is left.
func (q *queue) turn(ctx context.Context, p place) error {
	for {
		resp, err := q.kv.Range(ctx, q.byCreation(pb.RangeRequest_DESCEND, p.created-1))
		if err != nil || len(resp.Kvs) == 0 {
			return err
		}
		gone := func(e *mvccpb.Event) (bool, error) { return e.Type == mvccpb.Event_DELETE, nil }
		if err := q.s.watchUntil(ctx, store.WatchOptions{Key: resp.Kvs[0].Key, StartRevision: resp.Header.Revision + 1}, gone); err != nil {
			return err
		}
	}
}

// watchUntil gives done each event until it says that it has seen enough. The
// caller's right to read was asked for by the read before.
func (s *Server) watchUntil(ctx context.Context, o store.WatchOptions, done func(*mvccpb.Event) (bool, error)) error {
	w, err := s.cfg.Store.Watch(o)
	if err != nil {
		return rpcError(err)
	}
	defer w.Close()
	for {
		select {
		case <-w.Ready():
		case <-ctx.Done():
			return rpcError(streamEnd(ctx))
		case <-s.stop:
			return rpctypes.ErrGRPCStopped
		}
		b, err := w.Next()
		if err != nil {
			return rpcError(err)
		}
		for _, e := range b.Events {
			if end, err := done(e); end || err != nil {
				return err
			}
		}
	}
}
