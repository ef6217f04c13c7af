package etcddb

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"

	"github.com/tripod-cluster/tripod/store"
)

// streamBuffer is how much of a stream is written at a time, in bytes, but for values
// that are longer.
const streamBuffer = 256 << 10

// Stream is a snapshot as a file of etcd, which is written front to back to wherever
// it is wanted. It was laid out once before, by the lengths of keys and values, so its
// size is known. Beside the snapshot it needs less than a megabyte of memory, and the
// longest value, and what Versions of the snapshot does.
type Stream struct {
	buckets  []bucket
	pageSize int
	layout   layout
}

// bucket is a bucket of the file, the keys of which fill adds in order, each time that
// it is called.
type bucket struct {
	name string
	fill func(*tree) error
}

// NewStream lays a snapshot out. It must not be closed before the stream is written.
func NewStream(sn *store.Snapshot, o Origin) (*Stream, error) {
	buckets, err := bucketsOf(sn, o)
	if err != nil {
		return nil, err
	}
	return newStream(buckets, filePageSize)
}

// newStream lays buckets out, on pages of pageSize bytes.
func newStream(buckets []bucket, pageSize int) (*Stream, error) {
	s := &Stream{buckets: buckets, pageSize: pageSize}
	var err error
	s.layout, err = s.pages(newPageWriter(nil, pageSize))
	return s, err
}

// Size is how many bytes WriteTo writes; the last 32 are the checksum.
func (s *Stream) Size() int64 { return int64(s.layout.high)*int64(s.pageSize) + sha256.Size }

// WriteTo writes the file and its checksum, and returns how many bytes w took. It ends
// at the first error of w, which it wraps. It may be called again.
func (s *Stream) WriteTo(w io.Writer) (int64, error) {
	sum := &summer{w: w, h: sha256.New()}
	pw := newPageWriter(bufio.NewWriterSize(sum, streamBuffer), s.pageSize)
	if err := pw.metas(s.layout); err != nil {
		return sum.n, err
	}
	switch got, err := s.pages(pw); {
	case err != nil:
		return sum.n, err
	case got != s.layout:
		return sum.n, fmt.Errorf("the snapshot changed while it was written: its pages are %+v, and were counted as %+v", got, s.layout)
	}
	if err := pw.out.Flush(); err != nil {
		return sum.n, err
	}
	_, err := sum.Write(sum.h.Sum(nil))
	return sum.n, err
}

// pages writes, or counts, all pages but the meta pages.
func (s *Stream) pages(w *pageWriter) (layout, error) {
	roots := map[string]uint64{}
	for _, b := range s.buckets {
		t := &tree{w: w}
		err := b.fill(t)
		if err == nil {
			roots[b.name], err = t.finish()
		}
		if err != nil {
			return layout{}, fmt.Errorf("bucket %s: %w", b.name, err)
		}
	}
	top := &tree{w: w}
	for _, name := range slices.Sorted(maps.Keys(roots)) {
		if err := top.bucket(name, roots[name]); err != nil {
			return layout{}, err
		}
	}
	root, err := top.finish()
	if err != nil {
		return layout{}, err
	}
	return w.finish(root)
}

// summer sums up what it hands on.
type summer struct {
	w io.Writer
	h hash.Hash
	n int64
}

func (s *summer) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.h.Write(p[:n])
	s.n += int64(n)
	return n, err
}
