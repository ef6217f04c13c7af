package raftfsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/tripod-cluster/tripod/store"
)

// longRun is set by make targets that take their time.
func longRun() bool { return os.Getenv("RAFTFSM_LONG") != "" }

// noise gives n bytes that do not compress and hold no runs of zeros, the same for a seed.
func noise(seed uint64, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 3))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + rnd.IntN(255))
	}
	return b
}

// hastyFiles syncs nothing, for tests that open a directory a thousand times.
type hastyFiles struct{ fileSystem }

type hastyFile struct{ types.WritableFile }

func (hastyFile) Sync() error { return nil }

func (hastyFiles) SyncDir(string) error { return nil }

func (h hastyFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := h.fileSystem.Create(dir, name, size)
	return hastyFile{f}, err
}

func (h hastyFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := h.fileSystem.OpenWriter(dir, name)
	return hastyFile{f}, err
}

// onDisk is what a peer finds at its start.
type onDisk struct {
	store    []byte
	sessions string
	index    uint64
	stable   string
	log      string
	id       identity
}

// readDisk opens the files of a stopped peer as Open does, up to where raft would start, and returns the state
// with the whole log applied.
func readDisk(t testing.TB, dir string) (onDisk, error) {
	t.Helper()
	var d onDisk
	id, err := readIdentity(dir)
	if err != nil {
		return d, err
	}
	d.id = id
	cfg := Config{Dir: dir, Logger: quiet(t), Store: store.New(store.Options{}), MinFreeBytes: 1}
	n := &Node{cfg: cfg, log: quiet(t), id: id.ID, stop: make(chan struct{})}
	n.fsm = bareFSM()
	n.fsm.store = cfg.Store
	n.disk = newDiskWatch(&n.cfg, n.fatal)
	defer n.closeFiles()
	stable, err := n.openFiles(hastyFiles{newOSFiles()})
	if err != nil {
		return d, err
	}
	for _, key := range []string{keyCurrentTerm, keyLastVoteTerm, keyLastVoteCand} {
		v, err := stable.Get([]byte(key))
		if key == keyLastVoteTerm {
			var u uint64
			u, err = stable.GetUint64([]byte(key))
			v = fmt.Append(nil, u)
		}
		if err != nil && !errors.Is(err, errNotFound) {
			return d, err
		}
		d.stable += fmt.Sprintf("%s=%x ", key, v)
	}
	last, err := n.logs.LastIndex()
	if err != nil {
		return d, err
	}
	at, _ := n.fsm.applied()
	var all strings.Builder
	for i := at + 1; i <= last; i++ {
		var e raft.Log
		if err := n.logs.GetLog(i, &e); err != nil {
			return d, err
		}
		fmt.Fprintf(&all, "%d/%d/%v/%x/%x;", e.Index, e.Term, e.Type, e.Data, e.Extensions)
		n.fsm.Apply(&e)
	}
	d.log = all.String()
	d.store = dump(t, cfg.Store)
	d.sessions = string(n.fsm.sessions.encode(nil))
	d.index, _ = n.fsm.applied()
	return d, nil
}

func (d onDisk) equal(o onDisk) bool {
	// The log may be read from an older snapshot on, and is then longer; what it makes is the same.
	return bytes.Equal(d.store, o.store) && d.sessions == o.sessions && d.index == o.index && d.stable == o.stable &&
		d.id.ID == o.id.ID && (strings.HasSuffix(d.log, o.log) || strings.HasSuffix(o.log, d.log))
}

