package etcddb

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"go.etcd.io/bbolt"
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

// batchBytes is how much is written in one transaction of bbolt, which holds it
// in memory.
const batchBytes = 4 << 20

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
	size, err := writeDB(path, sn, o, 0)
	if err != nil {
		return fmt.Errorf("write the snapshot %s: %w", path, err)
	}
	if err := seal(f, size); err != nil {
		return fmt.Errorf("write the snapshot %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// seal cuts what bbolt allocated beyond its last page and appends the checksum.
func seal(f *os.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, size)); err != nil {
		return err
	}
	if _, err := f.WriteAt(h.Sum(nil), size); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeDB fills a new database, of pages of pageSize bytes (0: the machine's), and
// returns the size of them all.
func writeDB(path string, sn *store.Snapshot, o Origin, pageSize int) (size int64, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistMapType, PageSize: pageSize})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	w := &writer{db: db}
	w.begin()
	for _, b := range []string{bucketKey, bucketMeta, bucketLease, bucketAlarm, bucketCluster, bucketMembers, bucketMembersRemoved, bucketAuth, bucketAuthUsers, bucketAuthRoles, bucketTripod} {
		w.bucket(b)
	}
	w.meta(sn, o)
	w.origin(o)
	for _, l := range sn.Leases() {
		w.put(bucketLease, binary.BigEndian.AppendUint64(nil, uint64(l.ID)), encodeLease(l))
	}
	for _, a := range sn.Alarms() {
		w.put(bucketAlarm, w.marshal(&pb.AlarmMember{MemberID: a.MemberID, Alarm: a.Alarm}), nil)
	}
	w.auth(sn.Auth())
	w.versions(sn)
	w.commit()
	if w.err != nil {
		return 0, w.err
	}
	if err := db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil }); err != nil {
		return 0, err
	}
	return size, nil
}

// writer fills a database in transactions of bounded size. err is sticky.
type writer struct {
	db    *bbolt.DB
	tx    *bbolt.Tx
	bytes int
	err   error
}

func (w *writer) begin() {
	if w.err == nil {
		w.tx, w.err = w.db.Begin(true)
	}
	w.bytes = 0
}

func (w *writer) commit() {
	if w.err == nil {
		w.err = w.tx.Commit()
	} else if w.tx != nil {
		w.tx.Rollback()
	}
	w.tx = nil
}

func (w *writer) bucket(name string) {
	if w.err == nil {
		_, w.err = w.tx.CreateBucket([]byte(name))
	}
}

func (w *writer) put(bucket string, key, value []byte) {
	if w.err != nil {
		return
	}
	if w.bytes += len(key) + len(value); w.bytes > batchBytes {
		w.commit()
		if w.begin(); w.err != nil {
			return
		}
	}
	b := w.tx.Bucket([]byte(bucket))
	b.FillPercent = 0.9 // keys come in order, for the most part
	w.err = b.Put(key, value)
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

func (w *writer) versions(sn *store.Snapshot) {
	last := max(sn.CompactRevision(), 1)
	err := sn.Versions(func(kv *mvccpb.KeyValue, sub int64) error {
		last = max(last, kv.ModRevision)
		if kv.Version == 0 {
			w.put(bucketKey, revisionKey(kv.ModRevision, sub, true), w.marshal(&mvccpb.KeyValue{Key: kv.Key}))
		} else {
			w.put(bucketKey, revisionKey(kv.ModRevision, sub, false), w.marshal(kv))
		}
		return w.err
	})
	if err == nil && last < sn.Revision() {
		// A revision that nothing was written at: etcd takes its revision from the
		// last key of the bucket. No range and no watch has the empty key.
		w.put(bucketKey, revisionKey(sn.Revision(), 0, true), nil)
	}
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
