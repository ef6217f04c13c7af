package store

import (
	"hash/crc32"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Hash is a digest of the keys and values at a revision. It is the same before
// and after a compaction, and on all peers. It is not comparable with an etcd
// server's.
type Hash struct {
	Hash            uint32
	Revision        int64 // the revision hashed
	CompactRevision int64
	Current         int64 // the store's revision when it was hashed
}

// Hash digests what a reader of revision rev sees; 0 is the current revision. Errors: ErrGRPCCompacted, ErrGRPCFutureRev.
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
