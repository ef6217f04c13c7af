package etcddb

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
// has it on disk when it returns. Beside the snapshot itself it needs a few
// megabytes of memory. On an error no file is left.
func Write(path string, sn *store.Snapshot, o Origin) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make the snapshot file: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(path)
		}
	}()
	if _, err := WriteFile(f, sn, o); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write the snapshot %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// WriteFile writes a snapshot with its checksum to f, an empty file that is open for
// reading and writing, and returns their size in bytes. It moves no offset of f and
// does not wait for the disk.
func WriteFile(f *os.File, sn *store.Snapshot, o Origin) (size int64, err error) {
	if size, err = writeDB(f, sn, o, filePageSize); err == nil {
		err = seal(f, size)
	}
	if err != nil {
		return 0, fmt.Errorf("write the snapshot %s: %w", f.Name(), err)
	}
	return size + sha256.Size, nil
}

// seal appends the checksum. It reads the file again, for the meta pages, with which
// it begins, are written last.
func seal(f *os.File, size int64) error {
	h := sha256.New()
	if _, err := io.CopyBuffer(h, io.NewSectionReader(f, 0, size), make([]byte, 1<<20)); err != nil {
		return err
	}
	_, err := f.WriteAt(h.Sum(nil), size)
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeDB fills an empty file with a database of pages of pageSize bytes, and returns
// the size of them all.
func writeDB(f io.WriterAt, sn *store.Snapshot, o Origin, pageSize int) (size int64, err error) {
	w := &writer{pages: newPageWriter(f, pageSize), small: map[string]map[string][]byte{}, roots: map[string]uint64{}}
	for _, b := range []string{bucketMeta, bucketAlarm, bucketCluster, bucketMembers, bucketMembersRemoved, bucketAuth, bucketAuthUsers, bucketAuthRoles, bucketTripod} {
		w.small[b] = map[string][]byte{}
	}
	w.bucket(bucketKey, func(t *tree) error { return w.versions(t, sn) })
	w.bucket(bucketLease, func(t *tree) error { return leases(t, sn.Leases()) })
	w.meta(sn, o)
	w.origin(o)
	for _, a := range sn.Alarms() {
		w.put(bucketAlarm, w.marshal(&pb.AlarmMember{MemberID: a.MemberID, Alarm: a.Alarm}), nil)
	}
	w.auth(sn.Auth())
	return w.finish()
}

// writer writes the buckets of a database. err is sticky.
type writer struct {
	pages *pageWriter
	small map[string]map[string][]byte // the buckets of few keys, written last
	roots map[string]uint64            // the root pages of the buckets that are written
	err   error
}

// bucket writes a bucket, the keys of which fill adds in order.
func (w *writer) bucket(name string, fill func(*tree) error) {
	if w.err != nil {
		return
	}
	t := &tree{w: w.pages}
	if err := fill(t); err != nil {
		w.err = fmt.Errorf("bucket %s: %w", name, err)
		return
	}
	w.roots[name], w.err = t.finish()
}

// put adds to a bucket of few keys, in any order.
func (w *writer) put(bucket string, key, value []byte) { w.small[bucket][string(key)] = value }

// finish writes the buckets of few keys and the bucket of all buckets.
func (w *writer) finish() (size int64, err error) {
	for _, name := range slices.Sorted(maps.Keys(w.small)) {
		w.bucket(name, func(t *tree) error {
			for _, key := range slices.Sorted(maps.Keys(w.small[name])) {
				if err := t.put([]byte(key), w.small[name][key]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if w.err != nil {
		return 0, w.err
	}
	top := &tree{w: w.pages}
	for _, name := range slices.Sorted(maps.Keys(w.roots)) {
		if err := top.bucket(name, w.roots[name]); err != nil {
			return 0, err
		}
	}
	root, err := top.finish()
	if err != nil {
		return 0, err
	}
	return w.pages.finish(root)
}

func (w *writer) marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil && w.err == nil {
		w.err = err
	}
	return b
}

func (w *writer) json(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil && w.err == nil {
		w.err = err
	}
	return b
}

func (w *writer) meta(sn *store.Snapshot, o Origin) {
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
		put(keyScheduledCompact, revisionKey(c, 0, false))
		put(keyFinishedCompact, revisionKey(c, 0, false))
	}
	version := sn.ClusterVersion()
	if version == "" {
		version = SchemaVersion
	}
	w.put(bucketCluster, []byte(keyClusterVersion), []byte(version))
}

func (w *writer) origin(o Origin) {
	for _, m := range o.Members {
		w.put(bucketMembers, memberKey(m.ID), w.json(m))
	}
	for _, id := range o.Removed {
		w.put(bucketMembersRemoved, memberKey(id), []byte("removed"))
	}
	w.put(bucketTripod, []byte(keyOrigin), w.json(o))
}

func (w *writer) auth(a *store.Auth) {
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
func (w *writer) versions(t *tree, sn *store.Snapshot) error {
	last := max(sn.CompactRevision(), 1)
	var value []byte // used again and again: put copies it
	err := sn.Versions(func(kv *mvccpb.KeyValue, sub int64) (err error) {
		last = max(last, kv.ModRevision)
		tombstone := kv.Version == 0
		key := revisionKey(kv.ModRevision, sub, tombstone)
		if tombstone {
			kv = &mvccpb.KeyValue{Key: kv.Key}
		}
		if value, err = (proto.MarshalOptions{}).MarshalAppend(value[:0], kv); err != nil {
			return err
		}
		return t.put(key, value)
	})
	if err != nil || last >= sn.Revision() {
		return err
	}
	// A revision that nothing was written at: etcd takes its revision from the last
	// key of the bucket. No range and no watch has the empty key.
	return t.put(revisionKey(sn.Revision(), 0, true), nil)
}

// leases fills the bucket of the leases, of which it sorts the slice: there, negative
// IDs are behind all others.
func leases(t *tree, ls []store.Lease) error {
	slices.SortFunc(ls, func(a, b store.Lease) int { return cmp.Compare(uint64(a.ID), uint64(b.ID)) })
	for _, l := range ls {
		if err := t.put(binary.BigEndian.AppendUint64(nil, uint64(l.ID)), encodeLease(l)); err != nil {
			return err
		}
	}
	return nil
}

// revisionKey is a revision as key of etcd's bucket key: main and sub, and a mark
// for a tombstone.
func revisionKey(rev, sub int64, tombstone bool) []byte {
	b := make([]byte, 0, revisionLen+1)
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
