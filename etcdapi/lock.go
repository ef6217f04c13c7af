package etcdapi

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errSessionExpired has the text of etcd's client, which the service of etcd is
// made from.
var errSessionExpired = status.Error(codes.Unknown, "mutex: session is expired")

type lockServer struct {
	s *Server
	v3lockpb.UnsafeLockServer
}

// Lock returns when the caller's lease has the lock. When the caller goes before
// that, its place in the queue goes too.
func (l *lockServer) Lock(ctx context.Context, r *v3lockpb.LockRequest) (*v3lockpb.LockResponse, error) {
	q := l.s.queue(r.Name)
	p, err := q.enter(ctx, r.Lease, nil)
	if err != nil {
		return nil, err
	}
	if p.first {
		return &v3lockpb.LockResponse{Header: p.header, Key: p.key}, nil
	}
	if err := q.turn(ctx, p); err != nil {
		q.leave(ctx, p)
		return nil, err
	}
	own, err := q.kv.Range(ctx, &pb.RangeRequest{Key: p.key})
	if err != nil {
		q.leave(ctx, p)
		return nil, err
	}
	if len(own.Kvs) == 0 {
		return nil, errSessionExpired
	}
	return &v3lockpb.LockResponse{Header: own.Header, Key: p.key}, nil
}

func (l *lockServer) Unlock(ctx context.Context, r *v3lockpb.UnlockRequest) (*v3lockpb.UnlockResponse, error) {
	kv := kvServer{s: l.s}
	resp, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: r.Key})
	if err != nil {
		return nil, err
	}
	return &v3lockpb.UnlockResponse{Header: resp.Header}, nil
}
