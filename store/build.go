package store

import (
	"errors"
	"fmt"
	"math"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Builder makes a store from the versions that another one retained, such as
// those in a file of an etcd server. Add the leases, then the versions in the
// order of revisions, then Build. It is for one goroutine, and of no use after
// Build or an error.
type Builder struct {
	l       loader
	cleared int
}

// NewBuilder starts a store whose history was compacted at compactRev; -1 when
// it never was.
func NewBuilder(compactRev int64) (*Builder, error) {
	if compactRev < -1 || compactRev == math.MaxInt64 {
		return nil, fmt.Errorf("the compact revision %d is out of range", compactRev)
	}
	b := &Builder{l: loader{st: newState()}}
	b.l.st.compactRev = compactRev
	b.l.st.rev = math.MaxInt64 // until Build: no version is beyond it
	return b, nil
}

// Lease adds a lease. IDs are unique and not 0, a TTL is in seconds.
func (b *Builder) Lease(l Lease) error {
	if _, ok := b.l.st.leases.Get(l.ID); ok || l.ID == 0 || l.TTL < 0 || l.Remaining < 0 {
		return fmt.Errorf("lease %x with a TTL of %d s is out of place", uint64(l.ID), l.TTL)
	}
	b.l.st.leases.Set(l.ID, l)
	return nil
}

// Auth sets users and roles, ordered by name, and takes them over. revision is
// at least 1.
func (b *Builder) Auth(enabled bool, revision uint64, users []*authpb.User, roles []*authpb.Role) error {
	a := &Auth{enabled: enabled, revision: revision, roles: roles}
	for _, u := range users {
		if u.Options == nil {
			u.Options = &authpb.UserAddOptions{}
		}
		a.users = append(a.users, a.withPermissions(u))
	}
	if !a.ordered() {
		return errors.New("users and roles are not in order")
	}
	b.l.st.auth = a
	return nil
}

// Version adds a version, or with Version 0 a tombstone, and takes it over.
// What a compaction at the compact revision forgets is left out.
func (b *Builder) Version(kv *mvccpb.KeyValue) error {
	l := &b.l
	if kv.ModRevision < 1 || kv.ModRevision < l.lastRev || len(kv.Key) == 0 || kv.Version < 0 || live(kv) && (kv.CreateRevision < 1 || kv.CreateRevision > kv.ModRevision) {
		return outOfPlace(kv)
	}
	if kv.ModRevision >= l.st.compactRev {
		if !l.change(kv) {
			return outOfPlace(kv)
		}
		return nil
	}
	l.lastRev = kv.ModRevision
	key := keyString(kv.Key)
	if e, ok := l.st.keys.Get(key); ok {
		l.st.size -= cost(e.latest)
		l.st.keys.Delete(key)
	}
	if live(kv) {
		l.st.keys.Set(key, newEntry(kv))
		l.st.size += cost(kv)
	}
	return nil
}

func outOfPlace(kv *mvccpb.KeyValue) error {
	return fmt.Errorf("version %d of key %q, created at revision %d, is out of place at revision %d", kv.Version, kv.Key, kv.CreateRevision, kv.ModRevision)
}

// Build returns the store, at revision rev or that of the last version or of
// the compaction, whichever is the latest. A key whose lease was not added loses its lease, as nothing would
// ever end it; cleared is how many there were.
func (b *Builder) Build(rev int64) (s *Store, cleared int, err error) {
	st := b.l.st
	rev = max(rev, b.l.lastRev, st.compactRev, 1)
	if rev == math.MaxInt64 {
		return nil, 0, fmt.Errorf("revision %d: %w", rev, ErrRevisionRange)
	}
	st.rev = rev
	var orphans []*mvccpb.KeyValue
	st.keys.Scan(func(_ string, e entry) bool {
		if kv := e.latest; live(kv) && kv.Lease != 0 {
			if _, ok := st.leases.Get(kv.Lease); !ok {
				orphans = append(orphans, kv)
			}
		}
		return true
	})
	for _, kv := range orphans {
		kv.Lease = 0 // nobody else has it yet
	}
	if st, err = b.l.finish(0); err != nil {
		return nil, 0, err
	}
	s = New(Options{})
	s.cur = st
	s.auth.Store(st.auth)
	return s, len(orphans), nil
}

// ErrRevisionRange is returned for a revision that would overflow.
var ErrRevisionRange = errors.New("the revision would be out of range")

// Rebase makes the state ready to begin a new cluster: it forgets the members
// and their alarms, and raises the revision by bump, so that no client of the
// earlier cluster sees it go back. With markCompacted the history up to the new
// revision is forgotten, so that watches and caches of such clients start anew
// and do not go on from what they saw.
//
// It is a change outside of the replicated order: only for a store that no peer
// applies to.
func (s *Store) Rebase(bump int64, markCompacted bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.cur
	if bump < 0 || bump > math.MaxInt64/2-st.rev {
		return fmt.Errorf("raise revision %d by %d: %w", st.rev, bump, ErrRevisionRange)
	}
	st.members, st.alarms = nil, nil
	st.rev += bump
	if markCompacted && st.rev > st.compactRev {
		st.compact(st.rev)
	}
	s.published.Store(nil)
	return nil
}
