package etcddb

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/fnv"
)

// filePageSize is the size of a page in the files that are written, in bytes: that
// of bbolt on the machines that etcd runs on. A reader takes it from the file.
const filePageSize = 4096

// maxKeySize is the longest key that bbolt takes, in bytes.
const maxKeySize = 32768

// pageWriter gives pages their numbers, one after the other, and writes them in that
// order, each once. Without out it only counts them. The two meta pages, which come
// first, say where the root is and how many pages there are: so what is written is
// counted before.
type pageWriter struct {
	out      *bufio.Writer
	pageSize int
	next     uint64 // the page that is written next
	head     [pageHeaderSize]byte
	zeros    []byte // a page of them
}

// layout is what a count of the pages gives: the page of the bucket that holds all
// others, the page of the freelist, and the number of pages.
type layout struct{ root, freelist, high uint64 }

// newPageWriter returns one that counts, or with out one that writes.
func newPageWriter(out *bufio.Writer, pageSize int) *pageWriter {
	return &pageWriter{out: out, pageSize: pageSize, next: 2, zeros: make([]byte, pageSize)}
}

// counts tells whether pages are only counted.
func (w *pageWriter) counts() bool { return w.out == nil }

// page writes a page of n elements, with the size bytes of data that they point to,
// over as many pages as it takes. Only the numbers matter where pages are counted.
func (w *pageWriter) page(flags uint16, n, size int, elements, data []byte) (id uint64, err error) {
	length := pageHeaderSize + n*elementSize + size
	count := (length + w.pageSize - 1) / w.pageSize
	id = w.next
	w.next += uint64(count)
	if w.counts() {
		return id, nil
	}
	for _, b := range [][]byte{pageHeader(w.head[:0], id, flags, n, count-1), elements, data, w.zeros[:count*w.pageSize-length]} {
		if _, err := w.out.Write(b); err != nil {
			return 0, err
		}
	}
	return id, nil
}

func pageHeader(b []byte, id uint64, flags uint16, n, overflow int) []byte {
	b = le.AppendUint64(b, id)
	b = le.AppendUint16(b, flags)
	b = le.AppendUint16(b, uint16(n))
	return le.AppendUint32(b, uint32(overflow))
}

// finish writes an empty freelist, the last page.
func (w *pageWriter) finish(root uint64) (layout, error) {
	freelist, err := w.page(freelistPage, 0, 0, nil, nil)
	return layout{root: root, freelist: freelist, high: w.next}, err
}

// metas writes the two meta pages.
func (w *pageWriter) metas(l layout) error {
	for txid := range uint64(2) { // which is the number of its page, too
		b := make([]byte, 0, w.pageSize)
		b = pageHeader(b, txid, metaPage, 0, 0)
		b = le.AppendUint32(b, metaMagic)
		b = le.AppendUint32(b, metaVersion)
		b = le.AppendUint32(b, uint32(w.pageSize))
		b = le.AppendUint32(b, 0) // flags
		b = appendBucket(b, l.root)
		b = le.AppendUint64(b, l.freelist)
		b = le.AppendUint64(b, l.high)
		b = le.AppendUint64(b, txid)
		h := fnv.New64a()
		h.Write(b[pageHeaderSize:])
		b = le.AppendUint64(b, h.Sum64())
		if _, err := w.out.Write(b[:w.pageSize]); err != nil {
			return err
		}
	}
	return nil
}

// appendBucket appends a bucket with the tree at page root, and sequence 0.
func appendBucket(b []byte, root uint64) []byte {
	return le.AppendUint64(le.AppendUint64(b, root), 0)
}

// tree writes a B+tree from the bottom up, out of keys that come in order: a page is
// written when it is full, and its first key goes to the page above. It holds one
// page of each level in memory. Where it is only counted it takes the same steps, by
// the lengths of what it is given.
type tree struct {
	w      *pageWriter
	levels []*level // the leaves first
	last   []byte   // the last key
}

// level is the page of a level that is being filled. The positions in its elements
// count from the start of data until the page is written. Of a leaf that is only
// counted there are no elements, and no data but the first key.
type level struct {
	n, size        int // elements, and bytes of the keys and values that they point to
	elements, data []byte
	first          int // the length of the first key, with which data begins
}

// put adds a key, which must come after the last one. Key and value are copied.
func (t *tree) put(key, value []byte) error {
	return t.leaf(0, key, len(value), func(b []byte) ([]byte, error) { return append(b, value...), nil })
}

// putEncoded adds a key whose value has n bytes, which encode appends: it is called
// where the tree is written, and not where it is counted.
func (t *tree) putEncoded(key []byte, n int, encode func([]byte) ([]byte, error)) error {
	return t.leaf(0, key, n, encode)
}

