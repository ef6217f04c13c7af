package raftfsm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft-wal/types"
)

// shadowFiles is a file system that keeps beside the real directory what fsync has made durable of it: the
// content of a file as of its last Sync, and the names in a directory as of its last SyncDir. It is the
// harshest that POSIX allows: nothing else would be there after a power cut, unless by luck.
//
// Nodes are known by inode. A file that is removed or replaced moves to the trash, so that no inode is used
// twice. All is in files, and the process may be killed at any moment.
type shadowFiles struct {
	fileSystem
	dir   string // names/INODE, data/INODE, trash
	lying bool   // Sync makes nothing durable
}

type shadowNames map[string]uint64

var trashed atomic.Int64

func inode(path string) (uint64, error) {
	var st syscall.Stat_t
	err := syscall.Lstat(path, &st)
	return st.Ino, err
}

func (s *shadowFiles) trash(path string) error {
	to := filepath.Join(s.dir, "trash", fmt.Sprint(os.Getpid(), "-", trashed.Add(1)))
	err := os.Rename(path, to)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return fmt.Errorf("move %s to the trash: %w", path, err)
	}
	return nil
}

func (s *shadowFiles) Delete(dir, name string) error {
	if err := s.trash(filepath.Join(dir, name)); err != nil {
		return err
	}
	return s.SyncDir(dir) // as raft-wal's own does
}

