package raftfsm

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/store"
)

const childEnv = "RAFTFSM_TEST_CHILD"

// TestMain lets the test binary be a peer in a process of its own.
func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if err := runChild(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type childConfig struct {
	Dir, Name, Addr, Socket string
	ID                      PeerID
	CA, Cert, Key           []byte
	// Shadow, when set, is where shadowFiles keeps what is durable; Lying makes it note nothing.
	Shadow  string
	Lying   bool
	Segment int // of the log, bytes
}

type childRequest struct {
	Op         string
	Key        string
	Value, Old string
	Member     Member
	Lease, TTL int64
}

type childReply struct {
	Value   string
	Rev     int64 // the store's revision
	Done    bool  // a compare-and-swap took place
	Leads   bool
	Err     string
	Unknown bool // the outcome is not known
}

func runChild(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var cc childConfig
	if err := json.Unmarshal(b, &cc); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cc.Cert, cc.Key)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cc.CA)
	st := store.New(store.Options{})
	f := faults{segment: cc.Segment}
	if cc.Shadow != "" {
		f.files = func(fs fileSystem) fileSystem { return &shadowFiles{fileSystem: fs, dir: cc.Shadow, lying: cc.Lying} }
	}
	n, err := Open(Config{
		faults: f,
		Dir:    cc.Dir, ID: cc.ID, Name: cc.Name, Store: st, ListenPeer: cc.Addr, AdvertisePeer: cc.Addr, MinFreeBytes: 1,
		TLS: func() (*tls.Config, *tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool}, &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}, nil
		},
		Logger: quiet(nil), SnapshotEntries: 500, SnapshotInterval: 200 * time.Millisecond,
		RequestTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	os.Remove(cc.Socket)
	l, err := net.Listen("unix", cc.Socket)
	if err != nil {
		return err
	}
	go func() { // the parent went away
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			enc, dec := json.NewEncoder(c), json.NewDecoder(bufio.NewReader(c))
			for {
				var r childRequest
				if dec.Decode(&r) != nil {
					return
				}
				if enc.Encode(n.child(st, r)) != nil {
					return
				}
			}
		}()
	}
}

func (n *Node) child(st *store.Store, r childRequest) (rep childReply) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	fail := func(err error) {
		if err != nil {
			rep.Err, rep.Unknown = err.Error(), errors.Is(err, store.ErrUnknownOutcome)
		}
	}
	switch r.Op {
	case "bootstrap":
		fail(n.Bootstrap(ctx))
	case "add":
		fail(n.AddNonvoter(ctx, r.Member))
	case "promote":
		fail(n.Promote(ctx, r.Member.ID))
	case "status":
		rep.Leads = n.IsLeader()
	case "hash":
		fail(n.ReadIndex(ctx))
		sn := st.Snapshot()
		defer sn.Close()
		h := sha256.New()
		if _, err := sn.WriteTo(h); err != nil {
			fail(err)
		}
		rep.Value = fmt.Sprintf("%x", h.Sum(nil))
	case "put":
		put := putReq(r.Key, r.Value)
		put.Put.Lease = r.Lease
		res, err := n.Propose(ctx, put)
		rep.Rev = res.Revision
		fail(errors.Join(err, res.Err))
	case "grant":
		_, err := n.Grant(ctx, r.Lease, r.TTL)
		fail(err)
	case "keepalive":
		_, err := n.KeepAlive(ctx, r.Lease)
		fail(err)
	case "cas":
		cmp := &pb.Compare{Key: []byte(r.Key), Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_Value{Value: []byte(r.Old)}}
		put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(r.Key), Value: []byte(r.Value)}}}
		res, err := n.Propose(ctx, &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Compare: []*pb.Compare{cmp}, Success: []*pb.RequestOp{put}}})
		fail(errors.Join(err, res.Err))
		if t, ok := res.Response.(*pb.TxnResponse); ok {
			rep.Done = t.Succeeded
		}
	case "get":
		if err := n.ReadIndex(ctx); err != nil {
			fail(err)
			return rep
		}
		res, err := st.Range(&pb.RangeRequest{Key: []byte(r.Key)})
		rep.Rev = st.Revision()
		fail(err)
		if err == nil && len(res.Kvs) > 0 {
			rep.Value = string(res.Kvs[0].Value)
		}
	}
	return rep
}

// proc is a peer in its own process.
type proc struct {
	t    *testing.T
	cc   childConfig
	path string
	cmd  *exec.Cmd
	in   io.Closer
}

