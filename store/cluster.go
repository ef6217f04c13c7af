package store

import (
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
)

// alarm is an active alarm of one member.
type alarm struct {
	kind   pb.AlarmType
	member uint64
}

func compareAlarms(a, b alarm) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.member, b.member))
}

func (st *state) alarmed(kind pb.AlarmType) bool {
	return slices.ContainsFunc(st.alarms, func(a alarm) bool { return a.kind == kind })
}

// Alarms returns the active alarms, ordered by kind and member.
func (s *Store) Alarms() []*pb.AlarmMember { return s.view().listAlarms(pb.AlarmType_NONE) }

// listAlarms lists one kind, or with NONE all.
func (st *state) listAlarms(kind pb.AlarmType) []*pb.AlarmMember {
	var out []*pb.AlarmMember
	for _, a := range st.alarms {
		if kind == pb.AlarmType_NONE || a.kind == kind {
			out = append(out, &pb.AlarmMember{MemberID: a.member, Alarm: a.kind})
		}
	}
	return out
}

func (s *Store) applyAlarm(r *pb.AlarmRequest) *pb.AlarmResponse {
	st := s.cur
	resp := &pb.AlarmResponse{Header: &pb.ResponseHeader{Revision: st.rev}}
	a := alarm{kind: r.Alarm, member: r.MemberID}
	i, found := slices.BinarySearchFunc(st.alarms, a, compareAlarms)
	switch r.Action {
	case pb.AlarmRequest_GET:
		resp.Alarms = st.listAlarms(r.Alarm)
		return resp
	case pb.AlarmRequest_ACTIVATE:
		if a.kind == pb.AlarmType_NONE {
			return resp
		}
		if !found {
			st.alarms = slices.Insert(slices.Clone(st.alarms), i, a)
		}
	case pb.AlarmRequest_DEACTIVATE:
		if !found {
			return resp
		}
		st.alarms = slices.Delete(slices.Clone(st.alarms), i, i+1)
	default:
		return resp
	}
	resp.Alarms = []*pb.AlarmMember{{MemberID: a.member, Alarm: a.kind}}
	return resp
}

// Member is what a member of the cluster tells about itself.
type Member struct {
	ID         uint64
	Name       string
	ClientURLs []string
}

func compareMember(m Member, id uint64) int { return cmp.Compare(m.ID, id) }

// Members returns what the members have told, ordered by ID. It may name
// members that have left. Do not change it.
func (s *Store) Members() []Member { return s.view().members }

// ClusterVersion returns the version that was last set for the whole cluster;
// empty when none was.
func (s *Store) ClusterVersion() string { return s.view().clusterVersion }

func (st *state) setMember(r *membershippb.ClusterMemberAttrSetRequest) {
	m := Member{ID: r.Member_ID, Name: r.MemberAttributes.GetName(), ClientURLs: r.MemberAttributes.GetClientUrls()}
	members := slices.Clone(st.members)
	i, found := slices.BinarySearchFunc(members, m.ID, compareMember)
	if found {
		members[i] = m
	} else {
		members = slices.Insert(members, i, m)
	}
	st.members = members
}
