package store

import (
	"io"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Restore replaces the state by a snapshot that WriteTo wrote. It reads r up
// to the snapshot's end and not beyond. On an error, which says what is wrong
// and where, the state is untouched.
//
// Watchers go on: each continues after what it has read. One that needs events
// which the snapshot no longer has gets a CompactedError, and all that have
// seen more than the snapshot holds get ErrRevisionWentBack.
func (s *Store) Restore(r io.Reader) error { return s.RestoreBeside(r, inTurn) }

// RestoreBeside is Restore by several processors. each runs the functions that it
// is given, in any order or side by side, and returns when all have returned.
func (s *Store) RestoreBeside(r io.Reader, each func(...func())) error {
	st, err := decodeState(r, each)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.cur.rev
	s.cur = st
	s.auth.Store(st.auth)
	s.published.Store(nil)
	for _, w := range s.watches.all() {
		if w.restored(before, st) != nil {
			s.watches.remove(w)
		}
		w.signal()
	}
	s.leaseChanged(LeasesReset, Lease{})
	s.tokensChanged(TokenChange{Kind: AllTokensEnded})
	return nil
}

func inTurn(fs ...func()) {
	for _, f := range fs {
		f()
	}
}

// batchBytes is how much of a snapshot is read, decoded and loaded at a time.
const batchBytes = 4 << 20

// batch is some frames of a snapshot, in order. Its buffers are used again.
type batch struct {
	frames []*frame
	n      int   // frames of this round
	err    error // after those, of reading
	last   bool  // nothing comes after them
}

// decodeState reads, decodes and loads at the same time: while a batch is being
// read, the one before is decoded and the one before that is loaded.
func decodeState(r io.Reader, each func(...func())) (*state, error) {
	f := &frameReader{r: r}
	if err := f.header(); err != nil {
		return nil, err
	}
	l := &loader{st: newState()}
	var loaded error
	reading, decoding, loading := &batch{}, &batch{}, &batch{}
	for {
		work := []func(){func() { loaded = l.batch(loading) }}
		if !decoding.last && !loading.last {
			work = append(work, func() { f.batch(reading) })
		}
		for _, fr := range decoding.frames[:decoding.n] {
			work = append(work, fr.decode)
		}
		each(work...)
		if loaded != nil {
			return nil, loaded
		}
		if loading.last {
			return l.finish(f.off)
		}
		reading, decoding, loading = loading, reading, decoding
		reading.n, reading.err, reading.last = 0, nil, false
	}
}

// batch fills b.
func (f *frameReader) batch(b *batch) {
	for bytes := 0; bytes < batchBytes; {
		if b.n == len(b.frames) {
			b.frames = append(b.frames, &frame{})
		}
		fr := b.frames[b.n]
		if b.err = f.next(fr); b.err != nil {
			b.last = true
			return
		}
		b.n++
		bytes += len(fr.payload)
		if fr.kind == frameEnd {
			b.last = true
			return
		}
	}
}

// frame is one frame, and what is in it.
type frame struct {
	kind    frameKind
	off     int64 // of the payload in the stream
	payload []byte
	kvs     []*mvccpb.KeyValue // of versions and changes, as far as they are whole
	rest    decoder            // after those
}

// decode reads the versions in the frame.
func (fr *frame) decode() {
	clear(fr.kvs)
	fr.kvs = fr.kvs[:0]
	if fr.kind != frameVersions && fr.kind != frameChanges {
		return
	}
	d := fr.decoder()
	for d.more() {
		if kv := d.version(); !d.bad {
			fr.kvs = append(fr.kvs, kv)
		}
	}
	fr.rest = *d
}

func (fr *frame) decoder() *decoder { return &decoder{b: fr.payload, off: fr.off} }

// place is where version n begins in the stream.
func (fr *frame) place(n int) int64 {
	d := fr.decoder()
	for range n {
		d.version()
	}
	return d.off
}

// loader builds a state from frames in order.
type loader struct {
	st                        *state
	last                      frameKind
	leases, versions, changes uint64
	lastLease                 int64
	lastKey                   string
	lastRev                   int64
}

func (l *loader) batch(b *batch) error {
	for _, fr := range b.frames[:b.n] {
		once := fr.kind == frameMeta || fr.kind == frameAuth || fr.kind == frameEnd
		if l.last == 0 && fr.kind != frameMeta || l.last != 0 && fr.kind.place() < l.last.place() || fr.kind == l.last && once {
			return damaged(fr.off, "a frame of %s is out of place", fr.kind)
		}
		l.last = fr.kind
		if err := l.frame(fr); err != nil {
			return err
		}
	}
	return b.err
}

func (l *loader) frame(fr *frame) error {
	d := fr.decoder()
	switch fr.kind {
	case frameMeta:
		l.meta(d)
		if !d.bad && (l.st.rev < 1 || l.st.compactRev < -1 || l.st.compactRev > l.st.rev) {
			return damaged(d.off, "revision %d with compact revision %d", l.st.rev, l.st.compactRev)
		}
	case frameAuth:
		a := d.auth()
		if !d.bad && !a.ordered() {
			return damaged(d.off, "users or roles are out of order")
		}
		l.st.auth = a
	case frameLeases:
		for d.more() {
			at := d.off
			lease := Lease{ID: d.int(), TTL: d.int(), Remaining: d.int()}
			if !d.bad && (l.leases > 0 && lease.ID <= l.lastLease || lease.ID == 0) {
				return damaged(at, "lease %x is out of order", lease.ID)
			}
			l.lastLease = lease.ID
			l.leases++
			l.st.leases.Load(lease.ID, lease)
		}
	case frameVersions:
		for i, kv := range fr.kvs {
			if !l.version(kv) {
				return damaged(fr.place(i), "version of key %q at revision %d is out of place", kv.Key, kv.ModRevision)
			}
		}
		d = &fr.rest
	case frameChanges:
		for i, kv := range fr.kvs {
			if !l.change(kv) {
				return damaged(fr.place(i), "change of key %q at revision %d is out of place", kv.Key, kv.ModRevision)
			}
			l.changes++
		}
		d = &fr.rest
	case frameEnd:
		leases, versions, changes := d.uint(), d.uint(), d.uint()
		if !d.bad && (leases != l.leases || versions != l.versions || changes != l.changes) {
			return damaged(d.off, "it has %d leases, %d versions, %d changes and says %d, %d, %d",
				l.leases, l.versions, l.changes, leases, versions, changes)
		}
	default:
		return damaged(d.off, "unknown frame of %s", fr.kind)
	}
	return d.done(fr.kind)
}

// version takes a version that is older than the compact revision; false when it
// cannot follow the one before.
func (l *loader) version(kv *mvccpb.KeyValue) bool {
	if !live(kv) || len(kv.Key) == 0 || l.versions > 0 && string(kv.Key) <= l.lastKey ||
		kv.ModRevision < 1 || kv.ModRevision >= l.st.compactRev || kv.CreateRevision > kv.ModRevision {
		return false
	}
	l.lastKey = keyString(kv.Key)
	l.versions++
	l.st.keys.Load(l.lastKey, newEntry(kv))
	l.st.size += cost(kv)
	return true
}

func (l *loader) meta(d *decoder) {
	st := l.st
	st.rev = d.int()
	st.compactRev = d.int()
	st.clusterVersion = string(d.bytes())
	for n := d.count(); n > 0; n-- {
		st.alarms = append(st.alarms, alarm{kind: pb.AlarmType(d.uint()), member: d.uint()})
	}
	for n := d.count(); n > 0; n-- {
		m := Member{ID: d.uint(), Name: string(d.bytes())}
		for u := d.count(); u > 0; u-- {
			m.ClientURLs = append(m.ClientURLs, string(d.bytes()))
		}
		st.members = append(st.members, m)
	}
	// Sorted already, unless the snapshot lies.
	slices.SortFunc(st.alarms, compareAlarms)
	slices.SortFunc(st.members, func(a, b Member) int { return compareMember(a, b.ID) })
}

// change makes one change of the history anew; false when it cannot follow
// what came before.
func (l *loader) change(kv *mvccpb.KeyValue) bool {
	st, rev := l.st, kv.ModRevision
	if len(kv.Key) == 0 || rev < max(l.lastRev, st.compactRev, 1) || rev > st.rev || kv.Version < 0 || kv.CreateRevision > rev {
		return false
	}
	l.lastRev = rev
	key := keyString(kv.Key)
	e, ok := st.keys.Get(key)
	if ok {
		kv.Key = e.latest.Key
		key = keyString(kv.Key)
	}
	st.log.append(kv)
	if rev <= st.compactRev {
		// What was replaced at the compact revision is forgotten.
		if ok {
			st.size -= cost(e.latest)
		}
		if !live(kv) {
			st.keys.Delete(key)
			return true
		}
		e = newEntry(kv)
	} else {
		if ok {
			e.older = append(e.older, e.latest)
		} else if !live(kv) {
			return false // a tombstone follows a version
		}
		e.set(kv)
	}
	st.size += cost(kv)
	st.keys.Set(key, e)
	return true
}

// finish attaches keys to leases.
func (l *loader) finish(off int64) (*state, error) {
	st := l.st
	var orphan *mvccpb.KeyValue
	st.keys.Scan(func(key string, e entry) bool {
		kv := e.latest
		if !live(kv) || kv.Lease == 0 {
			return true
		}
		if _, ok := st.leases.Get(kv.Lease); !ok {
			orphan = kv
			return false
		}
		st.leaseKeys.Set(leaseKey{kv.Lease, key})
		return true
	})
	if orphan != nil {
		return nil, damaged(off, "key %q has lease %x, which is not in it", orphan.Key, orphan.Lease)
	}
	return st, nil
}
