package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// The snapshot format, versions 1 and 2. All fixed-size numbers are big endian, the
// others are unsigned varints (signed ones zigzag, as in encoding/binary).
//
//	magic "tripodSN", version uint32, checksum uint32
//	frame*: kind byte, length uint32, payload, checksum uint32
//
// Each checksum is the CRC-32C of everything from the first byte of the
// stream up to it, so that no frame can be damaged, lost, repeated or moved
// unnoticed. Frames come in this order; those of leases, versions and changes
// may be several or none:
//
//	meta      revision, compact revision, cluster version, alarms, members
//	auth      whether enabled, auth revision, logins, users, roles
//	leases    (ID, TTL, remaining)*, ascending
//	versions  versions older than the compact revision: one a key, by key
//	changes   the history from the compact revision on, in order
//	end       number of leases, versions, changes
//
// The auth frame is what version 2 adds. A state in which nothing was ever done
// about users and roles is written without it, as version 1, which programs
// that know no other version read too.
const (
	snapshotMagic   = "tripodSN"
	snapshotVersion = 2
	frameTarget     = 256 << 10
)

type frameKind byte

const (
	frameMeta frameKind = iota + 1
	frameLeases
	frameVersions
	frameChanges
	frameEnd
	frameAuth // of version 2, hence the number
)

// frameOrder is the order of the frames.
var frameOrder = [...]frameKind{frameMeta, frameAuth, frameLeases, frameVersions, frameChanges, frameEnd}

// place is a frame's place in that order, from 0 on; one that is not known
// comes last.
func (k frameKind) place() int {
	for i, o := range frameOrder {
		if o == k {
			return i
		}
	}
	return len(frameOrder)
}

func (k frameKind) String() string {
	names := [...]string{"", "meta", "leases", "versions", "changes", "end", "auth"}
	if int(k) < len(names) && k > 0 {
		return names[k]
	}
	return fmt.Sprintf("kind %d", byte(k))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encoder writes the format. err is sticky.
type encoder struct {
	w    io.Writer
	n    int64
	err  error
	sum  uint32
	kind frameKind
	buf  []byte // payload of the frame being filled
}

func (e *encoder) state(st *state) {
	e.raw([]byte(snapshotMagic))
	version := uint32(1)
	if !st.auth.untouched() {
		version = snapshotVersion
	}
	e.raw(binary.BigEndian.AppendUint32(nil, version))
	e.checksum()

	e.kind = frameMeta
	e.int(st.rev)
	e.int(st.compactRev)
	e.bytes([]byte(st.clusterVersion))
	e.uint(uint64(len(st.alarms)))
	for _, a := range st.alarms {
		e.uint(uint64(a.kind))
		e.uint(a.member)
	}
	e.uint(uint64(len(st.members)))
	for _, m := range st.members {
		e.uint(m.ID)
		e.bytes([]byte(m.Name))
		e.uint(uint64(len(m.ClientURLs)))
		for _, u := range m.ClientURLs {
			e.bytes([]byte(u))
		}
	}
	e.flush()
	if !st.auth.untouched() {
		e.kind = frameAuth
		e.auth(st.auth)
		e.flush()
	}

	var leases, versions, changes uint64
	e.kind = frameLeases
	st.leases.Scan(func(_ int64, l Lease) bool {
		leases++
		e.int(l.ID)
		e.int(l.TTL)
		e.int(l.Remaining)
		return e.more()
	})
	e.flush()
	e.kind = frameVersions
	st.keys.Scan(func(_ string, ent entry) bool {
		if kv := ent.oldest(); kv.ModRevision < st.compactRev {
			versions++
			e.version(kv)
		}
		return e.more()
	})
	e.flush()
	e.kind = frameChanges
	for i := 0; i < st.log.n && e.err == nil; i++ {
		changes++
		e.version(st.log.at(i))
		e.more()
	}
	e.flush()

	e.kind = frameEnd
	e.uint(leases)
	e.uint(versions)
	e.uint(changes)
	e.flush()
}

func (e *encoder) version(kv *mvccpb.KeyValue) {
	e.bytes(kv.Key)
	e.int(kv.ModRevision)
	e.int(kv.Version)
	if kv.Version == 0 {
		return // a tombstone has nothing else
	}
	e.int(kv.CreateRevision)
	e.int(kv.Lease)
	e.bytes(kv.Value)
}

func (e *encoder) uint(v uint64) { e.buf = binary.AppendUvarint(e.buf, v) }
func (e *encoder) int(v int64)   { e.buf = binary.AppendVarint(e.buf, v) }
func (e *encoder) bytes(b []byte) {
	e.uint(uint64(len(b)))
	e.buf = append(e.buf, b...)
}

// more ends the frame when it is long enough; it returns false on an error.
func (e *encoder) more() bool {
	if len(e.buf) >= frameTarget {
		e.flush()
	}
	return e.err == nil
}

// flush writes the frame, unless nothing is in it.
func (e *encoder) flush() {
	if len(e.buf) == 0 {
		return
	}
	e.raw(binary.BigEndian.AppendUint32([]byte{byte(e.kind)}, uint32(len(e.buf))))
	e.raw(e.buf)
	e.checksum()
	e.buf = e.buf[:0]
}

func (e *encoder) raw(b []byte) {
	e.sum = crc32.Update(e.sum, castagnoli, b)
	e.write(b)
}

// checksum writes the sum of what came before; it is not part of later sums.
func (e *encoder) checksum() { e.write(binary.BigEndian.AppendUint32(nil, e.sum)) }

func (e *encoder) write(b []byte) {
	if e.err != nil {
		return
	}
	n, err := e.w.Write(b)
	e.n += int64(n)
	if err != nil {
		e.err = fmt.Errorf("write snapshot at byte %d: %w", e.n, err)
	}
}

// ErrDamagedSnapshot is wrapped by every error of Restore that is about the
// snapshot's content, and not about reading it.
var ErrDamagedSnapshot = errors.New("snapshot is damaged: take another one, from another peer or an earlier backup")

// frameReader reads the format's frames and checks their sums.
type frameReader struct {
	r   io.Reader
	off int64 // bytes read
	sum uint32

	small [len(snapshotMagic) + 4]byte // heads and checksums, one at a time
}

func damaged(off int64, format string, args ...any) error {
	return fmt.Errorf("read snapshot: byte %d: %s: %w", off, fmt.Sprintf(format, args...), ErrDamagedSnapshot)
}

// read reads n bytes into b's memory, and more of it as needed; what names them in
// errors. Memory grows with what was read, not with what a damaged length promises.
func (f *frameReader) read(b []byte, n int64, what string) ([]byte, error) {
	const step = 1 << 20
	b = b[:0]
	for int64(len(b)) < n {
		at := len(b)
		b = slices.Grow(b, int(min(n-int64(at), step)))
		b = b[:min(int64(cap(b)), n)]
		got, err := io.ReadFull(f.r, b[at:])
		f.off += int64(got)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, damaged(f.off, "it ends within %s", what)
		}
		if err != nil {
			return nil, fmt.Errorf("read snapshot: byte %d: %s: %w", f.off, what, err)
		}
	}
	return b, nil
}

