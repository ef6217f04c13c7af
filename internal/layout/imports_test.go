package layout

import (
	"fmt"
	"slices"
	"strings"
)

// room says what a package may import. The first room that holds a package counts.
type room struct {
	pkgs []string // patterns, see within
	own  []string // of this module
	test []string // of this module, by its tests beside what own allows
	// only, where it is set, lists all of others' packages that it may import, the
	// standard library apart; never lists what it may not. Tests are free in both.
	only  []string
	never []string
	why   string // the rule in words
}

var (
	kubernetesMachinery = []string{"k8s.io/apiserver/...", "k8s.io/kubernetes/...", "go.etcd.io/...", "github.com/hashicorp/raft/..."}
	everythingOfK8s     = []string{"k8s.io/...", "sigs.k8s.io/..."}
	nothing             = []string{}
)

// rooms is the table of ARCHITECTURE.md, "Packages and who may import whom".
var rooms = []room{
	{pkgs: []string{"store"}, only: []string{"go.etcd.io/etcd/api/v3/...", "github.com/tidwall/btree", "google.golang.org/protobuf/proto", "google.golang.org/grpc/codes", "google.golang.org/grpc/status"},
		why: "store is a pure state machine: etcd's API types, a B-tree and the standard library"},
	{pkgs: []string{"pki"}, only: nothing, why: "pki needs the standard library alone"},
	{pkgs: []string{"raftfsm"}, own: []string{"store"}, never: everythingOfK8s, why: "raftfsm orders the store's requests and knows no API"},
	{pkgs: []string{"backup/etcddb"}, own: []string{"store"}, never: everythingOfK8s, why: "it is the store's state in etcd's file"},
	{pkgs: []string{"backup"}, own: []string{"backup/etcddb", "store"}, never: everythingOfK8s, why: "backups are of the store and know no API"},
	{pkgs: []string{"etcdapi"}, own: []string{"store", "backup/etcddb"}, never: everythingOfK8s, why: "etcdapi is a front door of the store, beside apiserver"},

	{pkgs: []string{"apiserver/internal/...", "apiserver/storage"}, own: []string{"store"}, test: []string{"apiserver/..."}, why: "the API's storage is over the store"},
	{pkgs: []string{"apiserver"}, own: []string{"apiserver/...", "store", "pki"}, test: []string{"etcdapi"}, why: "apiserver is a front door of the store, beside etcdapi"},

	{pkgs: []string{"controllers/runtime/..."}, own: []string{"controllers/runtime/..."}, never: kubernetesMachinery, why: "controllers see Kubernetes clients only"},
	{pkgs: []string{"controllers/*"}, own: []string{"controllers/runtime/..."}, never: kubernetesMachinery, why: "a controller sees Kubernetes clients and controllers/runtime, never another controller"},
	{pkgs: []string{"controllers"}, own: []string{"controllers/..."}, never: kubernetesMachinery, why: "controllers see Kubernetes clients only"},

	{pkgs: []string{"scheduling/cluster"}, never: kubernetesMachinery, why: "the scheduler's view stands alone"},
	{pkgs: []string{"scheduling/schedtest"}, own: []string{"scheduling/cluster", "scheduling/plugin"}, never: kubernetesMachinery, why: "it makes what plugins see"},
	{pkgs: []string{"scheduling/plugin"}, own: []string{"scheduling/cluster"}, never: kubernetesMachinery, why: "a plugin sees the scheduler's view"},
	{pkgs: []string{"scheduling/plugins/*"}, own: []string{"scheduling/cluster", "scheduling/plugin"}, test: []string{"scheduling/schedtest"}, never: kubernetesMachinery,
		why: "a plugin sees the scheduler's view, never another plugin"},
	{pkgs: []string{"scheduling/engine"}, own: []string{"scheduling/cluster", "scheduling/plugin"}, test: []string{"scheduling/..."}, never: kubernetesMachinery, why: "the engine decides and knows no plugin by name"},
	{pkgs: []string{"scheduling/profile"}, own: []string{"scheduling/engine", "scheduling/plugin", "scheduling/plugins/..."}, never: kubernetesMachinery, why: "it makes profiles of plugins"},
	{pkgs: []string{"scheduling/standalone"}, own: []string{"scheduling", "scheduling/profile"}, never: kubernetesMachinery, why: "it runs a scheduler against an API"},
	{pkgs: []string{"scheduling"}, own: []string{"scheduling/..."}, never: kubernetesMachinery, why: "the scheduler sees Kubernetes clients only"},

	{pkgs: []string{"nodeagent/..."}, own: []string{"nodeagent/...", "pki"}, never: kubernetesMachinery, why: "the node agent imports nothing of the control plane"},

	{pkgs: []string{"dataplane/iptables", "dataplane/ipvs"}, own: []string{"dataplane", "dataplane/xtables"}, test: []string{"dataplane/nettest"}, never: everythingOfK8s,
		why: "a backend sees the service model, and neither Kubernetes types nor the other backend"},
	{pkgs: []string{"dataplane/xtables", "dataplane/nettest"}, test: []string{"dataplane/nettest"}, never: everythingOfK8s, why: "the kernel's side stands alone"},
	{pkgs: []string{"dataplane/conntrack"}, own: []string{"dataplane"}, test: []string{"dataplane/nettest"}, never: everythingOfK8s, why: "it cleans flows of the service model"},
	{pkgs: []string{"dataplane/kube"}, own: []string{"dataplane"}, never: kubernetesMachinery, why: "it turns Kubernetes objects into the service model and knows no backend"},
	{pkgs: []string{"dataplane/modes"}, own: []string{"dataplane", "dataplane/iptables", "dataplane/ipvs"}, test: []string{"dataplane/nettest"}, never: everythingOfK8s, why: "it opens a backend by name"},
	{pkgs: []string{"dataplane/flow"}, test: []string{"dataplane/..."}, never: everythingOfK8s, why: "tests only"},
	{pkgs: []string{"dataplane/bench"}, test: []string{"dataplane/...", "test/figure"}, never: everythingOfK8s, why: "tests only"},
	{pkgs: []string{"dataplane"}, never: everythingOfK8s, why: "the service model has no Kubernetes types"},

	{pkgs: []string{"controlplane/vip"}, why: "it knows an address and no cluster"},
	{pkgs: []string{"controlplane/peer"}, own: []string{"backup", "pki"}, never: []string{"k8s.io/..."}, why: "it reads, checks and writes what a peer is"},
	{pkgs: []string{"controlplane/members"}, own: []string{"etcdapi", "raftfsm", "store"}, never: []string{"k8s.io/..."}, why: "it shows raftfsm's members to etcdapi"},
	{pkgs: []string{"controlplane/enroll"}, own: []string{"backup/etcddb", "controlplane/peer", "controlplane/vip", "pki", "raftfsm", "store"}, never: everythingOfK8s, why: "it runs where there is no cluster, or none that serves"},
	{pkgs: []string{"controlplane"}, own: []string{"backup/...", "controlplane/members", "controlplane/peer", "controlplane/vip", "apiserver", "etcdapi", "raftfsm", "store", "pki", "controllers", "scheduling", "scheduling/profile"}, why: "it assembles a peer"},

	{pkgs: []string{"cmd/controld"}, own: []string{"backup/...", "controlplane/...", "internal/heap", "pki", "scheduling/profile", "scheduling/standalone"}, why: "flags, configuration, wiring"},
	{pkgs: []string{"cmd/noded"}, own: []string{"nodeagent/...", "dataplane/...", "pki"}, never: kubernetesMachinery, why: "flags, configuration, wiring; nothing of the control plane"},
	{pkgs: []string{"cmd/kubectl"}, why: "Kubernetes' own program"},

	{pkgs: []string{"images/*"}, only: nothing, why: "programs of images need the standard library alone"},
	{pkgs: []string{"packaging", "internal/..."}, why: "nothing of the product"},
	{pkgs: []string{"test/figure"}, only: nothing, why: "the form of benchmarks' results, for every package's benchmarks"},
	{pkgs: []string{"test/fleet", "test/guest"}, why: "tools that know nothing of the product"},
	{pkgs: []string{"test/..."}, own: []string{"..."}, why: "tests of the whole"},
}

