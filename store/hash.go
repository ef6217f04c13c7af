package store

import (
	"hash/crc32"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Hash is a digest of what a reader at a revision sees: the same on all members
// that would answer alike, and the same before a compaction of that revision as
// after it. It is not comparable with an etcd server's.
type Hash struct {
	Hash            uint32
	Revision        int64 // the revision hashed
	CompactRevision int64
	Current         int64 // the store's revision when it was hashed
}

// Hash digests the keys at revision rev, 0 for the current one: keys, values, leases, versions and revisions, in
// the order of keys. Older versions count at their own revision. etcd hashes the history as far as it was compacted,
// and remembers what a hash was before the compaction, so that it does not change by one. Errors: ErrGRPCCompacted,
// ErrGRPCFutureRev.
func (s *Store) Hash(rev int64) (Hash, error) {
	st := s.view()
	if err := st.checkReadRevision(rev, st.rev); err != nil {
		return Hash{}, err
	}
	if rev <= 0 {
		rev = st.rev
	}
	h := Hash{Hash: crc32.Checksum([]byte("key"), castagnoli), Revision: rev, CompactRevision: st.compactRev, Current: st.rev}
	e := &encoder{}
	add := func(kv *mvccpb.KeyValue) {
		e.buf = e.buf[:0]
		e.version(kv)
		h.Hash = crc32.Update(h.Hash, castagnoli, e.buf)
	}
	st.keys.Scan(func(_ string, ent entry) bool {
		if kv := ent.at(rev); live(kv) {
			add(kv)
		}
		return true
	})
	return h, nil
}
