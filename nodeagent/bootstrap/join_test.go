package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/nodeagent/peers"
	"github.com/tripod-cluster/tripod/pki"
)

// site is a host about to join a fake cluster.
type site struct {
	api  *fakeAPI
	host *fakeHost
	dir  string
	out  bytes.Buffer
	o    Options
}

func newSite(t *testing.T) *site {
	s := &site{api: newFakeAPI(t), dir: t.TempDir()}
	s.host = &fakeHost{machineID: "m1", busy: map[string]bool{}, isDefault: true}
	s.host.onStart = func() {
		s.api.mu.Lock()
		defer s.api.mu.Unlock()
		s.api.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{MachineID: "m1"},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
	}
	s.o = Options{Token: s.api.token, Server: s.api.addr(), NodeName: "n1", Root: filepath.Join(s.dir, "state"),
		ContainerdConfig: filepath.Join(s.dir, "containerd", "config.toml"), Host: s.host, Out: &s.out, ReadyTimeout: time.Minute}
	return s
}

func (s *site) join(t *testing.T) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return Join(ctx, s.o)
}

func TestJoinMakesANode(t *testing.T) {
	s := newSite(t)
	https, port := "https", int32(6443)
	s.api.slices = []discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.11"}}, {Addresses: []string{"192.0.2.12"}}}, Ports: []discoveryv1.EndpointPort{{Name: &https, Port: &port}}}}
	if err := s.join(t); err != nil {
		t.Fatalf("%v\n%s", err, s.out.String())
	}
	p := Paths{s.o.Root}
	pair, err := LoadPair(p.ClientCert())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := NodeName(pair); err != nil || n != "n1" || !slices.Equal(pair.Leaf.Subject.Organization, []string{NodesGroup}) {
		t.Errorf("certificate of %v in %v: %v", pair.Leaf.Subject.CommonName, pair.Leaf.Subject.Organization, err)
	}
	for name := range tree(t, s.o.Root) {
		if st, err := os.Stat(s.o.Root + name); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", name, st.Mode(), err)
		}
	}
	set, err := peers.Open(p.Peers())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"192.0.2.11:6443", "192.0.2.12:6443", s.api.addr()} {
		if !slices.Contains(set.Candidates(), want) {
			t.Errorf("peer %s is not known: %v", want, set.Candidates())
		}
	}
	if want := []string{"restart containerd.service", "enable --now noded.service"}; !slices.Equal(s.host.ctl, want) {
		t.Errorf("systemctl calls %q, want %q", s.host.ctl, want)
	}
	// Again: nothing is asked for or restarted a second time.
	before := tree(t, s.dir)
	s.host.ctl = nil
	if err := s.join(t); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(before, tree(t, s.dir)) || len(s.api.csrs) != 1 || slices.Contains(s.host.ctl, "restart containerd.service") {
		t.Errorf("a second run changed something: %v, %d requests", s.host.ctl, len(s.api.csrs))
	}
	if !strings.Contains(s.out.String(), "already joined as node n1") {
		t.Errorf("the second run does not say so:\n%s", s.out.String())
	}
}

