package etcdapi

import (
	"context"
	"regexp"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	"google.golang.org/protobuf/proto"

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

// dbSize is what the state takes in bytes: the keys with their history, which the quota is about, and the members.
// There are no free pages, so that all of it is in use.
func (s *Server) dbSize() int64 {
	n := s.cfg.Store.Size()
	for _, m := range s.cfg.Cluster.Members() {
		n += int64(proto.Size(protoMember(m)))
	}
	return n
}

func (m *maintenanceServer) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	c, st, size := m.s.cfg.Cluster, m.s.cfg.Store, m.s.dbSize()
	resp := &pb.StatusResponse{
		Header:           m.s.header(st.Revision()),
		Version:          version.Version,
		StorageVersion:   storageVersion,
		IsLearner:        c.Learner(),
		Leader:           c.Leader(),
		RaftIndex:        c.Index(),
		RaftTerm:         c.Term(),
		RaftAppliedIndex: c.AppliedIndex(),
		DbSize:           size,
		DbSizeInUse:      size,
		DbSizeQuota:      m.s.cfg.QuotaBytes,
		DowngradeInfo:    &pb.DowngradeInfo{},
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
	return &pb.DefragmentResponse{}, nil // without a header, as etcd's
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

// Downgrade refuses every version: an earlier release is installed as a later one
// is, one peer at a time, and is never asked for here.
func (m *maintenanceServer) Downgrade(_ context.Context, r *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	if r.Action == pb.DowngradeRequest_CANCEL {
		return nil, rpctypes.ErrGRPCNoInflightDowngrade
	}
	if !targetVersion.MatchString(r.Version) {
		return nil, rpctypes.ErrGRPCWrongDowngradeVersionFormat
	}
	return nil, rpctypes.ErrGRPCInvalidDowngradeTargetVersion
}

// targetVersion is how etcd writes the version of a cluster, with a patch or without.
var targetVersion = regexp.MustCompile(`^v?[0-9]+\.[0-9]+(\.[0-9]+)?$`)
