package benchstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	members = 3
	// patience is how long to wait for what must happen on a busy machine.
	patience = 2 * time.Minute
)

// program is what is measured: how to build it, and what it needs beside the flags that both have.
type program struct {
	name, pkg string
	extra     []string
	peerURL   string // scheme
	peer      bool   // what ours is measured beside
}

var (
	ours = program{name: "tripod", pkg: "github.com/tripod-cluster/tripod/test/etcdserver", peerURL: "http"}
	etcd = program{name: "etcd", peer: true, pkg: "go.etcd.io/etcd/server/v3", peerURL: "https", extra: []string{"--peer-auto-tls"}}
)

var built sync.Map // of name to func() (string, error)

// build builds p once and returns the path. It stays in .tripod, so that a later run does not link again.
func (p program) build(t testing.TB) string {
	t.Helper()
	if other := os.Getenv("TRIPOD_BENCH_PEER"); other != "" && p.peer {
		return other
	}
	f, _ := built.LoadOrStore(p.name, sync.OnceValues(func() (string, error) {
		mod, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
		if err != nil {
			return "", fmt.Errorf("find the module: %w", err)
		}
		path := filepath.Join(strings.TrimSpace(string(mod)), ".tripod", "benchstore", p.name)
		out, err := exec.Command("go", "build", "-o", path, p.pkg).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", p.pkg, err, out)
		}
		return path, nil
	}))
	path, err := f.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cluster is three processes of one program.
type cluster struct {
	program
	bin     string
	members [members]*member
}

type member struct {
	name, client, dir string
	args              []string
	cmd               *exec.Cmd
	exited            chan struct{}
	out               bytes.Buffer
	spent             time.Duration // processor time of processes that have ended
}

// start starts three members with flags and waits until each answers a linearizable read.
func start(t testing.TB, p program, flags ...string) *cluster {
	t.Helper()
	c := &cluster{program: p, bin: p.build(t)}
	dir := t.TempDir()
	var initial []string
	var peers [members]string
	for i := range c.members {
		m := &member{name: fmt.Sprintf("m%d", i), client: "127.0.0.1:" + freePort(t)}
		m.dir = filepath.Join(dir, m.name)
		peers[i] = p.peerURL + "://127.0.0.1:" + freePort(t)
		initial = append(initial, m.name+"="+peers[i])
		c.members[i] = m
	}
	t.Cleanup(c.stop)
	for i, m := range c.members {
		m.args = append([]string{
			"--name", m.name, "--data-dir", m.dir,
			"--listen-client-urls", "http://" + m.client, "--advertise-client-urls", "http://" + m.client,
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new", "--initial-cluster-token", "bench",
			"--log-level", "error",
		}, p.extra...)
		if profiles != "" {
			m.args = append(m.args, "--enable-pprof")
		}
		m.args = append(m.args, flags...)
		if err := c.launch(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range c.members {
		c.healthy(t, m)
	}
	return c
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (c *cluster) launch(m *member) error {
	m.cmd = exec.Command(c.bin, m.args...)
	m.out.Reset()
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	m.cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH=")
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("start %s %s: %w", c.name, m.name, err)
	}
	m.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(m.cmd, m.exited)
	return nil
}

// kill ends m at once, as a power cut of the process would.
func (m *member) kill() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	m.cmd.Process.Kill()
	<-m.exited
}

func (c *cluster) stop() {
	for _, m := range c.members {
		m.kill()
	}
}

// healthy waits until m answers a linearizable read.
func (c *cluster) healthy(t testing.TB, m *member) {
	t.Helper()
	conn := c.dial(t, m)
	defer conn.Close()
	deadline := time.Now().Add(patience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := conn.Get(ctx, "health")
		cancel()
		if err == nil {
			return
		}
		select {
		case <-m.exited:
			t.Fatalf("%s %s ended: %v\n%s", c.name, m.name, m.cmd.ProcessState, m.out.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s %s is not healthy after %v: %v", c.name, m.name, patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// dial returns a client of m alone, with a connection of its own.
func (c *cluster) dial(t testing.TB, m *member) *clientv3.Client {
	t.Helper()
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + m.client}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

// clients returns n connections, spread over the members.
func (c *cluster) clients(t testing.TB, n int) []*clientv3.Client {
	t.Helper()
	all := make([]*clientv3.Client, n)
	for i := range all {
		all[i] = c.dial(t, c.members[i%members])
		t.Cleanup(func() { all[i].Close() })
	}
	return all
}

// follower returns a member that does not lead.
func (c *cluster) follower(t testing.TB) *member {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, m := range c.members {
		cl := c.dial(t, m)
		st, err := cl.Status(ctx, "http://"+m.client)
		cl.Close()
		if err != nil {
			t.Fatalf("status of %s %s: %v", c.name, m.name, err)
		}
		if st.Leader != st.Header.MemberId {
			return m
		}
	}
	t.Fatalf("every member of %s leads", c.name)
	return nil
}

// conn returns a plain gRPC connection to m.
func (c *cluster) conn(t testing.TB, m *member) *grpc.ClientConn {
	t.Helper()
	g, err := grpc.NewClient(m.client, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// cpu is the processor time that the running members have taken.
func (c *cluster) cpu(t testing.TB) time.Duration {
	t.Helper()
	var sum time.Duration
	for _, m := range c.members {
		d, err := processCPU(m.cmd.Process.Pid)
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", c.name, m.name, err, m.out.String())
		}
		sum += d
	}
	return sum
}

// clockTick is the unit of the times in /proc/PID/stat; it is the same on every Linux.
const clockTick = 10 * time.Millisecond

func processCPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold anything; utime and stime are the 12th and 13th field after it.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0, errors.New("short /proc/PID/stat")
	}
	u, err1 := strconv.ParseInt(f[11], 10, 64)
	s, err2 := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(u+s) * clockTick, errors.Join(err1, err2)
}

// memory is one quantity of /proc/PID/status in MiB, as the mean of the members.
func (c *cluster) memory(t testing.TB, what string) float64 {
	t.Helper()
	var sum float64
	for _, m := range c.members {
		f, err := os.Open(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), what+":")
		var kib float64
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			t.Fatalf("%s of %s: %v", what, m.name, err)
		}
		sum += kib / 1024
	}
	return sum / members
}

// profiles is where processor profiles of the servers go, one a member and round; empty for none. What they cost is in the
// figures.
var profiles = os.Getenv("TRIPOD_BENCH_PROFILES")

// profile takes profiles of the members from now on for so long; wait for them with the func it returns.
func (c *cluster) profile(t testing.TB, name string, d time.Duration) (wait func()) {
	if profiles == "" {
		return func() {}
	}
	var wg sync.WaitGroup
	for _, m := range c.members {
		wg.Go(func() {
			resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", m.client, max(1, d/time.Second)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err == nil {
				err = os.WriteFile(filepath.Join(profiles, strings.ReplaceAll(name, " ", "-")+"-"+c.name+"-"+m.name+".pprof"), b, 0o644)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	return wg.Wait
}
