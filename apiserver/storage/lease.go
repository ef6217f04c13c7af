package storage

import (
	"context"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// leaseClient is etcd's lease service without a server: the leaser's owner
// keeps the time, clientv3 keeps its loops.
type leaseClient struct{ b *Backend }

var _ pb.LeaseClient = leaseClient{}

func (c leaseClient) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return leased(ctx, c.b, func(ctx context.Context) (*pb.LeaseGrantResponse, error) {
		return c.b.leaser.Grant(ctx, r.ID, r.TTL)
	})
}

func (c leaseClient) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return leased(ctx, c.b, func(ctx context.Context) (*pb.LeaseRevokeResponse, error) {
		return c.b.leaser.Revoke(ctx, r.ID)
	})
}

func (c leaseClient) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	return leased(ctx, c.b, func(ctx context.Context) (*pb.LeaseTimeToLiveResponse, error) {
		granted, left, err := c.b.leaser.TimeToLive(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		resp := &pb.LeaseTimeToLiveResponse{Header: c.b.header(), ID: r.ID, TTL: left, GrantedTTL: granted}
		if r.Keys {
			resp.Keys = c.b.store.LeaseKeys(r.ID)
		}
		return resp, nil
	})
}

func (c leaseClient) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest, _ ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	if err := c.b.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &pb.LeaseLeasesResponse{Header: c.b.header()}
	for _, l := range c.b.store.Leases() {
		resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: l.ID})
	}
	return resp, nil
}

// LeaseKeepAlive renews the lease of each request that is sent, in order.
func (c leaseClient) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], error) {
	return &keepAlives{ctx: ctx, b: c.b, sent: make(chan int64, 16), closed: make(chan struct{})}, nil
}

// leased bounds one call and gives its errors as etcd's client would. Nothing
// is tried again: a lease that was granted twice would be one too many.
func leased[T any](parent context.Context, b *Backend, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := b.bound(parent)
	defer cancel()
	resp, err := f(ctx)
	if err != nil {
		return resp, b.refusal(parent, err)
	}
	return resp, nil
}

func (b *Backend) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{Revision: b.store.Revision()}
}

// keepAlives is a stream of renewals: Recv does the work of what Send asked.
// Send does not wait for it, as a network would not.
type keepAlives struct {
	grpc.ClientStream
	ctx    context.Context
	b      *Backend
	sent   chan int64
	closed chan struct{} // by CloseSend, which clientv3 calls once
}

func (s *keepAlives) Context() context.Context { return s.ctx }

func (s *keepAlives) Send(r *pb.LeaseKeepAliveRequest) error {
	select {
	case s.sent <- r.ID:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *keepAlives) CloseSend() error {
	close(s.closed)
	return nil
}

func (s *keepAlives) Recv() (*pb.LeaseKeepAliveResponse, error) {
	var id int64
	select {
	case id = <-s.sent:
	case <-s.closed:
		return nil, io.EOF
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
	ttl, err := leased(s.ctx, s.b, func(ctx context.Context) (int64, error) {
		return s.b.leaser.KeepAlive(ctx, id)
	})
	if err != nil && rpctypes.Error(err) != rpctypes.ErrLeaseNotFound {
		return nil, err
	}
	// etcd tells of a lease that is gone by a TTL of zero.
	return &pb.LeaseKeepAliveResponse{Header: s.b.header(), ID: id, TTL: ttl}, nil
}