// Each refusal names the cause and the next step, and leaves the host as it was;
// once the cause is mended the same command works.
func TestJoinRefusesAndRecovers(t *testing.T) {
	fresh := func(now time.Time) *coordinationv1.Lease {
		mt := metav1.NewMicroTime(now)
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &mt}}
	}
	for name, tc := range map[string]struct {
		brk  func(*site)
		mend func(*site)
		want []string
	}{
		"not root":   {func(s *site) { s.host.uid = 1000 }, func(s *site) { s.host.uid = 0 }, []string{"root", "sudo"}},
		"bad name":   {func(s *site) { s.o.NodeName = "N_1" }, func(s *site) { s.o.NodeName = "n1" }, []string{`"N_1"`, "hostnamectl"}},
		"port taken": {func(s *site) { s.host.busy[":10250"] = true }, func(s *site) { s.host.busy = nil }, []string{"10250", "already in use", "ss -ltnp"}},
		"health port taken": {func(s *site) { s.host.busy["127.0.0.1:10248"] = true }, func(s *site) { s.host.busy = nil },
			[]string{"10248", "already in use"}},
		"no containerd": {func(s *site) { s.host.noCRI = true }, func(s *site) { s.host.noCRI = false }, []string{"containerd", "apt install containerd"}},
		"wrong token": {func(s *site) { s.o.Token.Secret = "0000000000000000" }, func(s *site) { s.o.Token = s.api.token },
			[]string{"does not accept", "expired", "controld token --role node"}},
		"peer's token": {func(s *site) { s.o.Token.Role = pki.RolePeer }, func(s *site) { s.o.Token = s.api.token }, []string{`"peer"`, "controld token --role node"}},
		"another cluster": {func(s *site) { s.o.Token.CAHash = strings.Repeat("ab", 32) }, func(s *site) { s.o.Token = s.api.token },
			[]string{"does not belong to the cluster", "controld token --role node"}},
		"clock behind": {func(s *site) { s.api.offset = time.Hour }, func(s *site) { s.api.offset = 0 }, []string{"clocks differ by", "timedatectl"}},
		"clock ahead":  {func(s *site) { s.api.offset = -time.Hour }, func(s *site) { s.api.offset = 0 }, []string{"clocks differ by", "timedatectl"}},
		"clock before the certificate": {func(s *site) {
			s.api.srv.Close()
			s.api.serve(t, time.Now().Add(time.Hour))
			s.api.offset = time.Hour
			s.o.Server = s.api.addr()
		}, func(s *site) {
			s.api.srv.Close()
			s.api.serve(t, time.Now())
			s.api.offset = 0
			s.o.Server = s.api.addr()
		}, []string{"clocks differ by", "timedatectl"}},
		"denied": {func(s *site) { s.api.deny = "no more nodes" }, func(s *site) { s.api.deny = "" }, []string{"refused", "no more nodes"}},
		"name of a living host": {func(s *site) {
			s.api.node = &v1.Node{Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{MachineID: "m2"}, Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.7"}}}}
			s.api.lease = fresh(time.Now())
		}, func(s *site) { s.api.lease = fresh(time.Now().Add(-time.Hour)) }, []string{"n1 is taken", "192.0.2.7", "--node-name", "kubectl delete node n1"}},
		"nobody answers": {func(s *site) { s.o.Server = "127.0.0.1:1" }, func(s *site) { s.o.Server = s.api.addr() }, []string{"127.0.0.1:1", "systemctl status controld"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			tc.brk(s)
			err := s.join(t)
			if err == nil {
				t.Fatal("joined")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error does not say %q: %v", w, err)
				}
			}
			if strings.Contains(err.Error(), s.api.token.Secret) {
				t.Errorf("the error shows the secret: %v", err)
			}
			if left := tree(t, s.dir); len(left) != 0 {
				t.Errorf("a refused join left %v", slices.Collect(maps.Keys(left)))
			}
			tc.mend(s)
			if err := s.join(t); err != nil {
				t.Errorf("does not work once mended: %v", err)
			}
		})
	}
}

func TestJoinOfTheSameHostTakesItsNameBack(t *testing.T) {
	s := newSite(t)
	now := metav1.NewMicroTime(time.Now())
	s.api.node = &v1.Node{Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{MachineID: "m1"}}}
	s.api.lease = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
	if err := s.join(t); err != nil {
		t.Fatal(err)
	}
}

func TestJoinDoesNotMoveAHostToAnotherCluster(t *testing.T) {
	s := newSite(t)
	if err := s.join(t); err != nil {
		t.Fatal(err)
	}
	other := newFakeAPI(t)
	s.o.Token, s.o.Server = other.token, other.addr()
	err := s.join(t)
	if err == nil || !strings.Contains(err.Error(), "noded reset") {
		t.Fatalf("got %v", err)
	}
	s.o.Force = true
	s.host.onStart = func() {}
	other.node = &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
	if err := s.join(t); err != nil {
		t.Fatalf("--force: %v", err)
	}
	if set, err := peers.Open(Paths{s.o.Root}.Peers()); err != nil || slices.Contains(set.Candidates(), s.api.addr()) {
		t.Errorf("the old cluster's peer is still known: %v", err)
	}
}

