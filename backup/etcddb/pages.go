package etcddb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"

	"github.com/tripod-cluster/tripod/store"
)

// The format of bbolt, version 2, as it is on little-endian machines. A page
// begins with its ID (8 bytes), flags, number of elements (2 each) and number of
// pages that follow as part of it (4). A branch element is position, key size (4
// each) and page (8); a leaf element flags, position, key size, value size (4
// each); positions count from the element. The value of a leaf element that is a
// bucket is its root page and sequence (8 each); with root 0, its one page
// follows right there.
const (
	pageHeaderSize = 16
	elementSize    = 16
	bucketSize     = 16
	metaSize       = 64

	metaMagic   = 0xED0CDAED
	metaVersion = 2

	branchPage   = 0x01
	leafPage     = 0x02
	metaPage     = 0x04
	freelistPage = 0x10
	bucketEntry  = 0x01

	// maxDepth is far above what a file of any size needs.
	maxDepth = 64
)

var le = binary.LittleEndian

// pages walks the B+trees of a bbolt file.
type pages struct {
	r    io.ReaderAt
	name string // for errors
	size int64  // bytes, without the checksum of a snapshot

	pageSize int64
	root     uint64
	high     uint64 // no page is at or beyond
	seen     []byte // a bit for each page that was read
}

// damaged is what is wrong at a byte of the file.
func (p *pages) damaged(off int64, format string, args ...any) error {
	return fmt.Errorf("%s: byte %d: %s: %w", p.name, off, fmt.Sprintf(format, args...), store.ErrDamagedSnapshot)
}

// openPages finds the newer valid meta page.
func openPages(r io.ReaderAt, size int64, name string) (*pages, error) {
	p := &pages{r: r, name: name, size: size}
	var best uint64
	found := false
	take := func(off int64) error {
		b := make([]byte, pageHeaderSize+metaSize)
		if off+int64(len(b)) > size {
			return nil
		}
		if _, err := r.ReadAt(b, off); err != nil {
			return fmt.Errorf("read %s: byte %d: %w", name, off, err)
		}
		m := b[pageHeaderSize:]
		pageSize := int64(le.Uint32(m[8:]))
		h := fnv.New64a()
		h.Write(m[:metaSize-8])
		if le.Uint16(b[8:]) != metaPage || le.Uint32(m) != metaMagic || le.Uint32(m[4:]) != metaVersion || h.Sum64() != le.Uint64(m[metaSize-8:]) ||
			pageSize < 512 || pageSize > 1<<20 || pageSize&(pageSize-1) != 0 || off != 0 && off != pageSize {
			return nil
		}
		if txid := le.Uint64(m[48:]); !found || txid > best {
			found, best = true, txid
			p.pageSize, p.root, p.high = pageSize, le.Uint64(m[16:]), le.Uint64(m[40:])
		}
		return nil
	}
	if err := take(0); err != nil {
		return nil, err
	}
	// The second one is at the second page, whose place the first one tells; it
	// may be the first that is damaged.
	for at := int64(512); at <= 1<<20; at *= 2 {
		if err := take(at); err != nil {
			return nil, err
		}
	}
	switch {
	case !found:
		return nil, p.damaged(0, "it does not begin as a database of etcd (bbolt): neither of its two meta pages is whole")
	case p.high > uint64(size/p.pageSize):
		return nil, p.damaged(size, "it ends here, and should have %d pages of %d bytes", p.high, p.pageSize)
	}
	p.seen = make([]byte, p.high/8+1)
	return p, nil
}

// page reads a page that was not read before. off is where it begins.
func (p *pages) page(id uint64) (b []byte, off int64, err error) {
	off = int64(id) * p.pageSize
	if id < 2 || id >= p.high {
		return nil, 0, p.damaged(0, "page %d of %d is referred to", id, p.high)
	}
	if err := p.once(id, off); err != nil {
		return nil, 0, err
	}
	b = make([]byte, p.pageSize)
	if _, err := p.r.ReadAt(b, off); err != nil {
		return nil, 0, fmt.Errorf("read %s: byte %d: %w", p.name, off, err)
	}
	if got := le.Uint64(b); got != id {
		return nil, 0, p.damaged(off, "page %d says that it is page %d", id, got)
	}
	more := uint64(le.Uint32(b[12:]))
	if more == 0 {
		return b, off, nil
	}
	if more >= p.high-id {
		return nil, 0, p.damaged(off, "page %d claims %d more pages of %d", id, more, p.high)
	}
	for i := range more {
		if err := p.once(id+1+i, off); err != nil {
			return nil, 0, err
		}
	}
	b = make([]byte, int64(more+1)*p.pageSize)
	if _, err := p.r.ReadAt(b, off); err != nil {
		return nil, 0, fmt.Errorf("read %s: byte %d: %w", p.name, off, err)
	}
	return b, off, nil
}

