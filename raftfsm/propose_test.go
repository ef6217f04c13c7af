package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/tripod-cluster/tripod/store"
)

// A proposal whose fate is open when the caller gives up has an unknown outcome, and says so.
func TestUnknownOutcome(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) { c.DiskStall, c.DiskDeadline = time.Hour, time.Hour; withStallLog(c) })
	l := c.leader()
	release := l.log0(t).stall()
	defer release()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := l.Propose(ctx, putReq("maybe", "1"))
	if !errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatalf("a proposal that hangs in the leader's log: %v", err)
	}
	release()
	// It is not lost either: nothing was wrong but the time.
	c.until("the write is there", func() bool { return l.get(t, "maybe") == "1" })
}

// A follower's proposals while leaders come and go are applied exactly once: each is a counter step
// that would show a second application.
func TestForwardedProposalsAreAppliedOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	acked := make([]int, len(c.peers))
	for i, p := range c.peers {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				res, err := p.Propose(ctx, putReq(fmt.Sprint("n", i), fmt.Sprint(n)))
				cancel()
				if err != nil || res.Err != nil {
					t.Errorf("put %d at peer %d: %v %v", n, i, err, res.Err)
					return
				}
				acked[i]++
			}
		})
	}
	for round := range 6 {
		l := c.leader()
		// The leader is cut off in the middle of its work, with proposals of all under way.
		c.net.isolate(l.id, true, c.peers)
		c.until("the others elect", func() bool {
			for _, p := range c.peers {
				if p != l && p.IsLeader() {
					return true
				}
			}
			return false
		})
		if round%2 == 0 { // let some of them go through, or fail, before the link heals
			for _, p := range c.peers {
				if p != l {
					p.put(t, "during", fmt.Sprint(round))
				}
			}
		}
		c.net.isolate(l.id, false, c.peers)
		c.until("the old leader follows", func() bool { id, _ := l.Leader(); return id != 0 && !l.IsLeader() })
	}
	close(stop)
	wg.Wait()
	c.sameState()
	for i, n := range acked {
		r, err := c.peers[0].store.Range(&pb.RangeRequest{Key: fmt.Append(nil, "n", i)})
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 || len(r.Kvs) != 1 || r.Kvs[0].Version != int64(n) {
			t.Errorf("peer %d: %d puts were acknowledged, the key was written %d times", i, n, r.Kvs[0].Version)
		}
	}
}