func startProcs(t *testing.T, n int, tweaks ...func(*childConfig)) []*proc {
	t.Helper()
	ca := newTestCA(t)
	dir, err := os.MkdirTemp("", "raftfsm") // the paths of unix sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var ps []*proc
	for i := range n {
		id := PeerID(randomID())
		_, client, err := ca.issue(t, id)()
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(client.Certificates[0].PrivateKey.(*ecdsa.PrivateKey))
		if err != nil {
			t.Fatal(err)
		}
		p := &proc{t: t, path: filepath.Join(dir, fmt.Sprint("p", i, ".json")), cc: childConfig{
			Dir: filepath.Join(dir, fmt.Sprint("p", i)), Name: fmt.Sprint("p", i), Addr: freeAddr(t), ID: id,
			Socket: filepath.Join(dir, fmt.Sprint("p", i, ".sock")),
			CA:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}),
			Cert:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: client.Certificates[0].Certificate[0]}),
			Key:    pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		}}
		for _, f := range tweaks {
			f(&p.cc)
		}
		if p.cc.Shadow != "" {
			newShadow(t, p.cc.Shadow, p.cc.Dir)
		}
		p.save()
		ps = append(ps, p)
		p.start()
		t.Cleanup(p.kill)
		if i == 0 {
			p.must(childRequest{Op: "bootstrap"})
			continue
		}
		m := Member{ID: id, Name: p.cc.Name, PeerAddr: p.cc.Addr}
		ps[0].must(childRequest{Op: "add", Member: m})
		eventually(t, "the peer is promoted", func() bool { return ps[0].once(childRequest{Op: "promote", Member: m}).Err == "" })
	}
	return ps
}

// save writes the configuration that the process starts with.
func (p *proc) save() {
	p.t.Helper()
	b, err := json.Marshal(p.cc)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proc) start() {
	p.t.Helper()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childEnv+"="+p.path)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.in = in
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process as a crash does.
func (p *proc) kill() {
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p.in.Close()
	p.cmd = nil
}

func (p *proc) connect() (*json.Encoder, *json.Decoder, io.Closer, error) {
	c, err := net.Dial("unix", p.cc.Socket)
	if err != nil {
		return nil, nil, nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	return json.NewEncoder(c), json.NewDecoder(bufio.NewReader(c)), c, nil
}

// once makes one request; a lost connection is an error with an unknown outcome.
func (p *proc) once(r childRequest) childReply {
	enc, dec, c, err := p.connect()
	if err != nil {
		return childReply{Err: err.Error()}
	}
	defer c.Close()
	var rep childReply
	if err := enc.Encode(r); err != nil {
		return childReply{Err: err.Error(), Unknown: true}
	}
	if err := dec.Decode(&rep); err != nil {
		return childReply{Err: err.Error(), Unknown: true}
	}
	return rep
}

// must repeats a request until it succeeds.
func (p *proc) must(r childRequest) childReply {
	p.t.Helper()
	var rep childReply
	eventually(p.t, r.Op+" succeeds", func() bool { rep = p.once(r); return rep.Err == "" })
	return rep
}

func leaderOf(t *testing.T, ps []*proc) *proc {
	t.Helper()
	var l *proc
	eventually(t, "a process leads", func() bool {
		for _, p := range ps {
			if p.cmd != nil && p.once(childRequest{Op: "status"}).Leads {
				l = p
				return true
			}
		}
		return false
	})
	return l
}

func converge(t *testing.T, ps []*proc) {
	t.Helper()
	eventually(t, "all processes hold the same bytes", func() bool {
		h := ps[0].must(childRequest{Op: "hash"}).Value
		for _, p := range ps[1:] {
			if p.must(childRequest{Op: "hash"}).Value != h {
				return false
			}
		}
		return true
	})
}

// Processes killed with SIGKILL under load: whatever was acknowledged is there afterwards, and all peers hold
// the same bytes.
func TestAcknowledgedWritesSurviveKills(t *testing.T) {
	ps := startProcs(t, 3)
	leaderOf(t, ps)
	type ack struct {
		key string
		n   int
	}
	stop := make(chan struct{})
	acks := make(chan ack, 1<<16)
	var last struct {
		sync.Mutex
		at time.Time
	}
	last.at = time.Now()
	var longest time.Duration
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				p := ps[rand.IntN(len(ps))]
				k := fmt.Sprintf("w%d/%d", w, n%50)
				if rep := p.once(childRequest{Op: "put", Key: k, Value: fmt.Sprint(n)}); rep.Err == "" {
					acks <- ack{k, n}
					now := time.Now()
					last.Lock()
					longest = max(longest, now.Sub(last.at))
					last.at = now
					last.Unlock()
				} else {
					time.Sleep(time.Millisecond) // a refused connection: do not spin
				}
			}
		})
	}
	progress := func(n int) {
		t.Helper()
		from := len(acks)
		eventually(t, "writes are acknowledged", func() bool { return len(acks) >= from+n })
	}
	for round := range 4 {
		progress(50)
		victim := leaderOf(t, ps)
		if round == 2 { // a follower for once
			for _, p := range ps {
				if p != victim {
					victim = p
					break
				}
			}
		}
		victim.kill()
		progress(50)
		victim.start()
	}
	// And all at once.
	for _, p := range ps {
		p.kill()
	}
	for _, p := range ps {
		p.start()
	}
	progress(50)
	close(stop)
	wg.Wait()
	close(acks)
	newest := map[string]int{}
	total := 0
	for a := range acks {
		newest[a.key] = max(newest[a.key], a.n)
		total++
	}
	for k, n := range newest {
		var got int
		v := ps[rand.IntN(len(ps))].must(childRequest{Op: "get", Key: k}).Value
		if _, err := fmt.Sscan(v, &got); err != nil || got < n {
			t.Fatalf("%s = %q, but %d was acknowledged", k, v, n)
		}
	}
	converge(t, ps)
	t.Logf("%d writes acknowledged; longest time without one, over four kills and a restart of all: %v", total, longest)
}

