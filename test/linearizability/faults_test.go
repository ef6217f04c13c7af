package linearizability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// faultsEnv names the file from which a server built with the tag faultpoints takes the
// faults of its disk and clock; see raftfsm/faultpoints.go.
const faultsEnv = "TRIPOD_FAULTS"

// diskFaults is the content of that file.
type diskFaults struct {
	SyncDelay  time.Duration `json:"syncDelay,omitempty"`  // before each fsync of the log
	WriteError string        `json:"writeError,omitempty"` // ENOSPC or EIO, for each write of the log
	NoSpace    bool          `json:"noSpace,omitempty"`    // the disk is measured as full
	Clock      time.Duration `json:"clock,omitempty"`      // added to the clock
	StaleReads bool          `json:"staleReads,omitempty"` // a bug: reads ask nobody

	// How often a server looks whether a snapshot is due, and how much log stays behind one.
	SnapshotInterval time.Duration `json:"snapshotInterval,omitempty"`
	TrailingBytes    int64         `json:"trailingBytes,omitempty"`
}

// write replaces the file at path in one step.
func (f diskFaults) write(path string) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (m *member) faultFile(c *cluster) string {
	return filepath.Join(c.dir, fmt.Sprintf("m%d.faults", m.slot))
}

// fault is one kind of fault. inject breaks something, waits, and has healed it when it
// returns. errNotInjected means that too much else was broken for it; another error, that
// the test could not do its part, not that the cluster broke its word.
type fault struct {
	name   string
	weight int
	inject func(ctx context.Context, c *cluster, r *rand.Rand) error
}

var errNotInjected = errors.New("not injected")

// between is a random time.
func between(r *rand.Rand, lo, hi time.Duration) time.Duration {
	return lo + time.Duration(r.Int64N(int64(hi-lo)))
}

// hold waits; the end of ctx cuts it short, so that what was broken is healed.
func hold(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// anyone is a random member; every second time the leader, if one is known.
func (c *cluster) anyone(ctx context.Context, r *rand.Rand) *member {
	m := c.slots[r.IntN(members)]
	if r.IntN(2) == 0 {
		if l, _ := c.leader(ctx); l != nil {
			return l
		}
	}
	return m
}

// faults are all kinds. On what a member does not have (a real etcd has no faults file)
// they do nothing.
var faults = []fault{
	{"kill", 4, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		m, down := c.anyone(ctx, r), between(r, 0, 2*time.Second)
		return c.restart(ctx, m, down)
	}},
	{"kill all", 2, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		var wg sync.WaitGroup
		errs := make([]error, members)
		for i, m := range c.slots {
			down := between(r, 0, time.Second)
			wg.Go(func() { errs[i] = c.restart(ctx, m, down) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"pause", 4, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		m := c.anyone(ctx, r)
		m.proc.signal(syscall.SIGSTOP)
		hold(ctx, between(r, 200*time.Millisecond, 3*time.Second))
		m.proc.signal(syscall.SIGCONT)
		return nil
	}},
	{"partition", 4, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		m := c.anyone(ctx, r)
		var ls []link
		for i := range members {
			if i != m.slot {
				ls = append(ls, link{i, m.slot}, link{m.slot, i})
			}
		}
		return c.cutFor(ctx, r, ls)
	}},
	{"partition one way", 4, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		m, deaf := c.anyone(ctx, r), r.IntN(2) == 0
		var ls []link
		for i := range members {
			switch {
			case i == m.slot:
			case deaf:
				ls = append(ls, link{i, m.slot})
			default:
				ls = append(ls, link{m.slot, i})
			}
		}
		return c.cutFor(ctx, r, ls)
	}},
	{"partition of two", 2, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		m := c.anyone(ctx, r)
		o := (m.slot + 1 + r.IntN(members-1)) % members
		ls := []link{{m.slot, o}}
		if r.IntN(2) == 0 {
			ls = append(ls, link{o, m.slot})
		}
		return c.cutFor(ctx, r, ls)
	}},
	{"slow disk", 3, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		delay := between(r, 20*time.Millisecond, 400*time.Millisecond)
		return c.breakDisk(ctx, r, func(f *diskFaults) { f.SyncDelay = delay })
	}},
	{"hung disk", 1, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		return c.breakDisk(ctx, r, func(f *diskFaults) { f.SyncDelay = 4 * time.Second })
	}},
	{"full disk", 2, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		measured := r.IntN(2) == 0
		return c.breakDisk(ctx, r, func(f *diskFaults) { f.WriteError, f.NoSpace = "ENOSPC", measured })
	}},
	{"failing disk", 2, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		return c.breakDisk(ctx, r, func(f *diskFaults) { f.WriteError = "EIO" })
	}},
	{"clock jump", 2, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		// All jumps of a history together are below the time of the leases: none may end, even if what is left
		// of it goes from leader to leader with checkpoints.
		jump := between(r, -10*time.Minute, 10*time.Minute)
		m := c.anyone(ctx, r)
		if err := c.setFaults(m, func(f *diskFaults) { f.Clock = jump }); err != nil {
			return err
		}
		hold(ctx, between(r, 200*time.Millisecond, 2*time.Second))
		if r.IntN(2) == 0 {
			return c.restart(ctx, m, 0) // a new run that begins before the last one did
		}
		return nil
	}},
	{"absence", 3, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		return c.absence(ctx, c.slots[r.IntN(members)])
	}},
	{"move leader", 3, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		m, _ := c.leader(ctx)
		if m == nil {
			return fmt.Errorf("%w: nobody leads", errNotInjected)
		}
		st, err := c.status(ctx, c.slots[(m.slot+1+r.IntN(members-1))%members])
		if err != nil {
			return fmt.Errorf("%w: %w", errNotInjected, err)
		}
		cl, err := c.dial(m)
		if err != nil {
			return err
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if _, err := cl.MoveLeader(ctx, st.Header.MemberId); err != nil {
			return fmt.Errorf("%w: %w", errNotInjected, err) // it may not lead any more
		}
		return nil
	}},
	{"replace a member", 2, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		return c.replace(ctx, c.anyone(ctx, r))
	}},
	{"learner", 1, func(ctx context.Context, c *cluster, r *rand.Rand) error {
		return c.passingLearner(ctx)
	}},
}

