package etcddb

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tripod-cluster/tripod/store"
)

// BenchmarkWrite writes 100,000 keys of 1 KiB, and waits for the disk or does not.
func BenchmarkWrite(b *testing.B) {
	const keys, size = 100_000, 1 << 10
	s := store.New(store.Options{})
	for i := range keys {
		apply(b, s, put(fmt.Sprintf("/registry/pods/%06d", i), strings.Repeat("v", size), 0))
	}
	sn := s.Snapshot()
	defer sn.Close()
	for name, write := range map[string]func(path string) error{
		"synced": func(path string) error { return Write(path, sn, origin) },
		"unsynced": func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = WriteFile(f, sn, origin)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(keys * size)
			path := filepath.Join(b.TempDir(), "db")
			for b.Loop() {
				if err := write(path); err != nil {
					b.Fatal(err)
				}
				if err := os.Remove(path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
