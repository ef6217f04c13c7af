package etcddb

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

// openBolt opens a file with bbolt, which also writes to it: it must take the pages
// as if they were its own.
func openBolt(t rapid.TB, path string) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true, NoGrowSync: true})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// contents checks a file with bbolt and returns what it reads.
func contents(t rapid.TB, db *bbolt.DB) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	err := db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("bbolt's check: %v", err)
		}
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			m := map[string]string{}
			out[string(name)] = m
			return b.ForEach(func(k, v []byte) error {
				m[string(k)] = string(v)
				if got := b.Get(k); !bytes.Equal(got, v) {
					t.Errorf("key %q has %d bytes in order and %d when looked up", k, len(v), len(got))
				}
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// streamTrees is the file of these buckets.
func streamTrees(t rapid.TB, pageSize int, buckets map[string]map[string]string) *Stream {
	t.Helper()
	var list []bucket
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		list = append(list, smallBucket(name, buckets[name]))
	}
	s, err := newStream(list, pageSize)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func same(a, b map[string]map[string]string) bool {
	return maps.EqualFunc(a, b, func(a, b map[string]string) bool { return maps.Equal(a, b) })
}

// Whatever is written, bbolt and the reader of this package read the same, and bbolt
// goes on from there.
func TestTreesAreReadByBolt(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, "db")
		defer os.Remove(path)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		pageSize := rapid.SampledFrom([]int{1024, 4096, 16384, 65536}).Draw(t, "page size")
		want := map[string]map[string]string{}
		for b := range rapid.IntRange(0, 30).Draw(t, "buckets") {
			n := rapid.SampledFrom([]int{0, 1, 2, 3, 50, 700}).Draw(t, "keys")
			pad := rapid.SampledFrom([]int{0, 0, 10, 200, 1500}).Draw(t, "length of keys")
			values := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 100, 900, 1001, 4096, 9000}), 1, 8).Draw(t, "lengths of values")
			bucket := map[string]string{}
			for i := range n {
				bucket[fmt.Sprintf("%05d%s", i, strings.Repeat("k", pad))] = strings.Repeat(string(rune('a'+i%26)), values[i%len(values)])
			}
			want[fmt.Sprintf("bucket%d", b)] = bucket
		}
		s := streamTrees(t, pageSize, want)
		n, err := s.WriteTo(f)
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := f.Stat(); err != nil || n != s.Size() || fi.Size() != n {
			t.Fatalf("%d bytes were written of %d, %d were announced, %v", fi.Size(), n, s.Size(), err)
		}

		size := n - sha256.Size
		p, err := openPages(f, size, path)
		if err != nil {
			t.Fatal(err)
		}
		buckets, err := p.buckets()
		if err != nil {
			t.Fatal(err)
		}
		own := map[string]map[string]string{}
		for name, b := range buckets {
			own[name] = map[string]string{}
			if err := p.each(b, func(e entry) error { own[name][string(e.key)] = string(e.value); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if !same(own, want) {
			t.Fatal("the reader of this package reads something else")
		}

		db := openBolt(t, path)
		defer db.Close()
		if !same(contents(t, db), want) {
			t.Fatal("bbolt reads something else")
		}
		every := rapid.IntRange(1, 5).Draw(t, "delete every")
		err = db.Update(func(tx *bbolt.Tx) error {
			for name, m := range want {
				for i, k := range slices.Sorted(maps.Keys(m)) {
					if i%every == 0 {
						delete(m, k)
						if err := tx.Bucket([]byte(name)).Delete([]byte(k)); err != nil {
							return err
						}
					}
				}
				m["more"] = name
				if err := tx.Bucket([]byte(name)).Put([]byte("more"), []byte(name)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !same(contents(t, db), want) {
			t.Fatal("bbolt reads something else after it has written")
		}
	})
}

// The database of a store, at more levels than two.
func TestDatabaseIsReadByBolt(t *testing.T) {
	db := openBolt(t, write(t, sample(t, 20_000)))
	defer db.Close()
	got := contents(t, db)
	if n := len(got[bucketKey]); n < 20_000 {
		t.Errorf("%d versions of 20,000 keys", n)
	}
	if len(got) != 11 || len(got[bucketLease]) != 2 || len(got[bucketAuthUsers]) != 2 || len(got[bucketAuthRoles]) != 2 || len(got[bucketMembers]) != 2 {
		t.Errorf("%d buckets, %d leases", len(got), len(got[bucketLease]))
	}
}

func TestKeysOutOfOrderAreRefused(t *testing.T) {
	for name, keys := range map[string][]string{
		"empty":  {""},
		"twice":  {"a", "a"},
		"before": {"b", "a"},
		"long":   {strings.Repeat("k", maxKeySize+1)},
	} {
		var err error
		tr := &tree{w: newPageWriter(nil, filePageSize)}
		for _, k := range keys {
			err = tr.put([]byte(k), nil)
		}
		if err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
