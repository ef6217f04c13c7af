package etcdapi

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errUseControld tells a client that changes members where to go.
var errUseControld = status.Error(codes.Unimplemented, "etcdserver: members are managed by controld: run 'controld token' on a peer and 'controld join' on the new one, or 'controld member remove'")

type clusterServer struct {
	s *Server
	pb.UnsafeClusterServer
}

func protoMember(m Member) *pb.Member {
	return &pb.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, IsLearner: m.Learner}
}

func (c *clusterServer) members() []*pb.Member {
	var out []*pb.Member
	for _, m := range c.s.cfg.Cluster.Members() {
		out = append(out, protoMember(m))
	}
	return out
}

// header of the cluster service has no revision, as etcd's.
func (c *clusterServer) header() *pb.ResponseHeader { return c.s.header(0) }

func (c *clusterServer) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if r.Linearizable {
		if err := c.s.readIndex(ctx); err != nil {
			return nil, err
		}
	}
	return &pb.MemberListResponse{Header: c.header(), Members: c.members()}, nil
}

// change runs f where members can be changed through this server.
func (c *clusterServer) change(ctx context.Context, f func(ctx context.Context, m MemberChanger) error) error {
	if c.s.cfg.Members == nil {
		return errUseControld
	}
	return c.s.wait(ctx, func(ctx context.Context) error { return f(ctx, c.s.cfg.Members) })
}

func (c *clusterServer) MemberAdd(ctx context.Context, r *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	var added Member
	err := c.change(ctx, func(ctx context.Context, m MemberChanger) (err error) {
		added, err = m.AddMember(ctx, r.PeerURLs, r.IsLearner)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &pb.MemberAddResponse{Header: c.header(), Member: protoMember(added), Members: c.members()}, nil
}

func (c *clusterServer) MemberRemove(ctx context.Context, r *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	err := c.change(ctx, func(ctx context.Context, m MemberChanger) error { return m.RemoveMember(ctx, r.ID) })
	if err != nil {
		return nil, err
	}
	return &pb.MemberRemoveResponse{Header: c.header(), Members: c.members()}, nil
}

func (c *clusterServer) MemberUpdate(ctx context.Context, r *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	err := c.change(ctx, func(ctx context.Context, m MemberChanger) error { return m.UpdateMember(ctx, r.ID, r.PeerURLs) })
	if err != nil {
		return nil, err
	}
	return &pb.MemberUpdateResponse{Header: c.header(), Members: c.members()}, nil
}

func (c *clusterServer) MemberPromote(ctx context.Context, r *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	err := c.change(ctx, func(ctx context.Context, m MemberChanger) error { return m.PromoteMember(ctx, r.ID) })
	if err != nil {
		return nil, err
	}
	return &pb.MemberPromoteResponse{Header: c.header(), Members: c.members()}, nil
}