// once marks a page as read, for the page at off.
func (p *pages) once(id uint64, off int64) error {
	if p.seen[id/8]&(1<<(id%8)) != 0 {
		return p.damaged(off, "page %d is referred to twice", id)
	}
	p.seen[id/8] |= 1 << (id % 8)
	return nil
}

// entry is a key and a value, or a bucket, at a byte of the file.
type entry struct {
	key, value []byte
	bucket     bool
	off        int64
}

// walk calls f for the entries of the tree at page root, in order of their keys.
// The slices are f's own.
func (p *pages) walk(root uint64, f func(entry) error) error {
	var last []byte
	return p.tree(root, 0, &last, f)
}

func (p *pages) tree(id uint64, depth int, last *[]byte, f func(entry) error) error {
	b, off, err := p.page(id)
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return p.damaged(off, "page %d is %d levels deep", id, depth)
	}
	if le.Uint16(b[8:]) == leafPage {
		return p.leaf(b, off, last, f)
	}
	n := int(le.Uint16(b[10:]))
	if le.Uint16(b[8:]) != branchPage || n == 0 {
		return p.damaged(off, "page %d is neither branch nor leaf (flags %#x, %d elements)", id, le.Uint16(b[8:]), n)
	}
	for i := range n {
		at := pageHeaderSize + i*elementSize
		if at+elementSize > len(b) {
			return p.damaged(off, "page %d has no room for its %d elements", id, n)
		}
		key, ok := slice(b, at, uint64(le.Uint32(b[at:])), uint64(le.Uint32(b[at+4:])))
		if !ok {
			return p.damaged(off+int64(at), "element %d of page %d lies outside of it", i, id)
		}
		if *last != nil && i > 0 && bytes.Compare(key, *last) <= 0 {
			return p.damaged(off+int64(at), "element %d of page %d is out of order", i, id)
		}
		if err := p.tree(le.Uint64(b[at+8:]), depth+1, last, f); err != nil {
			return err
		}
	}
	return nil
}

// leaf calls f for the entries of a leaf page; off is where b is in the file.
func (p *pages) leaf(b []byte, off int64, last *[]byte, f func(entry) error) error {
	n := int(le.Uint16(b[10:]))
	for i := range n {
		at := pageHeaderSize + i*elementSize
		if at+elementSize > len(b) {
			return p.damaged(off, "a leaf page has no room for its %d elements", n)
		}
		pos, klen, vlen := uint64(le.Uint32(b[at+4:])), uint64(le.Uint32(b[at+8:])), uint64(le.Uint32(b[at+12:]))
		kv, ok := slice(b, at, pos, klen+vlen)
		if !ok {
			return p.damaged(off+int64(at), "element %d of a leaf page lies outside of it", i)
		}
		e := entry{key: kv[:klen:klen], value: kv[klen:], bucket: le.Uint32(b[at:])&bucketEntry != 0, off: off + int64(at) + int64(pos)}
		if *last != nil && bytes.Compare(e.key, *last) <= 0 {
			return p.damaged(e.off, "key %q comes after %q", e.key, *last)
		}
		*last = e.key
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}

// slice is n bytes of b, pos behind at.
func slice(b []byte, at int, pos, n uint64) ([]byte, bool) {
	from := uint64(at) + pos
	if from > uint64(len(b)) || n > uint64(len(b))-from {
		return nil, false
	}
	return b[from : from+n : from+n], true
}

// buckets returns the buckets of the file by name.
func (p *pages) buckets() (map[string]entry, error) {
	out := map[string]entry{}
	err := p.walk(p.root, func(e entry) error {
		if !e.bucket || len(e.value) < bucketSize {
			return p.damaged(e.off, "%q is not a bucket", e.key)
		}
		out[string(e.key)] = e
		return nil
	})
	return out, err
}

// each calls f for the entries of a bucket, in order.
func (p *pages) each(bucket entry, f func(entry) error) error {
	plain := func(e entry) error {
		if e.bucket {
			return p.damaged(e.off, "a bucket is within the bucket %q", bucket.key)
		}
		return f(e)
	}
	if root := le.Uint64(bucket.value); root != 0 {
		return p.walk(root, plain)
	}
	at := bucket.off + int64(len(bucket.key)) + bucketSize
	page := bucket.value[bucketSize:]
	if len(page) < pageHeaderSize || le.Uint16(page[8:]) != leafPage {
		return p.damaged(at, "the bucket %q holds no leaf page", bucket.key)
	}
	var last []byte
	return p.leaf(page, at, &last, plain)
}
