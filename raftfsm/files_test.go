package raftfsm

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft-wal/types"
)

// cutFiles ends after some number of operations, in the middle of the last write, as a power cut does.
type cutFiles struct {
	fileSystem
	left int
}

var errCut = errors.New("the power is cut")

func (c *cutFiles) step() error {
	if c.left--; c.left < 0 {
		return errCut
	}
	return nil
}

func (c *cutFiles) wrap(f types.WritableFile, err error) (types.WritableFile, error) {
	return cutFile{f, c}, err
}

func (c *cutFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	return c.wrap(c.fileSystem.Create(dir, name, size))
}

func (c *cutFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	return c.wrap(c.fileSystem.OpenWriter(dir, name))
}

func (c *cutFiles) Rename(from, to string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.fileSystem.Rename(from, to)
}

type cutFile struct {
	types.WritableFile
	c *cutFiles
}

func (f cutFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.c.step(); err != nil {
		n, _ := f.WritableFile.WriteAt(b[:len(b)/2], off)
		return n, errors.Join(err, io.ErrShortWrite)
	}
	return f.WritableFile.WriteAt(b, off)
}

// Wherever a power cut ends the writing of a sealed file, the new value or the old one is read, the new one if
// it was acknowledged, and what was read once is never unread.
func TestSealedFileIsAtomic(t *testing.T) {
	files := newOSFiles()
	for cut := range 12 {
		path := filepath.Join(t.TempDir(), "value.json")
		f := sealedFile{files: &cutFiles{files, cut}, path: path}
		acked, err := "", error(nil)
		for _, v := range []string{"a", "bb", "ccc"} {
			if err = f.store(v); err != nil {
				break
			}
			acked = v
		}
		var got string
		g := sealedFile{files: files, path: path}
		switch lerr := g.load(&got, quiet(t)); {
		case errors.Is(lerr, fs.ErrNotExist) && acked == "":
			continue
		case lerr != nil:
			t.Fatalf("cut %d: %v", cut, lerr)
		case got != acked && err == nil, len(got) < len(acked), len(got) > len(acked)+1:
			t.Fatalf("cut %d: %q is read, %q was acknowledged, the last write said %v", cut, got, acked, err)
		}
		// The next write is torn in the first copy, or in the second.
		for second := range 2 {
			h := sealedFile{files: &cutFiles{files, second}, path: path}
			var v string
			if err := (&sealedFile{files: files, path: path}).load(&v, quiet(t)); err != nil || len(v) < len(got) {
				t.Fatalf("cut %d: %q after %q, %v", cut, v, got, err)
			}
			h.version = g.version + 10
			if err := h.store("longer " + got); !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			var again string
			if err := (&sealedFile{files: files, path: path}).load(&again, quiet(t)); err != nil || len(again) < len(got) {
				t.Fatalf("cut %d: %q was read, and then %q, %v", cut, got, again, err)
			}
		}
	}
}

// Whichever writes are torn, in this process and the ones after it: one copy is whole, what is read was stored,
// and nothing older than what was acknowledged.
func TestSealedFileAfterManyTornWrites(t *testing.T) {
	type value struct {
		N   int
		Pad string // so that half of a write is in the middle of it
	}
	of := func(n int) value { return value{n, strings.Repeat(string(rune('a'+n%26)), 400)} }
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		path := filepath.Join(t.TempDir(), "value.json")
		disk := &cutFiles{newOSFiles(), 1 << 30}
		f := &sealedFile{files: disk, path: path}
		if err := f.store(of(0)); err != nil {
			t.Fatal(err)
		}
		acked, last := 0, 0 // the last value acknowledged, and the last one tried
		for step := range 60 {
			disk.left = 1 << 30
			if rnd.IntN(2) == 0 {
				disk.left = rnd.IntN(2)
			}
			if rnd.IntN(3) > 0 {
				last++
				if err := f.store(of(last)); err == nil {
					acked = last
				}
				continue
			}
			f = &sealedFile{files: disk, path: path}
			var got value
			err := f.load(&got, quiet(t))
			if errors.Is(err, errCut) { // it could not make both copies hold it
				disk.left = 1 << 30
				err = f.load(&got, quiet(t))
			}
			if err != nil || got != of(got.N) || got.N < acked || got.N > last {
				t.Fatalf("seed %d step %d: read %v, %v; %d was acknowledged, %d tried", seed, step, got, err, acked, last)
			}
			acked = got.N // it was answered for
		}
	}
}

// A sealed file is written on a disk without any space left, once it is there.
func TestSealedFileNeedsNoSpace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "value.json")
	if err := (&sealedFile{files: newOSFiles(), path: path}).store("first"); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	full := &fullFS{fileSystem: newOSFiles()}
	full.full.Store(true)
	full.inPlace = true
	f := sealedFile{files: full, path: path}
	if err := f.store("second, which is longer than the first"); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil || after.Size() != before.Size() {
		t.Fatalf("it grew from %d to %d bytes, %v", before.Size(), after.Size(), err)
	}
}

// Every changed byte of a single copy is seen.
func TestSealSeesEveryByte(t *testing.T) {
	b, err := seal(map[string]int{"a": 12}, 7)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			var v map[string]int
			if n, err := unseal(b, &v); err == nil && (n != 7 || v["a"] != 12) {
				t.Errorf("bit %d of byte %d changed: version %d, %v", bit, i, n, v)
			}
			b[i] ^= 1 << bit
		}
	}
}
