package store

import (
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Versions calls f for every retained version, in the order of revisions. sub
// counts the changes that were made at one revision, from 0; a tombstone has
// Version 0. An error of f ends it and is returned. The key-values are shared:
// do not change them.
//
// It takes 8 bytes of memory for each key that did not change since the last
// compaction: those are kept by key, and are sorted first.
func (sn *Snapshot) Versions(f func(kv *mvccpb.KeyValue, sub int64) error) error {
	st := sn.st
	var old []*mvccpb.KeyValue
	st.keys.Scan(func(_ string, e entry) bool {
		if kv := e.oldest(); kv.ModRevision < st.compactRev {
			old = append(old, kv)
		}
		return true
	})
	slices.SortStableFunc(old, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) })
	var rev, sub int64
	each := func(kv *mvccpb.KeyValue) error {
		sub++
		if kv.ModRevision != rev {
			rev, sub = kv.ModRevision, 0
		}
		return f(kv, sub)
	}
	for _, kv := range old {
		if err := each(kv); err != nil {
			return err
		}
	}
	for i := range st.log.n {
		if err := each(st.log.at(i)); err != nil {
			return err
		}
	}
	return nil
}

// Leases returns the leases at that moment, ordered by ID. The slice is the
// caller's.
func (sn *Snapshot) Leases() []Lease { return sn.st.leases.Values() }

// Alarms returns the alarms that were active, ordered by kind and member.
func (sn *Snapshot) Alarms() []*pb.AlarmMember { return sn.st.listAlarms(pb.AlarmType_NONE) }

// ClusterVersion is Store.ClusterVersion at that moment.
func (sn *Snapshot) ClusterVersion() string { return sn.st.clusterVersion }

// Size is Store.Size at that moment.
func (sn *Snapshot) Size() int64 { return sn.st.size }

// Keys is the number of keys that exist.
func (sn *Snapshot) Keys() int64 { return sn.st.count(span{toEnd: true}, sn.st.rev) }