// bucket adds a bucket with the tree at page root.
func (t *tree) bucket(name string, root uint64) error {
	return t.leaf(bucketEntry, []byte(name), bucketSize, func(b []byte) ([]byte, error) { return appendBucket(b, root), nil })
}

func (t *tree) leaf(flags uint32, key []byte, n int, encode func([]byte) ([]byte, error)) error {
	switch {
	case len(key) == 0 || len(key) > maxKeySize:
		return fmt.Errorf("a key has %d bytes, and the format has 1 to %d", len(key), maxKeySize)
	case bytes.Compare(key, t.last) <= 0:
		return fmt.Errorf("key %q comes after %q", key, t.last)
	}
	t.last = append(t.last[:0], key...)
	l, err := t.room(0, len(key)+n)
	if err != nil {
		return err
	}
	at := len(l.data)
	if l.count(len(key), n); t.w.counts() {
		if l.n == 1 { // the level above asks for it
			l.data = append(l.data, key...)
		}
		return nil
	}
	l.elements = le.AppendUint32(l.elements, flags)
	l.elements = le.AppendUint32(l.elements, uint32(at))
	l.elements = le.AppendUint32(l.elements, uint32(len(key)))
	l.elements = le.AppendUint32(l.elements, uint32(n))
	if l.data, err = encode(append(l.data, key...)); err != nil {
		return err
	}
	if got := len(l.data) - at - len(key); got != n {
		return fmt.Errorf("the value of key %q has %d bytes, and had %d when it was counted", key, got, n)
	}
	return nil
}

// branch adds the page child, which begins with key, to the level at depth.
func (t *tree) branch(depth int, key []byte, child uint64) error {
	l, err := t.room(depth, len(key))
	if err != nil {
		return err
	}
	l.elements = le.AppendUint32(l.elements, uint32(len(l.data)))
	l.elements = le.AppendUint32(l.elements, uint32(len(key)))
	l.elements = le.AppendUint64(l.elements, child)
	l.data = append(l.data, key...)
	l.count(len(key), 0)
	return nil
}

// count takes an element into account.
func (l *level) count(key, value int) {
	if l.n == 0 {
		l.first = key
	}
	l.n++
	l.size += key + value
}

// room returns the level at depth with room for one more element, of n bytes. What is
// too long for a page goes over several. bbolt wants two children of every branch at
// least, so that the last one of a full branch is kept for the next.
func (t *tree) room(depth, n int) (*level, error) {
	if depth == len(t.levels) {
		t.levels = append(t.levels, &level{})
	}
	l := t.levels[depth]
	keep := min(depth, 1)
	if l.n > 2*keep && pageHeaderSize+(l.n+1)*elementSize+l.size+n > t.w.pageSize {
		return l, t.up(depth, keep)
	}
	return l, nil
}

// up writes the page of a level without its last keep elements, 0 or 1, and tells the
// level above.
func (t *tree) up(depth, keep int) error {
	l := t.levels[depth]
	var key []byte
	var child uint64
	if keep > 0 {
		last := l.elements[(l.n-1)*elementSize:]
		at := le.Uint32(last)
		key, child = bytes.Clone(l.data[at:]), le.Uint64(last[8:])
		l.n, l.size, l.elements, l.data = l.n-1, l.size-len(key), l.elements[:len(l.elements)-elementSize], l.data[:at]
	}
	id, err := t.write(depth)
	if err != nil {
		return err
	}
	if err := t.branch(depth+1, l.data[:l.first], id); err != nil {
		return err
	}
	l.n, l.size, l.elements, l.data = 0, 0, l.elements[:0], l.data[:0]
	if keep > 0 {
		return t.branch(depth, key, child)
	}
	return nil
}

// write writes the page of a level.
func (t *tree) write(depth int) (id uint64, err error) {
	l := t.levels[depth]
	flags, position := uint16(leafPage), 4
	if depth > 0 {
		flags, position = branchPage, 0
	}
	for i := range len(l.elements) / elementSize {
		p := l.elements[i*elementSize+position:]
		le.PutUint32(p, le.Uint32(p)+uint32((l.n-i)*elementSize))
	}
	return t.w.page(flags, l.n, l.size, l.elements, l.data)
}

// finish writes what is left and returns the page of the root. A tree without a key
// is one empty leaf.
func (t *tree) finish() (root uint64, err error) {
	if len(t.levels) == 0 {
		return t.w.page(leafPage, 0, 0, nil, nil)
	}
	for depth := 0; depth < len(t.levels)-1; depth++ {
		if err := t.up(depth, 0); err != nil {
			return 0, err
		}
	}
	return t.write(len(t.levels) - 1)
}
