package etcddb

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// SchemaVersion is the version of etcd whose schema is written.
const SchemaVersion = "3.7.0"

// Names of etcd's buckets, and of the keys in its bucket meta.
const (
	bucketKey            = "key"
	bucketMeta           = "meta"
	bucketLease          = "lease"
	bucketAlarm          = "alarm"
	bucketCluster        = "cluster"
	bucketMembers        = "members"
	bucketMembersRemoved = "members_removed"
	bucketAuth           = "auth"
	bucketAuthUsers      = "authUsers"
	bucketAuthRoles      = "authRoles"
	bucketTripod         = "tripod"

	keyConsistentIndex  = "consistent_index"
	keyTerm             = "term"
	keyConfState        = "confState"
	keyStorageVersion   = "storageVersion"
	keyScheduledCompact = "scheduledCompactRev"
	keyFinishedCompact  = "finishedCompactRev"
	keyClusterVersion   = "clusterVersion"
	keyAuthEnabled      = "authEnabled"
	keyAuthRevision     = "authRevision"
	keyOrigin           = "origin"
)

// Origin says where a snapshot was taken.
type Origin struct {
	// Cluster is its ID, 0 when not known, as for a file of an etcd server.
	Cluster uint64 `json:"cluster,omitempty"`
	// Taken is when, Program the version of the program that did.
	Taken   time.Time `json:"taken,omitzero"`
	Program string    `json:"program,omitempty"`
	// Index and Term are of the last raft entry known to be in it.
	Index uint64 `json:"index,omitempty"`
	Term  uint64 `json:"term,omitempty"`
	// Members are the cluster's, Removed those that must never come back.
	Members []Member `json:"members,omitempty"`
	Removed []uint64 `json:"removed,omitempty"`
	// Replaced are the IDs of clusters that this one took the place of.
	Replaced []uint64 `json:"replaced,omitempty"`
}

