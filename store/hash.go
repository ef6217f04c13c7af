package store

import (
	"hash/crc32"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Hash is a digest of the retained versions up to a revision. Peers that
// compare it must compare at the same Revision and CompactRevision. It is not
// comparable with an etcd server's.
type Hash struct {
	Hash            uint32
	Revision        int64 // the revision hashed
	CompactRevision int64
	Current         int64 // the store's revision when it was hashed
}

// Hash digests the versions that a reader of revision rev or of an earlier one
// can see; 0 is the current revision. Errors: ErrGRPCCompacted, ErrGRPCFutureRev.
func (s *Store) Hash(rev int64) (Hash, error) {
	st := s.view()
	if err := st.checkReadRevision(rev, st.rev); err != nil {
		return Hash{}, err
	}
	if rev <= 0 {
		rev = st.rev
	}
	h := Hash{Revision: rev, CompactRevision: st.compactRev, Current: st.rev}
	e := &encoder{}
	add := func(kv *mvccpb.KeyValue) {
		e.buf = e.buf[:0]
		e.version(kv)
		h.Hash = crc32.Update(h.Hash, castagnoli, e.buf)
	}
	st.keys.Scan(func(_ string, ent entry) bool {
		if kv := ent.oldest(); kv.ModRevision < st.compactRev {
			add(kv)
		}
		return true
	})
	for i := 0; i < st.log.n && st.log.at(i).ModRevision <= rev; i++ {
		add(st.log.at(i))
	}
	return h, nil
}
