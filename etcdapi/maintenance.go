package etcdapi

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tripod-cluster/tripod/backup/etcddb"
)

// storageVersion is the version of etcd whose state the store keeps.
const storageVersion = etcddb.SchemaVersion

type maintenanceServer struct {
	s *Server
	pb.UnsafeMaintenanceServer
}

// alarmText is how etcd prints an alarm in a member's status.
func alarmText(a *pb.AlarmMember) string { return a.String() }

func (m *maintenanceServer) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	c, st := m.s.cfg.Cluster, m.s.cfg.Store
	resp := &pb.StatusResponse{
		Header:           m.s.header(st.Revision()),
		Version:          version.Version,
		StorageVersion:   storageVersion,
		IsLearner:        c.Learner(),
		Leader:           c.Leader(),
		RaftIndex:        c.Index(),
		RaftTerm:         c.Term(),
		RaftAppliedIndex: c.AppliedIndex(),
		DbSize:           c.DBSize(),
		DbSizeInUse:      st.Size(),
		DbSizeQuota:      m.s.cfg.QuotaBytes,
		DowngradeInfo:    &pb.DowngradeInfo{},
	}
	if resp.DbSize == 0 {
		resp.DbSize = resp.DbSizeInUse
	}
	if resp.Leader == 0 {
		resp.Errors = append(resp.Errors, rpctypes.ErrNoLeader.Error())
	}
	for _, a := range st.Alarms() {
		resp.Errors = append(resp.Errors, alarmText(a))
	}
	return resp, nil
}

func (m *maintenanceServer) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	msg, err := m.s.propose(ctx, &pb.InternalRaftRequest{Alarm: r})
	if err != nil {
		return nil, err
	}
	resp := msg.(*pb.AlarmResponse)
	resp.Header = m.s.fill(resp.Header)
	return resp, nil
}

func (m *maintenanceServer) Hash(context.Context, *pb.HashRequest) (*pb.HashResponse, error) {
	h, err := m.s.cfg.Store.Hash(0)
	if err != nil {
		return nil, rpcError(err)
	}
	return &pb.HashResponse{Header: m.s.header(h.Current), Hash: h.Hash}, nil
}

func (m *maintenanceServer) HashKV(_ context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	h, err := m.s.cfg.Store.Hash(r.Revision)
	if err != nil {
		return nil, rpcError(err)
	}
	return &pb.HashKVResponse{Header: m.s.header(h.Current), Hash: h.Hash, CompactRevision: h.CompactRevision, HashRevision: h.Revision}, nil
}

// Defragment succeeds: memory that compaction frees needs no defragmentation,
// and the log is cut by snapshots.
func (m *maintenanceServer) Defragment(context.Context, *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	return &pb.DefragmentResponse{Header: m.s.header(m.s.cfg.Store.Revision())}, nil
}

func (m *maintenanceServer) MoveLeader(ctx context.Context, r *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	c := m.s.cfg.Cluster
	if c.Leader() != c.Self() {
		return nil, rpctypes.ErrGRPCNotLeader
	}
	if m.s.cfg.Members == nil {
		return nil, errUseControld
	}
	err := m.s.wait(ctx, func(ctx context.Context) error { return m.s.cfg.Members.MoveLeader(ctx, r.TargetID) })
	if err != nil {
		return nil, err
	}
	return &pb.MoveLeaderResponse{Header: m.s.header(m.s.cfg.Store.Revision())}, nil
}

func (m *maintenanceServer) Downgrade(context.Context, *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	return nil, status.Error(codes.Unimplemented, "etcdserver: this cluster is not downgraded through its etcd API: install the earlier packages, one peer at a time")
}