// Member is a member of the cluster, in the form in which etcd stores it.
type Member struct {
	ID         uint64   `json:"id"`
	PeerURLs   []string `json:"peerURLs"`
	Learner    bool     `json:"isLearner,omitempty"`
	Name       string   `json:"name,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
}

// Write writes a snapshot with its checksum to path, which must not exist, and
// has it on disk when it returns. It needs what a Stream does. On an error no file is
// left.
func Write(path string, sn *store.Snapshot, o Origin) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make the snapshot file: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(path)
		}
	}()
	s, err := NewStream(sn, o)
	if err == nil {
		_, err = s.WriteTo(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("write the snapshot %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// bucketsOf returns the buckets of a database. It keeps sn, and encodes all others.
func bucketsOf(sn *store.Snapshot, o Origin) ([]bucket, error) {
	w := &small{buckets: map[string]map[string][]byte{}}
	for _, b := range []string{bucketMeta, bucketAlarm, bucketCluster, bucketMembers, bucketMembersRemoved, bucketAuth, bucketAuthUsers, bucketAuthRoles, bucketTripod} {
		w.buckets[b] = map[string][]byte{}
	}
	w.meta(sn, o)
	w.origin(o)
	for _, a := range sn.Alarms() {
		w.put(bucketAlarm, w.marshal(&pb.AlarmMember{MemberID: a.MemberID, Alarm: a.Alarm}), nil)
	}
	w.auth(sn.Auth())
	ls := sn.Leases()
	// There, negative IDs are behind all others.
	slices.SortFunc(ls, func(a, b store.Lease) int { return cmp.Compare(uint64(a.ID), uint64(b.ID)) })
	out := []bucket{
		{bucketKey, func(t *tree) error { return versions(t, sn) }},
		{bucketLease, func(t *tree) error { return leases(t, ls) }},
	}
	for _, name := range slices.Sorted(maps.Keys(w.buckets)) {
		out = append(out, smallBucket(name, w.buckets[name]))
	}
	return out, w.err
}

// smallBucket is a bucket of few keys.
func smallBucket[T ~[]byte | ~string](name string, content map[string]T) bucket {
	keys := slices.Sorted(maps.Keys(content))
	return bucket{name, func(t *tree) error {
		for _, key := range keys {
			if err := t.put([]byte(key), []byte(content[key])); err != nil {
				return err
			}
		}
		return nil
	}}
}

// small gathers the buckets of few keys, in any order. err is sticky.
type small struct {
	buckets map[string]map[string][]byte
	err     error
}

func (w *small) put(bucket string, key, value []byte) { w.buckets[bucket][string(key)] = value }

func (w *small) marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil && w.err == nil {
		w.err = err
	}
	return b
}

func (w *small) json(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil && w.err == nil {
		w.err = err
	}
	return b
}

func (w *small) meta(sn *store.Snapshot, o Origin) {
	put := func(key string, value []byte) { w.put(bucketMeta, []byte(key), value) }
	// etcd takes an index of 0 for none.
	put(keyConsistentIndex, binary.BigEndian.AppendUint64(nil, max(o.Index, 1)))
	put(keyTerm, binary.BigEndian.AppendUint64(nil, max(o.Term, 1)))
	put(keyStorageVersion, []byte(SchemaVersion))
	var conf struct {
		Voters    []uint64 `json:"voters,omitempty"`
		Learners  []uint64 `json:"learners,omitempty"`
		AutoLeave bool     `json:"auto_leave"`
	}
	for _, m := range o.Members {
		if m.Learner {
			conf.Learners = append(conf.Learners, m.ID)
		} else {
			conf.Voters = append(conf.Voters, m.ID)
		}
	}
	put(keyConfState, w.json(conf))
	if c := sn.CompactRevision(); c > 0 {
		put(keyScheduledCompact, appendRevision(nil, c, 0, false))
		put(keyFinishedCompact, appendRevision(nil, c, 0, false))
	}
	version := sn.ClusterVersion()
	if version == "" {
		version = SchemaVersion
	}
	w.put(bucketCluster, []byte(keyClusterVersion), []byte(version))
}

func (w *small) origin(o Origin) {
	for _, m := range o.Members {
		w.put(bucketMembers, memberKey(m.ID), w.json(m))
	}
	for _, id := range o.Removed {
		w.put(bucketMembersRemoved, memberKey(id), []byte("removed"))
	}
	w.put(bucketTripod, []byte(keyOrigin), w.json(o))
}

func (w *small) auth(a *store.Auth) {
	enabled := byte(0)
	if a.Enabled() {
		enabled = 1
	}
	w.put(bucketAuth, []byte(keyAuthEnabled), []byte{enabled})
	w.put(bucketAuth, []byte(keyAuthRevision), binary.BigEndian.AppendUint64(nil, a.Revision()))
	for _, u := range a.Users() {
		w.put(bucketAuthUsers, u.Name, w.marshal(u))
	}
	for _, r := range a.Roles() {
		w.put(bucketAuthRoles, r.Name, w.marshal(r))
	}
}

// versions fills the bucket of all versions.
func versions(t *tree, sn *store.Snapshot) error {
	last := max(sn.CompactRevision(), 1)
	var key []byte // used again and again, as the tree copies it
	var kv *mvccpb.KeyValue
	encode := func(b []byte) ([]byte, error) { return proto.MarshalOptions{}.MarshalAppend(b, kv) }
	err := sn.Versions(func(version *mvccpb.KeyValue, sub int64) error {
		last = max(last, version.ModRevision)
		tombstone := version.Version == 0
		key = appendRevision(key[:0], version.ModRevision, sub, tombstone)
		if kv = version; tombstone {
			kv = &mvccpb.KeyValue{Key: version.Key}
		}
		return t.putEncoded(key, proto.Size(kv), encode)
	})
	if err != nil || last >= sn.Revision() {
		return err
	}
	// A revision that nothing was written at: etcd takes its revision from the last
	// key of the bucket. No range and no watch has the empty key.
	return t.put(appendRevision(nil, sn.Revision(), 0, true), nil)
}

// leases fills the bucket of the leases.
func leases(t *tree, ls []store.Lease) error {
	for _, l := range ls {
		if err := t.put(binary.BigEndian.AppendUint64(nil, uint64(l.ID)), encodeLease(l)); err != nil {
			return err
		}
	}
	return nil
}

// appendRevision appends a revision as key of etcd's bucket key: main and sub, and a
// mark for a tombstone.
func appendRevision(b []byte, rev, sub int64, tombstone bool) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(rev))
	b = append(b, '_')
	b = binary.BigEndian.AppendUint64(b, uint64(sub))
	if tombstone {
		b = append(b, 't')
	}
	return b
}

const revisionLen = 8 + 1 + 8

// memberKey is a member's ID as etcd writes it: hex without leading zeros.
func memberKey(id uint64) []byte { return strconv.AppendUint(nil, id, 16) }

// encodeLease writes etcd's leasepb.Lease, which is not among its public API:
// ID, TTL and RemainingTTL are fields 1 to 3.
func encodeLease(l store.Lease) []byte {
	var b []byte
	for i, v := range []int64{l.ID, l.TTL, l.Remaining} {
		if v != 0 {
			b = protowire.AppendTag(b, protowire.Number(i+1), protowire.VarintType)
			b = protowire.AppendVarint(b, uint64(v))
		}
	}
	return b
}
