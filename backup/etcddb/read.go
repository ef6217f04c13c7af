package etcddb

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// Options say how a file is read.
type Options struct {
	// SkipHashCheck takes a file whose checksum is missing, as in a database that
	// was copied from a server's directory, or wrong. Its pages are checked all
	// the same.
	SkipHashCheck bool
}

// Info is what a file holds.
type Info struct {
	Revision        int64 `json:"revision"`
	CompactRevision int64 `json:"compactRevision"` // -1: never compacted
	Keys            int64 `json:"keys"`            // that exist at Revision
	Versions        int64 `json:"versions"`        // retained ones, tombstones too
	Leases          int   `json:"leases"`
	// Auth tells whether authentication is enabled.
	Auth  bool `json:"auth"`
	Users int  `json:"users"`
	Roles int  `json:"roles"`
	// LeasesMissing is how many keys were attached to a lease that is not in the
	// file; they are read without one.
	LeasesMissing int    `json:"leasesMissing,omitempty"`
	StorageVer    string `json:"storageVersion,omitempty"` // empty before etcd 3.6
	ClusterVer    string `json:"clusterVersion,omitempty"`
	Bytes         int64  `json:"bytes"` // size of the file
	// SHA256 is the checksum in the file, in hex; empty when it has none.
	SHA256 string `json:"sha256,omitempty"`
	// Verified: the checksum was compared with the bytes.
	Verified bool   `json:"verified"`
	Origin   Origin `json:"origin,omitzero"`
}

// hasSum tells whether a file of n bytes ends in a checksum: the database has
// whole pages.
func hasSum(n int64) bool { return n%512 == sha256.Size }

// Read reads a file: of this package, or of an etcd server from 3.4 on. Errors
// that are about the file's content wrap store.ErrDamagedSnapshot and name the
// file and the byte.
func Read(path string, o Options) (*store.Store, Info, error) {
	f, size, err := open(path)
	if err != nil {
		return nil, Info{}, err
	}
	defer f.Close()
	sum, verified, err := check(f, size, path, o)
	if err != nil {
		return nil, Info{}, err
	}
	s, info, err := read(f, size-int64(len(sum)), path)
	info.Bytes, info.SHA256, info.Verified = size, hex.EncodeToString(sum), verified
	return s, info, err
}

// Verify compares a file's checksum with its bytes, and returns it in hex.
func Verify(path string) (string, error) {
	f, size, err := open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum, _, err := check(f, size, path, Options{})
	return hex.EncodeToString(sum), err
}

func open(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("open the snapshot: %w", err)
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open the snapshot: %w", err)
	}
	return f, fi.Size(), nil
}

// check reads the checksum at the end, nil when there is none, and compares it.
func check(r io.ReaderAt, size int64, name string, o Options) (sum []byte, verified bool, err error) {
	if !hasSum(size) {
		if o.SkipHashCheck {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("%s: byte %d: it does not end in a checksum: it is cut off, or is a database copied from a server's directory, which --skip-hash-check takes: %w", name, size, store.ErrDamagedSnapshot)
	}
	sum = make([]byte, sha256.Size)
	if _, err := r.ReadAt(sum, size-sha256.Size); err != nil {
		return nil, false, fmt.Errorf("read %s: byte %d: %w", name, size-sha256.Size, err)
	}
	if o.SkipHashCheck {
		return sum, false, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, size-sha256.Size)); err != nil {
		return nil, false, fmt.Errorf("read %s: %w", name, err)
	}
	if got := h.Sum(nil); !bytes.Equal(got, sum) {
		return nil, false, fmt.Errorf("%s: byte %d: its checksum is %x, and its bytes give %x: %w", name, size-sha256.Size, sum, got, store.ErrDamagedSnapshot)
	}
	return sum, true, nil
}

