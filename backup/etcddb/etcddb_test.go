package etcddb

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"

	"github.com/tripod-cluster/tripod/store"
)

func apply(t testing.TB, s *store.Store, r *pb.InternalRaftRequest) {
	t.Helper()
	if res := s.Apply(r); res.Err != nil {
		t.Fatal(res.Err)
	}
}

func put(key, value string, lease int64) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}}
}

// sample is a store with something in every bucket, of n keys.
func sample(t testing.TB, n int) *store.Store {
	s := store.New(store.Options{})
	apply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 7, TTL: 60}})
	apply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: -9, TTL: 90}})
	apply(t, s, &pb.InternalRaftRequest{LeaseCheckpoint: &pb.LeaseCheckpointRequest{Checkpoints: []*pb.LeaseCheckpoint{{ID: 7, Remaining_TTL: 4}}}})
	for i := range n {
		apply(t, s, put(fmt.Sprintf("k%06d", i), strings.Repeat("v", i%200), 7*int64(i%2)))
	}
	apply(t, s, put("gone", "x", 0))
	apply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
	apply(t, s, put("k000000", "again", -9))
	apply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("gone")}})
	apply(t, s, &pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: "root"}})
	apply(t, s, &pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: "reader"}})
	apply(t, s, &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{Name: "reader", Perm: &authpb.Permission{PermType: authpb.Permission_READ, Key: []byte("k"), RangeEnd: []byte("l")}}})
	for _, u := range []string{"root", "anna"} {
		apply(t, s, &pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: u, HashedPassword: "aGFzaA==", Options: &authpb.UserAddOptions{}}})
	}
	apply(t, s, &pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}})
	apply(t, s, &pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: "anna", Role: "reader"}})
	apply(t, s, &pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}})
	apply(t, s, &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 3, Alarm: pb.AlarmType_NOSPACE}})
	apply(t, s, &pb.InternalRaftRequest{ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: "3.7.0"}})
	return s
}

var origin = Origin{
	Cluster: 77, Taken: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Program: "1.2.3", Index: 12345, Term: 6,
	Members: []Member{{ID: 0xa1, Name: "p1", PeerURLs: []string{"https://192.0.2.1:2380"}, ClientURLs: []string{"https://192.0.2.1:2379"}}, {ID: 0xfedcba9876543210, Name: "p2", PeerURLs: []string{"https://192.0.2.2:2380"}, Learner: true}},
	Removed: []uint64{5}, Replaced: []uint64{76},
}

func write(t testing.TB, s *store.Store) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	sn := s.Snapshot()
	defer sn.Close()
	if err := Write(path, sn, origin); err != nil {
		t.Fatal(err)
	}
	return path
}

func stream(t testing.TB, s *store.Store) []byte {
	t.Helper()
	var b bytes.Buffer
	sn := s.Snapshot()
	defer sn.Close()
	if _, err := sn.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, n := range []int{0, 1, 5000} {
		s := sample(t, max(n, 1))
		if n == 0 {
			s = store.New(store.Options{})
		}
		path := write(t, s)
		got, info, err := Read(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if info.Revision != s.Revision() || info.CompactRevision != s.CompactRevision() || !info.Verified || !reflect.DeepEqual(info.Origin, origin) || info.LeasesMissing != 0 {
			t.Errorf("%d keys: %+v", n, info)
		}
		if n > 0 && info.Keys != int64(n) {
			t.Errorf("%d keys: it says %d", n, info.Keys)
		}
		// What names the cluster is not taken over.
		if err := s.Rebase(0, false); err != nil {
			t.Fatal(err)
		}
		want := store.New(store.Options{})
		if err := want.Restore(bytes.NewReader(stream(t, s))); err != nil {
			t.Fatal(err)
		}
		apply(t, got, &pb.InternalRaftRequest{ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: want.ClusterVersion()}})
		if !bytes.Equal(stream(t, got), stream(t, want)) {
			t.Errorf("%d keys: the state that was read differs", n)
		}
	}
}