// kubernetesUsers are those who may import k8s.io/kubernetes, whose build takes
// minutes that the tests of everything else must not pay for.
var kubernetesUsers = []string{
	"apiserver/...", "controlplane/...", "cmd/controld",
	"test/conformance/...", // runs upstream's own tests
}

// neverImported are those whom we are measured against.
var neverImported = []string{"k8s.io/kubernetes/pkg/scheduler/...", "k8s.io/kubernetes/pkg/controller/...", "k8s.io/kubernetes/pkg/kubelet/...", "k8s.io/kubernetes/pkg/proxy/..."}

func checkImports(tr tree) ([]string, error) {
	files, err := tr.goFiles()
	if err != nil {
		return nil, err
	}
	var bad []string
	for _, f := range files {
		say := func(imp, why string) { bad = append(bad, fmt.Sprintf("%s imports %s: %s", f.name, imp, why)) }
		i := slices.IndexFunc(rooms, func(r room) bool { return within(f.dir, r.pkgs) })
		if i < 0 {
			bad = append(bad, fmt.Sprintf("%s: the package is in no room: say in rooms, and in ARCHITECTURE.md, what it may import", f.name))
			continue
		}
		r := rooms[i]
		for _, imp := range f.own {
			// A test of the package's own API is in the directory that it imports.
			if imp == f.dir && f.test || slices.Contains(r.own, "...") || within(imp, r.own) || f.test && within(imp, r.test) {
				continue
			}
			say(imp, r.why)
		}
		for _, imp := range f.others {
			switch {
			case within(imp, neverImported):
				say(imp, "never, not even in tests")
			case within(imp, []string{"k8s.io/kubernetes/..."}) && !within(f.dir, kubernetesUsers):
				say(imp, "only apiserver, controlplane and cmd/controld do")
			case f.test || !strings.Contains(strings.SplitN(imp, "/", 2)[0], "."): // the standard library
			case r.only != nil && !within(imp, r.only), within(imp, r.never):
				say(imp, r.why)
			}
		}
	}
	return bad, nil
}