// The same record in the log twice, as a resend after a leader change leaves it, counts once, on every peer
// and after a restart from snapshot.
func TestSameRecordTwiceInTheLog(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	payload, err := pbMarshal(putReq("twice", "1"))
	if err != nil {
		t.Fatal(err)
	}
	r := record{kind: recRequest, peer: 77, boot: 5, seq: 1, payload: payload}
	entry := sealEntry(r.appendTo(newEntry(100)))
	apply := func() {
		if err := c.leader().raft.ApplyLog(raft.Log{Data: entry}, 0).Error(); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	apply()
	if err := l.snapshotNow(1, 1); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.peers {
		c.stop(p)
		c.start(p)
	}
	apply()
	earlier := record{kind: recRequest, peer: 77, boot: 4, seq: 9, payload: payload}
	entry = sealEntry(earlier.appendTo(newEntry(100)))
	apply() // a record of an earlier run that was under way for long
	for _, p := range c.peers {
		if err := p.ReadIndex(c.ctx()); err != nil {
			t.Fatal(err)
		}
		res, err := p.store.Range(&pb.RangeRequest{Key: []byte("twice")})
		if err != nil || len(res.Kvs) != 1 || res.Kvs[0].Version != 1 {
			t.Fatalf("%s: %v, %v", p.cfg.Name, res, err)
		}
	}
}

func TestSessions(t *testing.T) {
	ss := sessions{}
	admit := func(boot, seq, floor uint64) bool {
		return ss.admit(&record{peer: 1, boot: boot, seq: seq, floor: floor})
	}
	for i, step := range []struct {
		boot, seq, floor uint64
		want             bool
	}{
		{1, 1, 0, true}, {1, 1, 0, false},
		{1, 3, 0, true}, {1, 2, 0, true}, {1, 3, 0, false}, {1, 2, 0, false},
		{1, 6, 0, true}, {1, 5, 5, false}, // given up, as the floor says
		{1, 6, 5, false}, {1, 7, 5, true},
		{1, 8 + maxWindow, 5, false}, // far out of the window
		{2, 1, 0, true},              // a new run starts anew
		{1, 8, 7, false},             // a late record of the old one
	} {
		if got := admit(step.boot, step.seq, step.floor); got != step.want {
			t.Fatalf("step %d %+v: admitted %v", i, step, got)
		}
		back, err := decodeSessions(ss.encode(nil))
		if err != nil {
			t.Fatal(err)
		}
		if string(back.encode(nil)) != string(ss.encode(nil)) {
			t.Fatalf("step %d: sessions do not survive their encoding", i)
		}
	}
	b := ss.encode(nil)
	for i := range b {
		if _, err := decodeSessions(b[:i]); err == nil {
			t.Fatalf("sessions cut off at byte %d decode", i)
		}
	}
}

func TestRecordsSurviveTheirEncoding(t *testing.T) {
	in := []record{
		{kind: recRequest, peer: 3, boot: 1 << 62, seq: 300, floor: 2, payload: []byte("x")},
		{kind: recMember, vital: true, peer: 1 << 60, boot: 1, seq: 1, term: 9, payload: make([]byte, 1000)},
	}
	b := newEntry(0)
	for _, r := range in {
		b = r.appendTo(b)
	}
	body, err := openEntry(sealEntry(b))
	if err != nil {
		t.Fatal(err)
	}
	var out []record
	if err := eachRecord(body, func(r record) error { out = append(out, r); return nil }); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(in) != fmt.Sprint(out) {
		t.Fatalf("%v became %v", in, out)
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := openEntry(b); err == nil {
				t.Fatalf("a flipped bit in byte %d goes unseen", i)
			}
			b[i] ^= 1 << bit
		}
	}
}

// The leader's disk fills up: writes are refused with etcd's error, at once and for sure, reads go on, what frees space is accepted,
// and writes go on when there is space again.
func TestDiskNearlyFull(t *testing.T) {
	var mu sync.Mutex
	free := int64(1 << 40)
	c := newCluster(t, 3, func(c *Config) {
		c.MinFreeBytes = 1 << 20
		c.faults.free = func() (int64, error) { mu.Lock(); defer mu.Unlock(); return free, nil }
	})
	set := func(n int64) {
		mu.Lock()
		free = n
		mu.Unlock()
		for _, p := range c.peers {
			p.disk.measure()
		}
	}
	c.leader().put(t, "a", "1")
	set(1000)
	for _, p := range c.peers {
		if _, err := p.Propose(c.ctx(), putReq("a", "2")); !errors.Is(err, rpctypes.ErrGRPCNoSpace) {
			t.Fatalf("put at %s on a full disk: %v", p.cfg.Name, err)
		}
		if err := p.ReadIndex(c.ctx()); err != nil {
			t.Fatalf("read at %s on a full disk: %v", p.cfg.Name, err)
		}
		if got := p.get(t, "a"); got != "1" {
			t.Fatalf("a = %q", got)
		}
		res, err := p.Propose(c.ctx(), &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("old")}})
		if err != nil || res.Err != nil {
			t.Fatalf("delete at %s on a full disk: %v %v", p.cfg.Name, err, res.Err)
		}
	}
	if !c.leader().Status(c.ctx()).DiskFull {
		t.Error("the status does not tell that the disk is full")
	}
	set(1 << 40)
	for _, p := range c.peers {
		p.put(t, "a", p.cfg.Name)
	}
}