// stoppedPeer makes a peer whose directory has everything: sealed segments of the log, a tail, two snapshots, and
// entries behind the newest.
func stoppedPeer(t testing.TB) *peer {
	c := newCluster(t, 1, func(c *Config) {
		c.faults.segment = 16 << 10
		c.TrailingBytes = 1 << 30
	})
	p := c.peers[0]
	for i := range 60 {
		p.put(t, fmt.Sprint("k", i), string(noise(uint64(i), 700)))
		if i == 20 || i == 40 {
			if err := p.snapshotNow(20, 20); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.stop(p)
	return p
}

// copyDir copies what is in from to a new directory.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func filesIn(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != lockFile {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A changed byte in any file is found at the start and named with the file, or another copy or an older snapshot with
// the log gives the same state. Without verifySegments this ends at a damaged entry that is found only when it is
// applied, without the name of its file.
func TestChangedByteIsFoundOrHarmless(t *testing.T) {
	p := stoppedPeer(t)
	dir := copyDir(t, p.cfg.Dir)
	want, err := readDisk(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	paths := filesIn(t, dir)
	kinds := map[string]int{}
	rnd := rand.New(rand.NewPCG(1, 9))
	tried := 0
	for _, path := range paths {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used := len(bytes.TrimRight(good, "\x00\n"))
		name := filepath.Ext(path)
		var offs []int
		for off := range used {
			if longRun() || rnd.IntN(used) < 50 {
				offs = append(offs, off)
			}
		}
		for range 5 { // behind all that was written
			if used < len(good) {
				offs = append(offs, used+rnd.IntN(len(good)-used))
			}
		}
		for _, off := range offs {
			bad := bytes.Clone(good)
			bad[off] ^= byte(1 + rnd.IntN(255))
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readDisk(t, dir)
			tried++
			switch {
			case err == nil && !got.equal(want):
				t.Errorf("%s byte %d of %d, %02x for %02x: goes unseen, and the state is another", path, off, used, bad[off], good[off])
			case err == nil:
				kinds[name+" harmless"]++
			case !strings.Contains(err.Error(), filepath.Base(path)) && !strings.Contains(err.Error(), filepath.Base(filepath.Dir(path))):
				t.Errorf("%s byte %d: the error does not name the file: %v", path, off, err)
			case !strings.Contains(err.Error(), "join it again") && !strings.Contains(err.Error(), "join again"):
				t.Errorf("%s byte %d: the error does not say what to do: %v", path, off, err)
			default:
				kinds[name+" found"]++
			}
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d changed bytes in %d files: %v", tried, len(paths), kinds)
	if got, err := readDisk(t, dir); err != nil || !got.equal(want) {
		t.Fatal("the directory is not what it was: ", err)
	}
}

// The last write to the log, cut off at any byte or with any of its sectors missing, is repaired: the log ends
// before it, and goes on from there.
func TestTornTailIsRepaired(t *testing.T) {
	const before = 5
	for _, sealing := range []bool{false, true} {
		dir := t.TempDir()
		size := 1 << 20
		if sealing {
			size = 4 << 10 // the last write ends with an index
		}
		open := func() *walLog { return openTestWALOn(t, dir, newOSFiles(), size) }
		w := open()
		for i := uint64(1); i <= before; i++ {
			if err := w.StoreLogs([]*raft.Log{{Index: i, Term: 1, Data: noise(i, 300)}}); err != nil {
				t.Fatal(err)
			}
		}
		w.close()
		st, err := newSegmentList(newOSFiles(), dir, quiet(t)).Load("")
		if err != nil || len(st.Segments) != 1 {
			t.Fatal(st, err)
		}
		path := filepath.Join(dir, segment.FileName(st.Segments[0]))
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		w = open()
		var es []*raft.Log
		for i := uint64(before + 1); i <= before+3; i++ {
			es = append(es, &raft.Log{Index: i, Term: 1, Data: noise(i, 900)})
		}
		if err := w.StoreLogs(es); err != nil {
			t.Fatal(err)
		}
		w.close()
		written, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		from, to := scanSegment(old).end, scanSegment(written).end
		if got := scanSegment(written).index > 0; got != sealing {
			t.Fatalf("the last write sealed the segment: %v", got)
		}
		list, err := seal(st, 1)
		if err != nil {
			t.Fatal(err)
		}
		try := func(what string, b []byte, whole bool) {
			t.Helper()
			files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				os.Remove(f)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, p := range []string{segmentsFile, segmentsFile + secondCopy} {
				if err := os.WriteFile(filepath.Join(dir, p), list, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w, err := openWAL(dir, newOSFiles(), size, newHLog(quiet(t), "wal"), quiet(t))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			defer w.close()
			last, err := w.LastIndex()
			if err != nil || last != before && !(whole && last == before+3) {
				t.Fatalf("%s: the log ends at %d, %v", what, last, err)
			}
			if err := w.StoreLogs([]*raft.Log{{Index: last + 1, Term: 2, Data: noise(99, 50)}}); err != nil {
				t.Fatalf("%s: append: %v", what, err)
			}
			w.check(t, last+1)
		}
		blank := func(b []byte, lo, hi int) {
			for i := lo; i < hi; i++ {
				b[i] = 0
				if i < len(old) {
					b[i] = old[i]
				}
			}
		}
		step := 37
		if longRun() {
			step = 1
		}
		for cut := from; cut <= to; cut++ {
			if cut > from+16 && cut < to-16 && (cut-from)%step != 0 {
				continue
			}
			b := bytes.Clone(written)
			blank(b, cut, len(b))
			// From the last byte of its checksum on, it is as good as whole.
			try(fmt.Sprintf("sealing %v, cut at byte %d of %d", sealing, cut-from, to-from), b, cut > to-4)
		}
		for sec := from / sector; sec*sector < to; sec++ {
			b := bytes.Clone(written)
			blank(b, max(sec*sector, from), min((sec+1)*sector, len(b)))
			try(fmt.Sprintf("sealing %v, without sector %d", sealing, sec), b, false)
		}
	}
}

// Damage before the last write of the tail is never taken for a torn write, though the last one holds whole sectors
// of zeros, as one with missing sectors does. Without the search for a write behind it (followed), all of these
// end the log in silence before entries that were acknowledged.
func TestDamageBeforeTheLastWriteIsNotTorn(t *testing.T) {
	b := make([]byte, segHeader, 1<<14)
	binary.LittleEndian.PutUint64(b, segMagic)
	frame := func(kind byte, payload []byte) {
		b = append(b, kind, 0, 0, 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
		b = append(b, payload...)
		b = append(b, make([]byte, -len(payload)&7)...)
	}
	var ends []int // of the batches
	for _, payload := range [][]byte{noise(1, 300), noise(2, 301), append(noise(3, 8), make([]byte, 4096)...)} {
		frame(frameEntry, payload)
		frame(frameCommit, nil)
		ends = append(ends, len(b))
	}
	b = append(b, make([]byte, 1000)...)
	withSums(b)
	if s := scanSegment(b); s.end != ends[2] || s.entries != 3 {
		t.Fatalf("%+v", s)
	}
	for off := 8; off < ends[1]; off++ {
		bad := bytes.Clone(b)
		bad[off] ^= 0x21
		s := scanSegment(bad)
		if _, _, err := tailEnd(bad, s); err == nil && s.end <= off {
			t.Errorf("byte %d of the batches that end at %v: the log ends at %d in silence", off, ends, s.end)
		}
	}
}
