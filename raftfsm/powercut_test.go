package raftfsm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// ledger is what writers were told.
type ledger struct {
	mu    sync.Mutex
	acked map[string]int // key to the newest acknowledged value
	rev   int64          // highest revision seen
	total int
}

func (l *ledger) ack(key string, n int, rev int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[key] = max(l.acked[key], n)
	l.rev = max(l.rev, rev)
	l.total++
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// check reads what was acknowledged back, through all peers.
func (l *ledger) check(t *testing.T, ps []*proc) (lost []string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	i := 0
	for k, n := range l.acked {
		i++
		rep := ps[i%len(ps)].must(childRequest{Op: "get", Key: k})
		if got, err := strconv.Atoi(rep.Value); err != nil || got < n {
			lost = append(lost, fmt.Sprintf("%s = %q, but %d was acknowledged", k, rep.Value, n))
		}
		if rep.Rev < l.rev {
			lost = append(lost, fmt.Sprintf("revision %d, but %d was seen", rep.Rev, l.rev))
		}
	}
	return lost
}

// write puts load on the peers until stop is closed; values grow from round to round.
func (l *ledger) write(ps []*proc, round int, stop chan struct{}) *sync.WaitGroup {
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for n := round * 1_000_000; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				k := fmt.Sprintf("w%d/%d", w, n%4)
				rep := ps[rand.IntN(len(ps))].once(childRequest{Op: "put", Key: k, Value: fmt.Sprintf("%d", n)})
				if rep.Err == "" {
					l.ack(k, n, rep.Rev)
				} else {
					time.Sleep(5 * time.Millisecond) // a refused connection: do not spin
				}
			}
		})
	}
	return &wg
}

// Power cuts under load, of one peer or of all at once: the process is killed, and its files are put back to what was
// synced, with what luck left of the rest: no write that was acknowledged is lost, the revision never goes back, and
// all peers hold the same bytes. `make powercuts` does a hundred.
func TestPowerCuts(t *testing.T) {
	cuts := 5
	if s := os.Getenv("RAFTFSM_CUTS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		cuts = n
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("RAFTFSM_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 4))
	ps := startProcs(t, 3, func(c *childConfig) { c.Shadow = c.Dir + ".shadow"; c.Segment = 64 << 10 })
	leaderOf(t, ps)
	book := &ledger{acked: map[string]int{}}
	of := map[string]int{}
	for cut := range cuts {
		stop := make(chan struct{})
		wg := book.write(ps, cut+1, stop)
		from := book.count()
		want := 20 + rnd.IntN(150)
		eventually(t, "writes are acknowledged", func() bool { return book.count() >= from+want })
		victims := ps
		what := "all peers"
		if rnd.IntN(3) == 0 {
			victims = []*proc{ps[rnd.IntN(len(ps))]}
			what = "one peer"
		}
		killOnly := rnd.IntN(4) == 0 // what is not synced lives on in the kernel, until a later cut
		if killOnly {
			what += ", killed only"
		}
		of[what]++
		for _, p := range victims {
			p.kill()
		}
		for _, p := range victims {
			if !killOnly {
				powerCut(t, p.cc.Shadow, p.cc.Dir, rnd)
			}
			p.start()
		}
		close(stop)
		wg.Wait()
		if lost := book.check(t, ps); lost != nil {
			t.Fatalf("cut %d of %s, seed %d: %v", cut, what, seed, lost)
		}
	}
	converge(t, ps)
	t.Logf("%d writes acknowledged over %v; revision %d", book.count(), of, book.rev)
}

// The judge is one: on a disk that only says that it synced, writes are lost, and seen to be.
func TestPowerCutOnALyingDiskIsSeen(t *testing.T) {
	ps := startProcs(t, 1, func(c *childConfig) { c.Shadow = c.Dir + ".shadow"; c.Segment = 64 << 10 })
	p := ps[0]
	leaderOf(t, ps)
	book := &ledger{acked: map[string]int{}}
	put := func(n int) {
		rep := p.must(childRequest{Op: "put", Key: "k", Value: fmt.Sprint(n)})
		book.ack("k", n, rep.Rev)
	}
	put(1)
	p.kill()
	p.cc.Lying = true
	p.save()
	p.start()
	for n := 2; n < 20; n++ {
		put(n)
	}
	p.kill()
	p.cc.Lying = false
	p.save()
	powerCut(t, p.cc.Shadow, p.cc.Dir, nil)
	p.start()
	if lost := book.check(t, ps); lost == nil {
		t.Fatal("writes that were never on the disk are not missed")
	}
}

// onShadow makes a directory with a shadow beside it.
func onShadow(t *testing.T) (root, dir string, files *shadowFiles) {
	t.Helper()
	base := t.TempDir()
	root, dir = filepath.Join(base, "raft"), filepath.Join(base, "shadow")
	newShadow(t, dir, root)
	return root, dir, &shadowFiles{fileSystem: newOSFiles(), dir: dir}
}

// A process is killed between the write and the fsync of an entry. The next one finds the entry, since the kernel
// has it, and answers for it: so it must be on the disk by then, or a power cut takes back what was told to the
// leader. raft-wal alone does not sync it: without the Sync in settleTail the log ends at 5 here.
func TestEntryOfAKilledProcessIsMadeDurable(t *testing.T) {
	root, dir, files := onShadow(t)
	open := func() *walLog {
		w, err := openWAL(root, files, 64<<10, newHLog(quiet(t), "wal"), quiet(t))
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := open()
	if err := w.StoreLogs(entries(1, 5, 100)); err != nil {
		t.Fatal(err)
	}
	files.lying = true
	if err := w.StoreLogs(entries(6, 6, 100)); err != nil {
		t.Fatal(err)
	}
	files.lying = false
	w.close() // which syncs nothing
	w = open()
	w.check(t, 6)
	w.close()
	powerCut(t, dir, root, nil)
	w = open()
	defer w.close()
	w.check(t, 6)
}

// Nothing removes entries from the log before the snapshot that holds them is durable, with its directory's name.
// Without the SyncDir in makeDir all snapshots are gone here.
func TestSnapshotIsDurableWhenItIsDone(t *testing.T) {
	root, dir, files := onShadow(t)
	snaps, err := openSnapshots(files, root, quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	f := bareFSM()
	applyPut(t, f, 1, "k", "v")
	sink, err := snaps.Create(raft.SnapshotVersionMax, 1, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	sn, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := sn.Persist(sink); err != nil {
		t.Fatal(err)
	}
	powerCut(t, dir, root, nil)
	if snaps, err = openSnapshots(newOSFiles(), root, quiet(t)); err != nil {
		t.Fatal(err)
	}
	n := &Node{snaps: snaps, fsm: bareFSM(), log: quiet(t)}
	if at, err := n.loadSnapshot(); err != nil || at != 1 {
		t.Fatalf("the snapshot that is read ends at %d, %v", at, err)
	}
}

// Term and vote are on the disk when raft is told so, the first ones too.
func TestVoteIsDurableWhenItIsWritten(t *testing.T) {
	root, dir, files := onShadow(t)
	for term := uint64(1); term < 4; term++ {
		s, err := openStable(files, root, quiet(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetUint64([]byte(keyCurrentTerm), term); err != nil {
			t.Fatal(err)
		}
		powerCut(t, dir, root, nil)
		if s, err = openStable(files, root, quiet(t)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.GetUint64([]byte(keyCurrentTerm)); err != nil || got != term {
			t.Fatalf("term %d after the cut, %v; %d was written", got, err, term)
		}
	}
}
