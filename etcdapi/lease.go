package etcdapi

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/tripod-cluster/tripod/store"
)

type leaseServer struct {
	s *Server
	pb.UnsafeLeaseServer
}

func (l *leaseServer) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	chosen := r.ID != 0
	for {
		if !chosen {
			r.ID = rand.Int64N(1<<63-1) + 1
		}
		m, err := l.s.propose(ctx, &pb.InternalRaftRequest{LeaseGrant: r})
		if !chosen && errors.Is(err, rpctypes.ErrGRPCLeaseExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		resp := m.(*pb.LeaseGrantResponse)
		resp.Header = l.s.fill(resp.Header)
		return resp, nil
	}
}

func (l *leaseServer) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	m, err := l.s.propose(ctx, &pb.InternalRaftRequest{LeaseRevoke: r})
	if err != nil {
		return nil, err
	}
	resp := m.(*pb.LeaseRevokeResponse)
	resp.Header = l.s.fill(resp.Header)
	return resp, nil
}

func (l *leaseServer) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	resp := &pb.LeaseTimeToLiveResponse{ID: r.ID}
	if !r.Keys {
		return l.timeToLive(ctx, r, resp)
	}
	permit := func(who store.AuthInfo) error { return l.s.cfg.Store.PermitLeaseRead(who, r.ID) }
	err := l.s.permitted(ctx, permit, func() (err error) {
		resp, err = l.timeToLive(ctx, r, resp)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (l *leaseServer) timeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest, resp *pb.LeaseTimeToLiveResponse) (*pb.LeaseTimeToLiveResponse, error) {
	err := l.s.wait(ctx, func(ctx context.Context) (err error) {
		resp.GrantedTTL, resp.TTL, err = l.s.cfg.Leaser.TimeToLive(ctx, r.ID)
		if err == nil && r.Keys {
			err = l.s.cfg.Proposer.ReadIndex(ctx)
		}
		return err
	})
	switch {
	case leaseGone(err):
		resp.GrantedTTL, resp.TTL = 0, -1
	case err != nil:
		return nil, err
	case r.Keys:
		resp.Keys = l.s.cfg.Store.LeaseKeys(r.ID)
	}
	resp.Header = l.s.header(l.s.cfg.Store.Revision())
	return resp, nil
}

// leaseGone tells whether an error of wait says that a lease does not exist.
func leaseGone(err error) bool { return errors.Is(err, rpctypes.ErrGRPCLeaseNotFound) }

func (l *leaseServer) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if err := l.s.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &pb.LeaseLeasesResponse{Header: l.s.header(l.s.cfg.Store.Revision())}
	leases := l.s.cfg.Store.Leases()
	permit := func(who store.AuthInfo) error {
		for _, lease := range leases {
			if err := l.s.cfg.Store.PermitLeaseRead(who, lease.ID); err != nil {
				return err
			}
		}
		return nil
	}
	err := l.s.permitted(ctx, permit, func() error {
		for _, lease := range leases {
			resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: lease.ID})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// LeaseKeepAlive answers each request in turn; TTL 0 says that the lease is
// gone.
func (l *leaseServer) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	done := make(chan error, 1)
	go func() { done <- l.keepAlive(stream) }()
	select {
	case err := <-done:
		return err
	case <-l.s.stop:
		return rpctypes.ErrGRPCStopped
	case <-stream.Context().Done():
		// Recv may block on, when the context that ended is not the stream's own.
		return streamEnd(stream.Context())
	}
}

func (l *leaseServer) keepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		// The revision is taken before the lease is renewed: a client must
		// not hear of a renewal at a revision at which it had ended.
		resp := &pb.LeaseKeepAliveResponse{Header: l.s.header(l.s.cfg.Store.Revision()), ID: r.ID}
		// Authentication may be enabled while a stream is open.
		if err := l.s.requireUser(stream.Context()); err != nil {
			return err
		}
		permit := func(who store.AuthInfo) error { return l.s.cfg.Store.PermitLeaseWrite(who, r.ID) }
		err = l.s.permitted(stream.Context(), permit, func() error {
			return l.s.wait(stream.Context(), func(ctx context.Context) (err error) {
				resp.TTL, err = l.s.cfg.Leaser.KeepAlive(ctx, r.ID)
				return err
			})
		})
		if leaseGone(err) {
			resp.TTL = 0
		} else if err != nil {
			return err
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}