// read reads a database of size bytes.
func read(r io.ReaderAt, size int64, name string) (*store.Store, Info, error) {
	p, err := openPages(r, size, name)
	if err != nil {
		return nil, Info{}, err
	}
	d := &reader{pages: p}
	if d.buckets, err = p.buckets(); err != nil {
		return nil, d.info, err
	}
	for _, b := range []string{bucketKey, bucketMeta} {
		if _, ok := d.buckets[b]; !ok {
			return nil, d.info, p.damaged(0, "there is no bucket %q: it is not the database of an etcd server", b)
		}
	}
	s, err := d.state()
	return s, d.info, err
}

type reader struct {
	*pages
	buckets map[string]entry
	info    Info
}

// in calls f for the entries of a bucket, which need not exist.
func (d *reader) in(bucket string, f func(entry) error) error {
	b, ok := d.buckets[bucket]
	if !ok {
		return nil
	}
	return d.each(b, f)
}

func (d *reader) state() (*store.Store, error) {
	d.info.CompactRevision = -1
	var index, term uint64
	err := d.in(bucketMeta, func(e entry) (err error) {
		switch string(e.key) {
		case keyScheduledCompact, keyFinishedCompact:
			// A scheduled compaction is finished by whoever opens the database.
			rev, _, _, ok := parseRevision(e.value)
			if !ok {
				return d.damaged(e.off, "%s is %x", e.key, e.value)
			}
			d.info.CompactRevision = max(d.info.CompactRevision, rev)
		case keyConsistentIndex:
			index, err = d.number(e)
		case keyTerm:
			term, err = d.number(e)
		case keyStorageVersion:
			d.info.StorageVer = string(e.value)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if d.info.CompactRevision == 0 {
		d.info.CompactRevision = -1 // as etcd writes before the first one
	}
	if err := d.origin(index, term); err != nil {
		return nil, err
	}
	b, err := store.NewBuilder(d.info.CompactRevision)
	if err != nil {
		return nil, d.damaged(d.buckets[bucketMeta].off, "%v", err)
	}
	if err := d.leases(b); err != nil {
		return nil, err
	}
	if err := d.auth(b); err != nil {
		return nil, err
	}
	if err := d.versions(b); err != nil {
		return nil, err
	}
	s, missing, err := b.Build(d.info.Revision)
	if err != nil {
		return nil, d.damaged(0, "%v", err)
	}
	d.info.LeasesMissing = missing
	d.info.Revision = s.Revision()
	sn := s.Snapshot()
	defer sn.Close()
	d.info.Keys = sn.Keys()
	return s, nil
}

func (d *reader) number(e entry) (uint64, error) {
	if len(e.value) != 8 {
		return 0, d.damaged(e.off, "%s has %d bytes", e.key, len(e.value))
	}
	return binary.BigEndian.Uint64(e.value), nil
}

func (d *reader) leases(b *store.Builder) error {
	return d.in(bucketLease, func(e entry) error {
		l, ok := decodeLease(e.value)
		if !ok || len(e.key) != 8 || int64(binary.BigEndian.Uint64(e.key)) != l.ID {
			return d.damaged(e.off, "the lease %x does not decode", e.key)
		}
		d.info.Leases++
		if err := b.Lease(l); err != nil {
			return d.damaged(e.off, "%v", err)
		}
		return nil
	})
}

func (d *reader) auth(b *store.Builder) error {
	enabled, revision := false, uint64(0)
	err := d.in(bucketAuth, func(e entry) (err error) {
		switch string(e.key) {
		case keyAuthEnabled:
			enabled = bytes.Equal(e.value, []byte{1})
		case keyAuthRevision:
			revision, err = d.number(e)
		}
		return err
	})
	if err != nil {
		return err
	}
	var users []*authpb.User
	if err := d.in(bucketAuthUsers, func(e entry) error {
		u := &authpb.User{}
		if err := proto.Unmarshal(e.value, u); err != nil || !bytes.Equal(u.Name, e.key) {
			return d.damaged(e.off, "the user %q does not decode", e.key)
		}
		slices.Sort(u.Roles)
		users = append(users, u)
		return nil
	}); err != nil {
		return err
	}
	var roles []*authpb.Role
	if err := d.in(bucketAuthRoles, func(e entry) error {
		r := &authpb.Role{}
		if err := proto.Unmarshal(e.value, r); err != nil || !bytes.Equal(r.Name, e.key) {
			return d.damaged(e.off, "the role %q does not decode", e.key)
		}
		roles = append(roles, r)
		return nil
	}); err != nil {
		return err
	}
	d.info.Auth, d.info.Users, d.info.Roles = enabled, len(users), len(roles)
	if err := b.Auth(enabled, max(revision, 1), users, roles); err != nil {
		return d.damaged(d.buckets[bucketAuth].off, "%v", err)
	}
	return nil
}

func (d *reader) versions(b *store.Builder) error {
	return d.in(bucketKey, func(e entry) error {
		rev, _, tombstone, ok := parseRevision(e.key)
		if !ok || rev < 1 {
			return d.damaged(e.off, "%x is not a revision", e.key)
		}
		kv := &mvccpb.KeyValue{}
		if err := proto.Unmarshal(e.value, kv); err != nil {
			return d.damaged(e.off, "the version at revision %d does not decode: %v", rev, err)
		}
		d.info.Revision = max(d.info.Revision, rev)
		if len(kv.Key) == 0 {
			return nil // a revision that was raised
		}
		d.info.Versions++
		switch {
		case tombstone:
			kv = &mvccpb.KeyValue{Key: kv.Key, ModRevision: rev}
		case kv.ModRevision != rev || kv.Version < 1:
			return d.damaged(e.off, "the version at revision %d says that it is version %d of revision %d", rev, kv.Version, kv.ModRevision)
		}
		if err := b.Version(kv); err != nil {
			return d.damaged(e.off, "%v", err)
		}
		return nil
	})
}

// origin reads what the file says of where it was taken.
func (d *reader) origin(index, term uint64) error {
	o := &d.info.Origin
	err := d.in(bucketTripod, func(e entry) error {
		if string(e.key) == keyOrigin {
			if err := json.Unmarshal(e.value, o); err != nil {
				return d.damaged(e.off, "its origin does not decode: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	o.Index, o.Term, o.Members, o.Removed = index, term, nil, nil
	if err := d.in(bucketCluster, func(e entry) error {
		if string(e.key) == keyClusterVersion {
			d.info.ClusterVer = string(e.value)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := d.in(bucketMembers, func(e entry) error {
		var m Member
		if err := json.Unmarshal(e.value, &m); err != nil {
			return d.damaged(e.off, "member %q does not decode: %v", e.key, err)
		}
		o.Members = append(o.Members, m)
		return nil
	}); err != nil {
		return err
	}
	return d.in(bucketMembersRemoved, func(e entry) error {
		id, err := strconv.ParseUint(string(e.key), 16, 64)
		if err != nil {
			return d.damaged(e.off, "removed member %q is not an ID", e.key)
		}
		o.Removed = append(o.Removed, id)
		return nil
	})
}

// parseRevision reads what appendRevision wrote.
func parseRevision(b []byte) (rev, sub int64, tombstone, ok bool) {
	if len(b) != revisionLen && len(b) != revisionLen+1 || b[8] != '_' {
		return 0, 0, false, false
	}
	rev, sub = int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[9:]))
	tombstone = len(b) > revisionLen
	return rev, sub, tombstone, rev >= 0 && sub >= 0 && (!tombstone || b[revisionLen] == 't')
}

func decodeLease(b []byte) (l store.Lease, ok bool) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return l, false
		}
		b = b[n:]
		if typ != protowire.VarintType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return l, false
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return l, false
		}
		b = b[n:]
		switch num {
		case 1:
			l.ID = int64(v)
		case 2:
			l.TTL = int64(v)
		case 3:
			l.Remaining = int64(v)
		}
	}
	return l, true
}
