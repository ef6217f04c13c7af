package store

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// filled returns a store with n keys of 256 bytes under /registry/.
func filled(b *testing.B, n int) *Store {
	s := New(Options{})
	for i := range n {
		mustApply(b, s, &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: fmt.Appendf(nil, "/registry/pods/ns-%03d/pod-%06d", i%100, i), Value: make([]byte, 256)}})
	}
	return s
}

func BenchmarkPut(b *testing.B) {
	for _, read := range []bool{false, true} {
		b.Run(fmt.Sprintf("readBetween=%v", read), func(b *testing.B) {
			s := filled(b, 100_000)
			value := make([]byte, 256)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				mustApply(b, s, &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: fmt.Appendf(nil, "/registry/pods/ns-%03d/pod-%06d", i%100, i%100_000), Value: value}})
				if read {
					s.Revision()
				}
				i++
			}
		})
	}
}

func BenchmarkRange(b *testing.B) {
	s := filled(b, 100_000)
	for _, limit := range []int64{1, 500, 0} {
		b.Run(fmt.Sprintf("limit=%d", limit), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := &pb.RangeRequest{Key: []byte("/registry/pods/"), RangeEnd: []byte("/registry/pods0"), Limit: limit}
				if limit == 1 {
					r = &pb.RangeRequest{Key: []byte("/registry/pods/ns-007/pod-000007")}
				}
				if _, err := s.Range(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWatch puts keys with 5000 watchers there, of which one, or all,
// are woken and read the event.
func BenchmarkWatch(b *testing.B) {
	for _, all := range []bool{false, true} {
		b.Run(fmt.Sprintf("wakeAll=%v", all), func(b *testing.B) {
			s := New(Options{})
			var ws []*Watcher
			for i := range 5000 {
				o := WatchOptions{Key: fmt.Appendf(nil, "/nodes/%04d/", i), RangeEnd: fmt.Appendf(nil, "/nodes/%04d0", i)}
				if all {
					o = WatchOptions{Key: []byte("/nodes/"), RangeEnd: []byte("/nodes0")}
				}
				ws = append(ws, mustWatch(b, s, o))
			}
			i := 0
			for b.Loop() {
				mustApply(b, s, put(fmt.Sprintf("/nodes/%04d/x", i%5000), "v"))
				for _, w := range ws[i%5000:] {
					if isReady(w) {
						mustNext(b, w)
					}
					if !all {
						break
					}
				}
				i++
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := filled(b, 100_000)
	var buf bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&buf); err != nil {
		b.Fatal(err)
	}
	b.Run("handle", func(b *testing.B) {
		for b.Loop() {
			mustApply(b, s, put("/registry/pods/ns-007/pod-000007", "v"))
			s.Snapshot().Close()
		}
	})
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(buf.Len()))
		for b.Loop() {
			s.Snapshot().WriteTo(io.Discard)
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.SetBytes(int64(buf.Len()))
		for b.Loop() {
			if err := New(Options{}).Restore(bytes.NewReader(buf.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCompact compacts the history of 100,000 changes of 5000 keys.
func BenchmarkCompact(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := filled(b, 5000)
		for i := range 100_000 {
			mustApply(b, s, put(fmt.Sprintf("/registry/pods/ns-%03d/pod-%06d", i%100, i%5000), "v"))
		}
		b.StartTimer()
		mustApply(b, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
	}
}
