package etcddb

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
)

// filePageSize is the size of a page in the files that are written, in bytes: that
// of bbolt on the machines that etcd runs on. A reader takes it from the file.
const filePageSize = 4096

// maxKeySize is the longest key that bbolt takes, in bytes.
const maxKeySize = 32768

// pageWriter writes the pages of a file one after the other, each once. The two meta
// pages, which say where the root is, come last. It holds one buffer in memory.
type pageWriter struct {
	f        io.WriterAt
	buf      *bufio.Writer // the file from the third page on
	pageSize int
	next     uint64 // the page that is written next
}

func newPageWriter(f io.WriterAt, pageSize int) *pageWriter {
	return &pageWriter{f: f, buf: bufio.NewWriterSize(io.NewOffsetWriter(f, 2*int64(pageSize)), 1<<20), pageSize: pageSize, next: 2}
}

// page writes a page of n elements, with the data that they point to, over as many
// pages as it takes.
func (w *pageWriter) page(flags uint16, n int, elements, data []byte) (id uint64, err error) {
	length := pageHeaderSize + len(elements) + len(data)
	count := (length + w.pageSize - 1) / w.pageSize
	id = w.next
	w.next += uint64(count)
	for _, b := range [][]byte{pageHeader(id, flags, n, count-1), elements, data, make([]byte, count*w.pageSize-length)} {
		if _, err := w.buf.Write(b); err != nil {
			return 0, err
		}
	}
	return id, nil
}

func pageHeader(id uint64, flags uint16, n, overflow int) []byte {
	b := le.AppendUint64(make([]byte, 0, pageHeaderSize), id)
	b = le.AppendUint16(b, flags)
	b = le.AppendUint16(b, uint16(n))
	return le.AppendUint32(b, uint32(overflow))
}

// finish writes an empty freelist and the meta pages, which make the tree at page
// root the bucket that holds all others, and returns the size of the file in bytes.
func (w *pageWriter) finish(root uint64) (size int64, err error) {
	freelist, err := w.page(freelistPage, 0, nil, nil)
	if err != nil {
		return 0, err
	}
	if err := w.buf.Flush(); err != nil {
		return 0, err
	}
	for txid := range uint64(2) { // which is the number of its page, too
		b := make([]byte, 0, w.pageSize)
		b = append(b, pageHeader(txid, metaPage, 0, 0)...)
		b = le.AppendUint32(b, metaMagic)
		b = le.AppendUint32(b, metaVersion)
		b = le.AppendUint32(b, uint32(w.pageSize))
		b = le.AppendUint32(b, 0) // flags
		b = appendBucket(b, root)
		b = le.AppendUint64(b, freelist)
		b = le.AppendUint64(b, w.next)
		b = le.AppendUint64(b, txid)
		h := fnv.New64a()
		h.Write(b[pageHeaderSize:])
		b = le.AppendUint64(b, h.Sum64())
		if _, err := w.f.WriteAt(b[:w.pageSize], int64(txid)*int64(w.pageSize)); err != nil {
			return 0, err
		}
	}
	return int64(w.next) * int64(w.pageSize), nil
}

// appendBucket appends a bucket with the tree at page root, and sequence 0.
func appendBucket(b []byte, root uint64) []byte {
	return le.AppendUint64(le.AppendUint64(b, root), 0)
}

// tree writes a B+tree from the bottom up, out of keys that come in order: a page is
// written when it is full, and its first key goes to the page above. It holds one
// page of each level in memory.
type tree struct {
	w      *pageWriter
	levels []*level // the leaves first
	last   []byte   // the last key
}

// level is the page of a level that is being filled. The positions in its elements
// count from the start of data until the page is written.
type level struct {
	n              int
	elements, data []byte
	first          int // the length of the first key, with which data begins
}

// put adds a key, which must come after the last one. Key and value are copied.
func (t *tree) put(key, value []byte) error { return t.leaf(0, key, value) }

// bucket adds a bucket with the tree at page root.
func (t *tree) bucket(name string, root uint64) error {
	return t.leaf(bucketEntry, []byte(name), appendBucket(nil, root))
}

func (t *tree) leaf(flags uint32, key, value []byte) error {
	switch {
	case len(key) == 0 || len(key) > maxKeySize:
		return fmt.Errorf("a key has %d bytes, and the format has 1 to %d", len(key), maxKeySize)
	case bytes.Compare(key, t.last) <= 0:
		return fmt.Errorf("key %q comes after %q", key, t.last)
	}
	t.last = append(t.last[:0], key...)
	l, err := t.room(0, len(key)+len(value))
	if err != nil {
		return err
	}
	l.elements = le.AppendUint32(l.elements, flags)
	l.elements = le.AppendUint32(l.elements, uint32(len(l.data)))
	l.elements = le.AppendUint32(l.elements, uint32(len(key)))
	l.elements = le.AppendUint32(l.elements, uint32(len(value)))
	l.add(key, value)
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
	l.add(key, nil)
	return nil
}

func (l *level) add(key, value []byte) {
	if l.n == 0 {
		l.first = len(key)
	}
	l.n++
	l.data = append(append(l.data, key...), value...)
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
	if l.n > 2*keep && pageHeaderSize+len(l.elements)+elementSize+len(l.data)+n > t.w.pageSize {
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
		l.n, l.elements, l.data = l.n-1, l.elements[:len(l.elements)-elementSize], l.data[:at]
	}
	id, err := t.write(depth)
	if err != nil {
		return err
	}
	if err := t.branch(depth+1, l.data[:l.first], id); err != nil {
		return err
	}
	l.n, l.elements, l.data = 0, l.elements[:0], l.data[:0]
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
	for i := range l.n {
		p := l.elements[i*elementSize+position:]
		le.PutUint32(p, le.Uint32(p)+uint32((l.n-i)*elementSize))
	}
	return t.w.page(flags, l.n, l.elements, l.data)
}

// finish writes what is left and returns the page of the root. A tree without a key
// is one empty leaf.
func (t *tree) finish() (root uint64, err error) {
	if len(t.levels) == 0 {
		return t.w.page(leafPage, 0, nil, nil)
	}
	for depth := 0; depth < len(t.levels)-1; depth++ {
		if err := t.up(depth, 0); err != nil {
			return 0, err
		}
	}
	return t.write(len(t.levels) - 1)
}
