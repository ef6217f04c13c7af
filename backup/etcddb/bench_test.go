package etcddb

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tripod-cluster/tripod/store"
)

// BenchmarkWrite lays 100,000 keys of 1 KiB out, streams them to nowhere, and writes
// them to a file on disk.
func BenchmarkWrite(b *testing.B) {
	const keys, size = 100_000, 1 << 10
	s := store.New(store.Options{})
	for i := range keys {
		apply(b, s, put(fmt.Sprintf("/registry/pods/%06d", i), strings.Repeat("v", size), 0))
	}
	sn := s.Snapshot()
	defer sn.Close()
	b.Run("stream", func(b *testing.B) {
		b.SetBytes(keys * size)
		b.ReportAllocs()
		for b.Loop() {
			st, err := NewStream(sn, origin)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := st.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("layout", func(b *testing.B) {
		for b.Loop() {
			if _, err := NewStream(sn, origin); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("file", func(b *testing.B) {
		b.SetBytes(keys * size)
		path := filepath.Join(b.TempDir(), "db")
		for b.Loop() {
			if err := Write(path, sn, origin); err != nil {
				b.Fatal(err)
			}
			if err := os.Remove(path); err != nil {
				b.Fatal(err)
			}
		}
	})
}