type regInput struct {
	op         string
	key        string
	value, old string
}

type regOutput struct {
	value   string
	done    bool
	unknown bool
}

// register is a set of registers with read, write and compare-and-swap.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(regInput).key
			by[k] = append(by[k], o)
		}
		var out [][]porcupine.Operation
		for _, h := range by {
			out = append(out, h)
		}
		return out
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(string), input.(regInput), output.(regOutput)
		switch in.op {
		case "get":
			return out.value == s, s
		case "put":
			return true, in.value
		}
		if s == in.old {
			return out.done || out.unknown, in.value
		}
		return !out.done || out.unknown, s
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// A history recorded while leaders are killed, and frozen so that they wake up deposed, is linearizable.
func TestHistoryIsLinearizable(t *testing.T) {
	ps := startProcs(t, 3)
	leaderOf(t, ps)
	began := time.Now()
	stop := make(chan struct{})
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for id := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(id), 1))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				in := regInput{op: []string{"get", "get", "put", "cas"}[rnd.IntN(4)], key: fmt.Sprint("r", rnd.IntN(3)), value: fmt.Sprint(id, ".", n)}
				if in.op == "cas" {
					in.old = "none" // etcd compares no value with that of a key that does not exist
					mu.Lock()
					for i := len(history) - 1; i >= 0 && in.old == "none"; i-- { // a value that may be there
						if h := history[i].Input.(regInput); h.key == in.key && h.op != "get" {
							in.old = h.value
						}
					}
					mu.Unlock()
				}
				call := time.Since(began).Nanoseconds()
				rep := ps[rnd.IntN(3)].once(childRequest{Op: in.op, Key: in.key, Value: in.value, Old: in.old})
				op := porcupine.Operation{ClientId: id, Input: in, Call: call, Output: regOutput{rep.Value, rep.Done, rep.Unknown}, Return: time.Since(began).Nanoseconds()}
				switch {
				case rep.Err == "":
				case rep.Unknown && in.op != "get":
					op.Return = math.MaxInt64 // may take place any time later
				default:
					time.Sleep(time.Millisecond)
					continue // did not take place
				}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	progress := func() {
		t.Helper()
		count := func() int { mu.Lock(); defer mu.Unlock(); return len(history) }
		from := count()
		eventually(t, "operations are answered", func() bool { return count() > from+150 })
	}
	for round := range 4 {
		progress()
		l := leaderOf(t, ps)
		if round%2 == 0 {
			l.kill()
			progress()
			l.start()
			continue
		}
		// Frozen, it wakes up believing that it leads.
		if err := l.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		others := make([]*proc, 0, 2)
		for _, p := range ps {
			if p != l {
				others = append(others, p)
			}
		}
		next := leaderOf(t, others)
		for i := range 5 {
			next.must(childRequest{Op: "put", Key: "other", Value: fmt.Sprint(i)})
		}
		if err := l.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	progress()
	close(stop)
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	switch porcupine.CheckOperationsTimeout(register, history, 2*patience) {
	case porcupine.Illegal:
		t.Fatalf("a history of %d operations is not linearizable", len(history))
	case porcupine.Unknown:
		t.Fatalf("a history of %d operations could not be checked in time", len(history))
	}
	converge(t, ps)
	t.Logf("%d operations", len(history))
}