func (s *shadowFiles) RemoveAll(path string) error {
	if err := s.trash(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s *shadowFiles) Rename(from, to string) error {
	if st, err := os.Lstat(to); err == nil && !st.IsDir() {
		if err := os.Link(to, filepath.Join(s.dir, "trash", fmt.Sprint(os.Getpid(), "-", trashed.Add(1)))); err != nil {
			return err
		}
	}
	return s.fileSystem.Rename(from, to)
}

func (s *shadowFiles) SyncDir(dir string) error {
	if err := s.fileSystem.SyncDir(dir); err != nil {
		return err
	}
	return s.noteNames(dir)
}

func (s *shadowFiles) noteNames(dir string) error {
	if s.lying {
		return nil
	}
	at, err := inode(dir)
	if err != nil {
		return err
	}
	names, err := currentNames(dir)
	if err != nil {
		return err
	}
	b, err := json.Marshal(names)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, "names", fmt.Sprint(at))
	tmp := fmt.Sprint(path, ".", trashed.Add(1))
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func currentNames(dir string) (shadowNames, error) {
	des, err := os.ReadDir(dir)
	names := shadowNames{}
	for _, d := range des {
		ino, err := inode(filepath.Join(dir, d.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		names[d.Name()] = ino
	}
	return names, err
}

func (s *shadowFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := s.fileSystem.Create(dir, name, size)
	return s.wrap(dir, name, f, err, true)
}

func (s *shadowFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := s.fileSystem.OpenWriter(dir, name)
	return s.wrap(dir, name, f, err, false)
}

func (s *shadowFiles) wrap(dir, name string, f types.WritableFile, err error, fresh bool) (types.WritableFile, error) {
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	ino, err := inode(path)
	if err != nil {
		f.Close()
		return nil, err
	}
	st, err := os.Stat(path)
	if err != nil {
		f.Close()
		return nil, err
	}
	sf := &shadowFile{WritableFile: f, s: s, dir: dir, data: filepath.Join(s.dir, "data", fmt.Sprint(ino)), fresh: fresh, size: st.Size()}
	sf.touch(0, st.Size()) // what an earlier process wrote and did not sync
	return sf, nil
}

type shadowFile struct {
	types.WritableFile
	s         *shadowFiles
	dir, data string

	mu     sync.Mutex
	fresh  bool // raft-wal's files sync their directory with the first Sync after their creation
	size   int64
	lo, hi int64 // written since the last Sync
}

func (f *shadowFile) touch(lo, hi int64) {
	if f.lo == f.hi {
		f.lo = lo
	}
	f.lo, f.hi = min(f.lo, lo), max(f.hi, hi)
	f.size = max(f.size, hi)
}

func (f *shadowFile) WriteAt(b []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(off, off+int64(len(b)))
	return f.WritableFile.WriteAt(b, off)
}

func (f *shadowFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.WritableFile.Sync(); err != nil {
		return err
	}
	if f.s.lying {
		return nil
	}
	d, err := os.OpenFile(f.data, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Truncate(f.size); err != nil {
		return err
	}
	b := make([]byte, f.hi-f.lo)
	if n, err := f.ReadAt(b, f.lo); err != nil && !(errors.Is(err, io.EOF) && n == len(b)) {
		return err
	}
	if _, err := d.WriteAt(b, f.lo); err != nil {
		return err
	}
	f.lo, f.hi = 0, 0
	if f.fresh {
		f.fresh = false
		return f.s.noteNames(f.dir)
	}
	return nil
}

// newShadow starts a shadow at dir of what is in root, all of it durable.
func newShadow(t testing.TB, dir, root string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.RemoveAll(dir))
	for _, d := range []string{"names", "data", "trash"} {
		must(os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	must(os.MkdirAll(root, 0o700))
	s := &shadowFiles{dir: dir}
	must(filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return s.noteNames(path)
		}
		ino, err := inode(path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "data", fmt.Sprint(ino)), b, 0o600)
	}))
}

// powerCut makes of root what a power cut would have left there, as the shadow at dir knows: what was synced, and of
// the rest what luck decides; without rnd there is none.
func powerCut(t testing.TB, dir, root string, rnd *rand.Rand) {
	t.Helper()
	image := root + ".image"
	real := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		ino, err := inode(path)
		real[ino] = path
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	at, err := inode(root)
	if err != nil {
		t.Fatal(err)
	}
	c := cutter{t: t, dir: dir, real: real, rnd: rnd}
	c.tree(at, image)
	if err := errors.Join(os.RemoveAll(root), os.Rename(image, root)); err != nil {
		t.Fatal(err)
	}
	newShadow(t, dir, root)
}

type cutter struct {
	t    testing.TB
	dir  string
	real map[uint64]string
	rnd  *rand.Rand
}

func (c *cutter) tree(at uint64, to string) {
	c.t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		c.t.Fatal(err)
	}
	names := shadowNames{}
	b, err := os.ReadFile(filepath.Join(c.dir, "names", fmt.Sprint(at)))
	if err == nil {
		err = json.Unmarshal(b, &names)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if path := c.real[at]; err == nil && path != "" && c.rnd != nil && c.rnd.IntN(2) == 0 { // the names came to the disk by themselves
		names, err = currentNames(path)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for name, ino := range names {
		path := filepath.Join(to, name)
		_, derr := os.Stat(filepath.Join(c.dir, "names", fmt.Sprint(ino)))
		st, rerr := os.Stat(c.real[ino])
		if derr == nil || rerr == nil && st.IsDir() {
			c.tree(ino, path)
			continue
		}
		if err := os.WriteFile(path, c.content(ino), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

// content is that of a file after the cut.
func (c *cutter) content(ino uint64) []byte {
	durable, err := os.ReadFile(filepath.Join(c.dir, "data", fmt.Sprint(ino)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	path := c.real[ino]
	luck := 0
	if c.rnd != nil {
		luck = c.rnd.IntN(4)
	}
	if path == "" || luck == 0 {
		return durable
	}
	real, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	out := append([]byte(nil), durable...)
	if len(real) > len(out) {
		out = append(out, make([]byte, len(real)-len(out))...)
	}
	var diff []int
	for i := range real {
		if real[i] != out[i] {
			diff = append(diff, i)
		}
	}
	if len(diff) == 0 {
		return out
	}
	switch luck {
	case 1: // all of it was written
		copy(out, real)
	case 2: // up to some byte
		copy(out, real[:diff[c.rnd.IntN(len(diff))]])
	default: // some sectors
		lo, hi := diff[0], diff[len(diff)-1]+1
		for sec := lo / sector; sec*sector < hi; sec++ {
			if c.rnd.IntN(2) == 0 {
				from, to := max(sec*sector, lo), min((sec+1)*sector, hi)
				copy(out[from:to], real[from:to])
			}
		}
	}
	return out
}