func (f *frameReader) checksum(what string) error {
	start := f.off
	b, err := f.read(f.small[:], 4, "the checksum of "+what)
	if err != nil {
		return err
	}
	if got := binary.BigEndian.Uint32(b); got != f.sum {
		return damaged(start, "checksum of %s is %08x, its bytes give %08x", what, got, f.sum)
	}
	return nil
}

func (f *frameReader) header() error {
	b, err := f.read(nil, int64(len(snapshotMagic)+4), "the header")
	if err != nil {
		return err
	}
	f.sum = crc32.Update(0, castagnoli, b)
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return damaged(0, "it does not begin with %q, so it is no snapshot of this store", snapshotMagic)
	}
	if err := f.checksum("the header"); err != nil {
		return err
	}
	if v := binary.BigEndian.Uint32(b[len(snapshotMagic):]); v == 0 || v > snapshotVersion {
		return fmt.Errorf("read snapshot: format version %d, this program reads versions up to %d: use the version of the program that wrote it", v, snapshotVersion)
	}
	return nil
}

// next reads one frame into fr.
func (f *frameReader) next(fr *frame) error {
	head, err := f.read(f.small[:], 5, "a frame's head")
	if err != nil {
		return err
	}
	fr.kind = frameKind(head[0])
	n := binary.BigEndian.Uint32(head[1:])
	f.sum = crc32.Update(f.sum, castagnoli, head)
	what := fmt.Sprintf("the frame of %s at byte %d", fr.kind, f.off-5)
	fr.off = f.off
	if fr.payload, err = f.read(fr.payload, int64(n), what); err != nil {
		return err
	}
	f.sum = crc32.Update(f.sum, castagnoli, fr.payload)
	return f.checksum(what)
}

// decoder reads a payload. bad is sticky, and reads after it give zeros.
type decoder struct {
	b   []byte
	off int64 // place of b in the stream
	bad bool
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	b := d.b[:n:n]
	d.b, d.off = d.b[n:], d.off+int64(n)
	return b
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		n = -1
	}
	d.take(n)
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		n = -1
	}
	d.take(n)
	return v
}

// bytes returns a copy, nil for none: a frame must not live on in one value.
func (d *decoder) bytes() []byte {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.take(-1)
		return nil
	}
	return append([]byte(nil), d.take(int(n))...)
}

// count reads the number of records that follow, each of at least a byte.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.take(-1)
		return 0
	}
	return int(n)
}

func (d *decoder) version() *mvccpb.KeyValue {
	kv := &mvccpb.KeyValue{Key: d.bytes(), ModRevision: d.int(), Version: d.int()}
	if kv.Version != 0 {
		kv.CreateRevision = d.int()
		kv.Lease = d.int()
		kv.Value = d.bytes()
	}
	return kv
}

// more tells whether there are records left.
func (d *decoder) more() bool { return len(d.b) > 0 && !d.bad }

func (d *decoder) done(what frameKind) error {
	if d.bad {
		return damaged(d.off, "a record of %s is cut off", what)
	}
	if len(d.b) > 0 {
		return damaged(d.off, "%d bytes too many in %s", len(d.b), what)
	}
	return nil
}
