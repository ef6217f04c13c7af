package linearizability

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// members is how many members a cluster has.
const members = 3

// cluster is three members, the network between them, and whoever starts again what has
// ended by itself.
type cluster struct {
	plan
	lg     *zap.Logger
	token  string
	net    *network
	slots  [members]*member
	reconf sync.Mutex // held by faults that need the other members, taken before any member.mu

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// member is one place in the cluster: its addresses stay, while the server in it may be
// replaced by a new one with another name and an empty directory.
type member struct {
	slot    int
	client  string // host:port of clients
	peer    string // host:port that it listens on for peers
	proxied string // host:port at which peers reach it
	proc    process

	mu      sync.Mutex // held by whoever changes what follows, or starts or ends the process
	gen     int
	initial string // --initial-cluster and its state, of this generation
	state   string
	dirs    []string // of every generation
	faults  diskFaults
}

func (m *member) name() string {
	if m.gen == 0 {
		return fmt.Sprintf("m%d", m.slot)
	}
	return fmt.Sprintf("m%d-%d", m.slot, m.gen)
}

// freePort finds a port below those that the kernel gives to outgoing connections, so
// that it is still free when a killed server comes back.
func freePort() (string, error) {
	for range 200 {
		addr := fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(20000))
		if ln, err := net.Listen("tcp", addr); err == nil {
			ln.Close()
			return addr, nil
		}
	}
	return "", errors.New("found no free port")
}

// startCluster starts members and returns when each of them answers a linearizable read.
func startCluster(ctx context.Context, lg *zap.Logger, p plan) (*cluster, error) {
	c := &cluster{plan: p, lg: lg, token: filepath.Base(p.dir)}
	c.net = newNetwork(func(i int) int { return c.slots[i].proc.pid() })
	var initial []string
	for i := range c.slots {
		m := &member{slot: i, state: "new", faults: p.disk}
		c.slots[i] = m
		m.proc.log = filepath.Join(c.dir, fmt.Sprintf("m%d.log", i))
		for _, p := range []*string{&m.client, &m.peer} {
			addr, err := freePort()
			if err != nil {
				return nil, err
			}
			*p = addr
		}
	}
	for i, m := range c.slots {
		addr, err := c.net.proxy(i, m.peer)
		if err != nil {
			c.net.close()
			return nil, err
		}
		m.proxied = addr
		initial = append(initial, m.name()+"=http://"+addr)
	}
	for _, m := range c.slots {
		m.initial = strings.Join(initial, ",")
		m.dirs = []string{filepath.Join(c.dir, m.name())}
		if err := c.start(m); err != nil {
			c.close()
			return nil, err
		}
	}
	sctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	for _, m := range c.slots {
		c.wg.Go(func() { c.supervise(sctx, m) })
	}
	if err := c.healthy(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// start starts the member's process. Called with m.mu held, or before anyone else knows m.
func (c *cluster) start(m *member) error {
	dir := m.dirs[len(m.dirs)-1]
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := m.faults.write(m.faultFile(c)); err != nil {
		return err
	}
	args := append([]string{
		"--name", m.name(), "--data-dir", dir,
		"--listen-client-urls", "http://" + m.client, "--advertise-client-urls", "http://" + m.client,
		"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.proxied,
		"--initial-cluster", m.initial, "--initial-cluster-state", m.state, "--initial-cluster-token", c.token,
	}, c.flags...)
	return m.proc.start(c.binary, []string{faultsEnv + "=" + m.faultFile(c)}, args)
}

// supervise starts a server that has ended by itself, as systemd does.
func (c *cluster) supervise(ctx context.Context, m *member) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
		if m.proc.pid() != 0 || !m.mu.TryLock() {
			continue
		}
		if m.proc.pid() == 0 {
			c.lg.Warn("a server ended by itself and is started again", zap.String("member", m.name()))
			if err := c.start(m); err != nil {
				c.lg.Error("a server does not start", zap.String("member", m.name()), zap.Error(err))
			}
		}
		m.mu.Unlock()
	}
}

func (c *cluster) endpoints() []string {
	var es []string
	for _, m := range c.slots {
		es = append(es, m.client)
	}
	return es
}

// dial returns a client of one member.
func (c *cluster) dial(m *member) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{m.client}, Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second})
}

// healthy returns when each member answers a linearizable read.
func (c *cluster) healthy(ctx context.Context) error {
	for _, m := range c.slots {
		cl, err := c.dial(m)
		if err != nil {
			return err
		}
		err = poll(ctx, func(ctx context.Context) error {
			_, err := cl.Get(ctx, "health")
			return err
		})
		cl.Close()
		if err != nil {
			return fmt.Errorf("member %s does not answer linearizable reads: %w", m.name(), err)
		}
	}
	return nil
}

// poll calls f until it succeeds or ctx ends; then it returns what f said last.
func poll(ctx context.Context, f func(context.Context) error) error {
	for {
		once, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := f(once)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leader finds the member that leads, nil when none says so.
func (c *cluster) leader(ctx context.Context) (m *member, id uint64) {
	for _, m := range c.slots {
		if st, err := c.status(ctx, m); err == nil && st.Leader == st.Header.MemberId && st.Leader != 0 {
			return m, st.Leader
		}
	}
	return nil, 0
}

func (c *cluster) status(ctx context.Context, m *member) (*clientv3.StatusResponse, error) {
	cl, err := c.dial(m)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	return cl.Status(ctx, m.client)
}

// agree checks that all members have the same hash of the same revision, at least rev.
func (c *cluster) agree(ctx context.Context, rev int64) error {
	return poll(ctx, func(ctx context.Context) error {
		type state struct {
			hash         uint32
			rev, compact int64
		}
		var got []state
		for _, m := range c.slots {
			cl, err := c.dial(m)
			if err != nil {
				return err
			}
			r, err := cl.HashKV(ctx, m.client, 0)
			cl.Close()
			if err != nil {
				return fmt.Errorf("hash of %s: %w", m.name(), err)
			}
			got = append(got, state{r.Hash, r.Header.Revision, r.CompactRevision})
		}
		if got[0].rev < rev || slices.ContainsFunc(got, func(s state) bool { return s != got[0] }) {
			return fmt.Errorf("the members differ, or are not at revision %d: %+v", rev, got)
		}
		return nil
	})
}

// close ends everything that startCluster began; the files stay.
func (c *cluster) close() {
	if c.stop != nil {
		c.stop()
	}
	c.wg.Wait()
	for _, m := range c.slots {
		if m != nil {
			m.proc.kill()
		}
	}
	c.net.close()
}

// end stops the servers in order.
func (c *cluster) end() {
	c.stop()
	c.wg.Wait()
	var wg sync.WaitGroup
	for _, m := range c.slots {
		wg.Go(func() { m.proc.stop(15 * time.Second) })
	}
	wg.Wait()
	c.net.close()
}