// A revision that nothing was written at survives: a client may have seen it.
func TestRevisionWithoutAChange(t *testing.T) {
	s := sample(t, 3)
	if err := s.Rebase(500, false); err != nil {
		t.Fatal(err)
	}
	got, _, err := Read(write(t, s), Options{})
	if err != nil || got.Revision() != s.Revision() || got.CompactRevision() != s.CompactRevision() {
		t.Errorf("revision %d, want %d, %v", got.Revision(), s.Revision(), err)
	}
}

func TestWriteLeavesNothingOnAnError(t *testing.T) {
	s := sample(t, 1)
	path := write(t, s)
	sn := s.Snapshot()
	defer sn.Close()
	before, _ := os.ReadFile(path)
	if err := Write(path, sn, origin); !errors.Is(err, os.ErrExist) {
		t.Errorf("an existing file: %v", err)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("an existing file was changed")
	}
	if err := Write(filepath.Join(t.TempDir(), "none", "x"), sn, origin); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that does not exist: %v", err)
	}
}

// damage tells whether an error names the file and the byte.
func damage(err error, path string) bool {
	return errors.Is(err, store.ErrDamagedSnapshot) && strings.Contains(err.Error(), path) && strings.Contains(err.Error(), "byte ")
}

func TestDamagedFilesAreRefused(t *testing.T) {
	path := write(t, sample(t, 300))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "damaged.db")
	read := func(b []byte, o Options) error {
		if err := os.WriteFile(other, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := Read(other, o)
		return err
	}
	for at := 0; at < len(whole); at += 211 {
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		if err := read(b, Options{}); !damage(err, other) {
			t.Errorf("byte %d changed: %v", at, err)
		}
		// Without the checksum a changed value passes, a changed structure does not.
		if err := read(b, Options{SkipHashCheck: true}); err != nil && !damage(err, other) {
			t.Errorf("byte %d changed, unchecked: %v", at, err)
		}
	}
	for _, n := range []int{0, 31, 32, 100, 4096, 8192 + 32, len(whole) - 4096, len(whole) - 33, len(whole) - 1} {
		if err := read(whole[:n], Options{}); !damage(err, other) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
		if err := read(whole[:n], Options{SkipHashCheck: true}); n < len(whole)-33 && !damage(err, other) {
			t.Errorf("cut to %d bytes, unchecked: %v", n, err)
		}
	}
	if err := read(whole[:len(whole)-sha256.Size], Options{SkipHashCheck: true}); err != nil {
		t.Errorf("without its checksum, unchecked: %v", err)
	}
	if _, _, err := Read(filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, _, err := Read(t.TempDir(), Options{}); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a directory: %v", err)
	}
	if sum, err := Verify(path); err != nil || len(sum) != 64 {
		t.Errorf("%q, %v", sum, err)
	}
}

// FuzzRead: whatever is in a file, reading it ends, with a store that can be
// written again or with an error.
func FuzzRead(f *testing.F) {
	for _, n := range []int{1, 40} {
		sn := sample(f, n).Snapshot()
		buckets, err := bucketsOf(sn, origin)
		if err != nil {
			f.Fatal(err)
		}
		s, err := newStream(buckets, 1024) // small, so that a change is likely to hit something
		if err != nil {
			f.Fatal(err)
		}
		var file bytes.Buffer
		if _, err := s.WriteTo(&file); err != nil {
			f.Fatal(err)
		}
		sn.Close()
		b := file.Bytes()[:file.Len()-sha256.Size]
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, _, err := read(bytes.NewReader(b), int64(len(b)), "fuzz")
		if err != nil {
			if !errors.Is(err, store.ErrDamagedSnapshot) {
				t.Fatal(err)
			}
			return
		}
		if err := store.New(store.Options{}).Restore(bytes.NewReader(stream(t, s))); err != nil {
			t.Fatalf("what was read is no state: %v", err)
		}
	})
}