// restart kills a member's process and starts it after down.
func (c *cluster) restart(ctx context.Context, m *member, down time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proc.kill()
	hold(ctx, down)
	return c.start(m)
}

// absence keeps a member away for longer than the others keep the log, on their disks or in
// memory, so that it gets a snapshot when it comes back.
func (c *cluster) absence(ctx context.Context, m *member) error {
	c.reconf.Lock() // it takes hold of all members
	defer c.reconf.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proc.kill()
	index := func(ctx context.Context) (i uint64) {
		for _, o := range c.slots {
			if o == m {
				continue
			}
			if st, err := c.status(ctx, o); err == nil {
				i = max(i, st.RaftIndex)
			}
		}
		return i
	}
	since := index(ctx)
	limited, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	for limited.Err() == nil && index(ctx) < since+100 {
		hold(limited, 200*time.Millisecond)
	}
	for _, o := range c.slots {
		if o != m {
			if err := c.restart(ctx, o, 0); err != nil {
				return err
			}
		}
	}
	return c.start(m)
}

func (c *cluster) cutFor(ctx context.Context, r *rand.Rand, ls []link) error {
	heal := c.net.block(r.IntN(2) == 0, ls...)
	defer heal()
	hold(ctx, between(r, 200*time.Millisecond, 4*time.Second))
	return nil
}

// setFaults changes what is broken at a member.
func (c *cluster) setFaults(m *member, change func(*diskFaults)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.faults)
	return m.faults.write(m.faultFile(c))
}

// breakDisk breaks a member's disk for a while.
func (c *cluster) breakDisk(ctx context.Context, r *rand.Rand, change func(*diskFaults)) error {
	m := c.anyone(ctx, r)
	if err := c.setFaults(m, change); err != nil {
		return err
	}
	hold(ctx, between(r, 200*time.Millisecond, 3*time.Second))
	return c.setFaults(m, func(f *diskFaults) {
		clock := f.Clock
		*f = c.disk
		f.Clock = clock
	})
}

// others is a client of the members but one.
func (c *cluster) others(m *member) (*clientv3.Client, error) {
	var es []string
	for _, o := range c.slots {
		if o != m {
			es = append(es, o.client)
		}
	}
	return clientv3.New(clientv3.Config{Endpoints: es, Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second})
}

// replace removes a member, and adds another one with an empty directory in its place.
func (c *cluster) replace(ctx context.Context, m *member) error {
	c.reconf.Lock() // one change of members at a time keeps a majority
	defer c.reconf.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	cl, err := c.others(m)
	if err != nil {
		return err
	}
	defer cl.Close()
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	gone := false
	err = poll(limited, func(ctx context.Context) error {
		l, err := cl.MemberList(ctx)
		if err != nil {
			return err
		}
		url := "http://" + m.proxied
		for _, o := range l.Members {
			if len(o.PeerURLs) == 1 && o.PeerURLs[0] == url {
				if _, err := cl.MemberRemove(ctx, o.ID); err != nil {
					return err
				}
			}
		}
		gone = true
		return nil
	})
	if !gone {
		return fmt.Errorf("%w: remove member %s: %w", errNotInjected, m.name(), err)
	}
	m.proc.kill()
	m.gen++
	m.state = "existing"
	m.dirs = append(m.dirs, filepath.Join(c.dir, m.name()))
	m.faults = c.disk
	// From here on there is no way back: the cluster must take the new member.
	long, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var list []string
	err = poll(long, func(ctx context.Context) error {
		url := "http://" + m.proxied
		l, err := cl.MemberList(ctx)
		if err != nil {
			return err
		}
		added := false
		for _, o := range l.Members {
			added = added || len(o.PeerURLs) == 1 && o.PeerURLs[0] == url
		}
		if !added {
			if _, err := cl.MemberAdd(ctx, []string{url}); err != nil {
				return err
			}
		}
		list = nil
		for _, o := range c.slots {
			list = append(list, o.name()+"=http://"+o.proxied)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add the member that replaces one: %w", err)
	}
	m.initial = strings.Join(list, ",")
	return c.start(m)
}

// passingLearner adds a learner that never starts, and removes it.
func (c *cluster) passingLearner(ctx context.Context) error {
	c.reconf.Lock()
	defer c.reconf.Unlock()
	cl, err := clientv3.New(clientv3.Config{Endpoints: c.endpoints(), Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer cl.Close()
	addr, err := freePort()
	if err != nil {
		return err
	}
	url := "http://" + addr
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	once, cancel := context.WithTimeout(limited, 5*time.Second)
	_, err = cl.MemberAddAsLearner(once, []string{url})
	cancel()
	added := err
	hold(ctx, 300*time.Millisecond)
	err = poll(limited, func(ctx context.Context) error {
		l, err := cl.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, o := range l.Members {
			if len(o.PeerURLs) == 1 && o.PeerURLs[0] == url {
				if _, err := cl.MemberRemove(ctx, o.ID); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && added != nil {
		return fmt.Errorf("%w, or not surely: %w", errNotInjected, added)
	}
	return err
}
