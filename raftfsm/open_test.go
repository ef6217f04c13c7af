package raftfsm

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tripod-cluster/tripod/store"
)

// Whatever keeps a peer from starting is named, with the file or port, and nothing stays behind: the same Open
// works once the cause is gone.
func TestOpenNamesWhatIsWrong(t *testing.T) {
	c := newCluster(t, 1, nil)
	p := c.peers[0]
	for i := range 20 {
		p.put(t, fmt.Sprint("k", i), strings.Repeat("v", 100))
	}
	c.stop(p)

	broken := func(name string, wants []string, harm func(cfg *Config) (mend func())) {
		t.Helper()
		cfg := p.cfg
		cfg.Store = store.New(store.Options{})
		cfg.Registerer = prometheus.NewRegistry()
		mend := harm(&cfg)
		n, err := Open(cfg)
		if err == nil {
			n.Close()
			t.Fatalf("%s: opened", name)
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error does not say %q: %v", name, want, err)
			}
		}
		mend()
		c.start(p)
		if err := p.ReadIndex(c.ctx()); err != nil {
			t.Fatalf("%s: after mending: %v", name, err)
		}
		if p.get(t, "k19") == "" {
			t.Fatalf("%s: state is gone", name)
		}
		c.stop(p)
	}
	broken("port in use", []string{p.cfg.ListenPeer, "in use", "ss -ltnp"}, func(cfg *Config) func() {
		l, err := net.Listen("tcp", cfg.ListenPeer)
		if err != nil {
			t.Fatal(err)
		}
		return func() { l.Close() }
	})
	broken("directory in use", []string{p.cfg.Dir, "another process"}, func(cfg *Config) func() {
		c.start(p)
		cfg.ListenPeer = freeAddr(t)
		return func() { c.stop(p) }
	})
	broken("other ID", []string{p.cfg.Dir, p.id.String()}, func(cfg *Config) func() {
		cfg.ID = 99
		return func() {}
	})
	damage := func(path string, f func([]byte) []byte) func() {
		t.Helper()
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f(append([]byte(nil), good...)), 0o600); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	both := func(path string, f func([]byte) []byte) func() {
		t.Helper()
		first, second := damage(path, f), damage(path+secondCopy, f)
		return func() { first(); second() }
	}
	broken("damaged identity", []string{identityFile, "damaged"}, func(cfg *Config) func() {
		return both(filepath.Join(cfg.Dir, identityFile), func([]byte) []byte { return []byte("{") })
	})
	broken("damaged vote", []string{voteFile, "damaged", "must not vote"}, func(cfg *Config) func() {
		return both(filepath.Join(cfg.Dir, voteFile), func(b []byte) []byte { b[20] ^= 1; return b })
	})
	broken("damaged log", []string{".wal", "byte", "damaged", "join it again"}, func(cfg *Config) func() {
		files, err := filepath.Glob(filepath.Join(cfg.Dir, walDir, "*.wal"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		return damage(files[0], func(b []byte) []byte {
			i := strings.Index(string(b), "vvvvvvvv")
			b[i] ^= 1
			return b
		})
	})
	broken("damaged list of segments", []string{segmentsFile, "damaged"}, func(cfg *Config) func() {
		return both(filepath.Join(cfg.Dir, walDir, segmentsFile), func(b []byte) []byte { b[20] ^= 1; return b })
	})
	broken("not a directory", []string{"raft directory"}, func(cfg *Config) func() {
		f := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Dir = filepath.Join(f, "below")
		return func() {}
	})
	broken("metrics registered twice", []string{"metrics"}, func(cfg *Config) func() {
		reg := prometheus.NewRegistry()
		reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "tripod_raft_term", Help: "x"}))
		cfg.Registerer = reg
		return func() {}
	})
}

func TestConfigIsChecked(t *testing.T) {
	ok := Config{Dir: t.TempDir(), Name: "a", Store: store.New(store.Options{}), TLS: newTestCA(t).issue(t, 1), ListenPeer: ":1", AdvertisePeer: "h:1"}
	if c := ok; c.complete() != nil {
		t.Fatal(c.complete())
	}
	for name, f := range map[string]func(*Config){
		"dir": func(c *Config) { c.Dir = "" }, "name": func(c *Config) { c.Name = "" }, "store": func(c *Config) { c.Store = nil },
		"tls": func(c *Config) { c.TLS = nil }, "listen": func(c *Config) { c.ListenPeer = "x" },
		"advertise": func(c *Config) { c.AdvertisePeer = ":2380" }, "lease": func(c *Config) { c.LeaderLeaseTimeout = 1 << 60 },
	} {
		c := ok
		f(&c)
		if c.complete() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestMetricsAreRegisteredAndTakenBack(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := newCluster(t, 1, func(c *Config) { c.Registerer = reg })
	p := c.peers[0]
	p.put(t, "a", "1")
	got, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range got {
		m := f.Metric[0]
		values[f.GetName()] = m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	for _, name := range []string{"tripod_raft_is_leader", "tripod_raft_term", "tripod_raft_applied_index", "tripod_raft_propose_seconds", "tripod_raft_voter"} {
		if values[name] < 1 {
			t.Errorf("%s = %v", name, values[name])
		}
	}
	c.stop(p)
	c.start(p) // would fail on metrics that were left behind
}

func TestIdentityIsStable(t *testing.T) {
	dir := t.TempDir()
	a, err := EnsureID(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := EnsureID(dir)
	if err != nil || a != b || a == 0 {
		t.Fatal(a, b, err)
	}
	back, err := ParsePeerID(a.String())
	if err != nil || back != a {
		t.Fatal(back, err)
	}
	for _, s := range []string{"", "0", "x", "11112222333344445"} {
		if _, err := ParsePeerID(s); err == nil {
			t.Errorf("%q is a peer ID", s)
		}
	}
}