func TestJoinSaysWhatItWaitsFor(t *testing.T) {
	s := newSite(t)
	s.api.approve = false
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w := &watchWriter{want: "waiting for approval", seen: make(chan struct{})}
	s.o.Out = w
	go func() { done <- Join(ctx, s.o) }()
	select {
	case <-w.seen:
	case <-time.After(time.Minute):
		t.Fatal("silent for a minute")
	}
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "kubectl get csr") {
		t.Fatalf("got %v", err)
	}
	if left := tree(t, s.dir); len(left) != 0 {
		t.Errorf("an interrupted join left %v", left)
	}
}

type watchWriter struct {
	want string
	seen chan struct{}
	done bool
}

func (w *watchWriter) Write(p []byte) (int, error) {
	if !w.done && strings.Contains(string(p), w.want) {
		w.done = true
		close(w.seen)
	}
	return len(p), nil
}

func TestContainerdConfigurationOfTheOperatorStays(t *testing.T) {
	s := newSite(t)
	s.host.isDefault = false
	if err := os.MkdirAll(filepath.Dir(s.o.ContainerdConfig), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.o.ContainerdConfig, []byte("version = 2\n# mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.join(t); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(s.o.ContainerdConfig); string(b) != "version = 2\n# mine\n" {
		t.Errorf("changed to %s", b)
	}
	if !strings.Contains(s.out.String(), "sandbox_image") {
		t.Errorf("the operator is not told what it must hold:\n%s", s.out.String())
	}
}

func TestContainerdConfigurationIsReplacedOnlyWhereItMay(t *testing.T) {
	conf := []byte(configMark + "\nversion = 2\n")
	isDefault := func(_ string, c []byte) bool { return string(c) == "package\n" }
	for name, tc := range map[string]struct {
		old     string
		changed bool
		backup  bool
		foreign bool
	}{
		"absent":          {"", true, false, false},
		"package default": {"package\n", true, true, false},
		"ours, older":     {configMark + "\nversion = 1\n", true, false, false},
		"ours, same":      {string(conf), false, false, false},
		"operator's":      {"mine\n", false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := filepath.Join(t.TempDir(), "etc", "config.toml")
			if tc.old != "" {
				_ = os.MkdirAll(filepath.Dir(p), 0o755)
				if err := os.WriteFile(p, []byte(tc.old), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			changed, err := writeContainerdConfig(p, conf, isDefault)
			if changed != tc.changed || errors.Is(err, ErrForeignConfig) != tc.foreign || (err != nil && !tc.foreign) {
				t.Fatalf("changed %v, %v", changed, err)
			}
			b, _ := os.ReadFile(p)
			if want := map[bool]string{true: tc.old, false: string(conf)}[tc.foreign]; string(b) != want {
				t.Errorf("the file holds %q", b)
			}
			if _, err := os.Stat(p + ".tripod-backup"); (err == nil) != tc.backup {
				t.Errorf("backup: %v", err)
			}
		})
	}
}

func TestContainerdConfigurationFollowsTheVersion(t *testing.T) {
	for out, want := range map[string][]string{
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3": {"version = 2", `sandbox_image = "tripod.local/pause:1"`, "io.containerd.grpc.v1.cri", `bin_dir = "/x"`},
		"containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da":    {"version = 2"},
		"containerd github.com/containerd/containerd/v2 v2.0.4 1a43cb6a":              {"version = 3", `sandbox = "tripod.local/pause:1"`, "io.containerd.cri.v1.runtime", `bin_dir = "/x"`},
		"containerd containerd.io v2.1.3 c787fb98911740dd3ff2d0e45ce88cdf01410486":    {"version = 3", `bin_dirs = ["/x"]`},
	} {
		major, minor, err := parseContainerdVersion(out)
		if err != nil {
			t.Fatal(err)
		}
		b, err := containerdConfig(ContainerdSettings{Major: major, Minor: minor, SandboxImage: DefaultSandboxImage, CNIBinDir: "/x", SystemdCgroup: true, RestrictOOM: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range append(want, "SystemdCgroup = true", "restrict_oom_score_adj = true") {
			if !strings.Contains(string(b), w) {
				t.Errorf("%s: no %s in\n%s", out, w, b)
			}
		}
	}
	for _, out := range []string{"containerd 1.4.3 x", "no version"} {
		if _, _, err := parseContainerdVersion(out); err == nil {
			t.Errorf("%q was taken", out)
		}
	}
}
