package enroll

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/store"
)

var (
	self  = peer.Identity{ID: "00000000000000a1", Name: "p1", Address: "192.0.2.1"}
	three = []raftfsm.Member{{ID: 0xa1, Name: "p1", PeerAddr: "192.0.2.1:2380", Voter: true}, {ID: 0xa2, Name: "p2", PeerAddr: "192.0.2.2:2380", Voter: true}, {ID: 0xa3, Name: "p3", PeerAddr: "192.0.2.3:2380"}}
)

// The new cluster expects the others of the one that it replaces, whether it is known
// from the disk or from the snapshot; never this host's former self, and nobody removed.
func TestNewClusterExpectsTheOthers(t *testing.T) {
	origin := etcddb.Origin{Cluster: 7, Replaced: []uint64{6}, Removed: []uint64{0xa3}, Members: []etcddb.Member{
		{ID: 0xb1, Name: "p1", PeerURLs: []string{"https://192.0.2.1:2380"}}, {ID: 0xa2, Name: "p2", PeerURLs: []string{"https://192.0.2.2:2380"}}, {ID: 0xa3, Name: "p3", PeerURLs: []string{"https://192.0.2.3:2380"}}, {ID: 0xa4, Name: "p4"},
	}}
	foreign := origin
	foreign.Cluster = 0 // of an etcd server
	for name, c := range map[string]struct {
		old      *raftfsm.Offline
		expected []raftfsm.PeerID
		replaced []uint64
	}{
		"from the disk":     {&raftfsm.Offline{ID: 0xa1, Cluster: 7, Replaced: []uint64{6}, Members: three, Expected: three[1:]}, []raftfsm.PeerID{0xa2, 0xa3}, []uint64{7, 6}},
		"one was removed":   {&raftfsm.Offline{ID: 0xa1, Cluster: 7, Members: three, Removed: []raftfsm.PeerID{0xa2}}, []raftfsm.PeerID{0xa3}, []uint64{7}},
		"from the snapshot": {fromOrigin(origin), []raftfsm.PeerID{0xa2}, []uint64{7, 6}},
		"of an etcd server": {fromOrigin(foreign), nil, nil},
		"nothing is known":  {&raftfsm.Offline{}, nil, nil},
	} {
		n, err := newCluster(peer.Default(), self, c.old)
		if err != nil {
			t.Fatal(err)
		}
		var ids []raftfsm.PeerID
		for _, m := range n.Expected {
			ids = append(ids, m.ID)
		}
		if !reflect.DeepEqual(ids, c.expected) || !reflect.DeepEqual(n.Replaced, c.replaced) || n.Self.ID != 0xa1 || n.Self.PeerAddr != "192.0.2.1:2380" {
			t.Errorf("%s: expects %v, replaces %v, %+v", name, ids, n.Replaced, n.Self)
		}
	}
}

func TestRecoverSaysWhatMayBeLost(t *testing.T) {
	text := RecoverNotice(&raftfsm.Offline{ID: 0xa1, LastIndex: 120, LastTerm: 9, Members: three, Store: store.New(store.Options{})})
	for _, want := range []string{"revision 1", "entry is 120 of term 9", "p2 (192.0.2.2:2380) votes", "p3 (192.0.2.3:2380) does not vote", "votes, this peer", "lost for good"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}
