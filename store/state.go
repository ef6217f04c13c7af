package store

import (
	"bytes"
	"sort"
	"unsafe"

	"github.com/tidwall/btree"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// versionCost is what one version takes beside its key and value, in bytes:
// the message, its place in the tree and in the history.
const versionCost = 176

// keyDegree is the degree of the tree of keys. A write after a read copies a
// node per level: half of the library's default degree halves what is copied,
// and look-ups are as fast.
const keyDegree = 16

// entry is a key's retained versions. latest may be a tombstone.
type entry struct {
	// mod is latest's ModRevision, negative for a tombstone: most questions
	// are answered without touching the version itself.
	mod    int64
	latest *mvccpb.KeyValue
	older  []*mvccpb.KeyValue // ascending; only ever appended to or replaced
}

func newEntry(kv *mvccpb.KeyValue) entry {
	var e entry
	e.set(kv)
	return e
}

// set makes kv the latest version.
func (e *entry) set(kv *mvccpb.KeyValue) {
	e.latest, e.mod = kv, kv.ModRevision
	if !live(kv) {
		e.mod = -e.mod
	}
}

// liveAt tells whether the key had a value at revision rev.
func (e entry) liveAt(rev int64) bool {
	if e.mod > 0 && e.mod <= rev {
		return true
	}
	if e.mod < 0 && -e.mod <= rev {
		return false
	}
	return live(e.at(rev))
}

// at returns the version that was current at revision rev, which may be a
// tombstone; nil when the key did not exist yet.
func (e entry) at(rev int64) *mvccpb.KeyValue {
	if e.latest.ModRevision <= rev {
		return e.latest
	}
	i := sort.Search(len(e.older), func(i int) bool { return e.older[i].ModRevision > rev })
	if i == 0 {
		return nil
	}
	return e.older[i-1]
}

// oldest returns the oldest retained version.
func (e entry) oldest() *mvccpb.KeyValue {
	if len(e.older) > 0 {
		return e.older[0]
	}
	return e.latest
}

// live tells a version that has a value from a tombstone and from none.
func live(kv *mvccpb.KeyValue) bool { return kv != nil && kv.Version > 0 }

func cost(kv *mvccpb.KeyValue) int64 { return int64(len(kv.Key)+len(kv.Value)) + versionCost }

// keyString is b as a string without a copy. Keys are never changed once the
// store has them, and a lookup keeps nothing.
func keyString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// leaseKey says that the latest version of key is attached to lease.
type leaseKey struct {
	lease int64
	key   string
}

func lessLeaseKey(a, b leaseKey) bool {
	if a.lease != b.lease {
		return a.lease < b.lease
	}
	return a.key < b.key
}

// state is everything that is replicated. The writer changes its own copy in
// place; fork gives readers one that never changes.
type state struct {
	rev        int64
	compactRev int64 // -1: never compacted, as in etcd
	size       int64

	keys *btree.Map[string, entry]
	log  changeLog

	leases    *btree.Map[int64, Lease]
	leaseKeys *btree.BTreeG[leaseKey]

	alarms         []alarm  // sorted, replaced when changed
	members        []Member // sorted by ID, replaced when changed
	clusterVersion string
	auth           *Auth // replaced when changed
}

func newState() *state {
	return &state{
		rev:        1,
		compactRev: -1,
		keys:       btree.NewMap[string, entry](keyDegree),
		leases:     btree.NewMap[int64, Lease](0),
		leaseKeys:  btree.NewBTreeGOptions(lessLeaseKey, btree.Options{NoLocks: true}),
		auth:       newAuth(),
	}
}

// fork returns an immutable copy in O(1); later writes to st copy the nodes
// they touch.
func (st *state) fork() *state {
	c := *st
	c.keys = st.keys.Copy()
	c.leases = st.leases.Copy()
	c.leaseKeys = st.leaseKeys.Copy()
	return &c
}

// span is a set of keys: one key, or [key, end), or everything from key on.
type span struct {
	key, end string
	single   bool
	toEnd    bool
}

// newSpan reads etcd's key and range_end convention.
func newSpan(key, rangeEnd []byte) span {
	switch {
	case len(rangeEnd) == 0:
		return span{key: keyString(key), single: true}
	case len(rangeEnd) == 1 && rangeEnd[0] == 0:
		return span{key: keyString(key), toEnd: true}
	}
	return span{key: keyString(key), end: keyString(rangeEnd)}
}

func (sp span) contains(key string) bool {
	if sp.single {
		return key == sp.key
	}
	return key >= sp.key && (sp.toEnd || key < sp.end)
}

// scan calls f for every key of sp that exists at revision rev, in order,
// until f returns false.
func (st *state) scan(sp span, rev int64, f func(kv *mvccpb.KeyValue) bool) {
	if sp.single {
		if e, ok := st.keys.Get(sp.key); ok {
			if kv := e.at(rev); live(kv) {
				f(kv)
			}
		}
		return
	}
	st.keys.Ascend(sp.key, func(key string, e entry) bool {
		if !sp.toEnd && key >= sp.end {
			return false
		}
		if kv := e.at(rev); live(kv) {
			return f(kv)
		}
		return true
	})
}

// count returns the number of keys of sp that exist at revision rev.
func (st *state) count(sp span, rev int64) (n int64) {
	if sp.single {
		if e, ok := st.keys.Get(sp.key); ok && e.liveAt(rev) {
			n++
		}
		return n
	}
	st.keys.Ascend(sp.key, func(key string, e entry) bool {
		if !sp.toEnd && key >= sp.end {
			return false
		}
		if e.liveAt(rev) {
			n++
		}
		return true
	})
	return n
}

// get returns the version of key that is live at revision rev, or nil.
func (st *state) get(key []byte, rev int64) *mvccpb.KeyValue {
	e, ok := st.keys.Get(keyString(key))
	if !ok {
		return nil
	}
	if kv := e.at(rev); live(kv) {
		return kv
	}
	return nil
}

// tx is one request's writes: all of them get revision begin+1.
type tx struct {
	st    *state
	begin int64
	mark  int // length of the log before the first write
}

func (st *state) begin() tx { return tx{st: st, begin: st.rev, mark: st.log.n} }

func (t *tx) changed() bool { return t.st.log.n > t.mark }

// rev is the revision that reads inside the transaction see.
func (t *tx) rev() int64 {
	if t.changed() {
		return t.begin + 1
	}
	return t.begin
}

// end makes the writes current and returns the store's revision.
func (t *tx) end() int64 {
	t.st.rev = t.rev()
	return t.st.rev
}

func (t *tx) put(key, value []byte, lease int64) int64 {
	st, rev := t.st, t.begin+1
	kv := &mvccpb.KeyValue{Key: key, Value: value, Lease: lease, CreateRevision: rev, ModRevision: rev, Version: 1}
	e, ok := st.keys.Get(keyString(key))
	if ok {
		kv.Key = e.latest.Key
		if live(e.latest) {
			kv.CreateRevision = e.latest.CreateRevision
			kv.Version = e.latest.Version + 1
			if e.latest.Lease != lease {
				st.detach(e.latest)
			}
		}
		e.older = append(e.older, e.latest)
	}
	e.set(kv)
	st.keys.Set(keyString(kv.Key), e)
	st.log.append(kv)
	st.size += cost(kv)
	if lease != 0 {
		st.leaseKeys.Set(leaseKey{lease, keyString(kv.Key)})
	}
	return rev
}

// deleteRange deletes the live keys of sp and returns how many there were and
// the revision that the deletion, or the transaction so far, has.
func (t *tx) deleteRange(sp span) (int64, int64) {
	var doomed []*mvccpb.KeyValue
	t.st.scan(sp, t.begin+1, func(kv *mvccpb.KeyValue) bool {
		doomed = append(doomed, kv)
		return true
	})
	for _, kv := range doomed {
		t.delete(kv)
	}
	return int64(len(doomed)), t.rev()
}

// delete replaces the live version kv by a tombstone.
func (t *tx) delete(kv *mvccpb.KeyValue) {
	st := t.st
	e, _ := st.keys.Get(keyString(kv.Key))
	tomb := &mvccpb.KeyValue{Key: kv.Key, ModRevision: t.begin + 1}
	st.detach(kv)
	e.older = append(e.older, e.latest)
	e.set(tomb)
	st.keys.Set(keyString(kv.Key), e)
	st.log.append(tomb)
	st.size += cost(tomb)
}

func (st *state) detach(kv *mvccpb.KeyValue) {
	if kv.Lease != 0 {
		st.leaseKeys.Delete(leaseKey{kv.Lease, keyString(kv.Key)})
	}
}

// compact forgets what no read at revision rev or later can see. Only keys
// that changed since the last compaction can have something to forget, so the
// history says where to look.
//
// The changes made at rev itself stay in the history, tombstones too: a watch
// may still start there.
func (st *state) compact(rev int64) {
	for i := 0; i < st.log.n; i++ {
		kv := st.log.at(i)
		if kv.ModRevision > rev {
			break
		}
		st.prune(keyString(kv.Key), rev)
	}
	st.log.trim(st.log.seek(rev))
	st.compactRev = rev
}

// prune drops the versions of key that were replaced at or before rev.
func (st *state) prune(key string, rev int64) {
	e, ok := st.keys.Get(key)
	if !ok {
		return
	}
	if e.latest.ModRevision <= rev {
		for _, kv := range e.older {
			st.size -= cost(kv)
		}
		if !live(e.latest) {
			st.size -= cost(e.latest)
			st.keys.Delete(key)
			return
		}
		if len(e.older) > 0 {
			st.keys.Set(key, newEntry(e.latest))
		}
		return
	}
	// older[:keep] were replaced at or before rev.
	keep := sort.Search(len(e.older), func(i int) bool { return e.older[i].ModRevision > rev }) - 1
	if keep < 0 {
		return
	}
	if !live(e.older[keep]) {
		keep++
	}
	if keep == 0 {
		return
	}
	for _, kv := range e.older[:keep] {
		st.size -= cost(kv)
	}
	e.older = append([]*mvccpb.KeyValue(nil), e.older[keep:]...)
	st.keys.Set(key, e)
}

// prefixEnd returns the end of the range of all keys that start with prefix;
// nil when there is none but the end of the keyspace.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}
