package store

import (
	"hash/crc32"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Hash is a digest of the history up to a revision, as far as a compaction left
// it: the same on all members with the same history and the same
// CompactRevision. It is not comparable with an etcd server's.
type Hash struct {
	Hash            uint32
	Revision        int64 // the revision hashed
	CompactRevision int64
	Current         int64 // the store's revision when it was hashed
}

// Hash digests the history up to revision rev, 0 for the current one. What is counted is what etcd counts: every
// change after the last compaction, deletions too, and of what is older the keys that a reader of rev sees. Errors:
// ErrGRPCCompacted, ErrGRPCFutureRev.
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
		if kv := ent.at(rev); live(kv) && kv.ModRevision <= st.compactRev {
			add(kv)
		}
		return true
	})
	for i := st.log.seek(st.compactRev + 1); i < st.log.n && st.log.at(i).ModRevision <= rev; i++ {
		add(st.log.at(i))
	}
	return h, nil
}
