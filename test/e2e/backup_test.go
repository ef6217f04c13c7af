package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestDisasterRecovery: the raft directories of all peers are lost. A snapshot is
// restored on one of them; the others follow, and what was in the cluster is back,
// with the objects that were made after the snapshot gone.
func TestDisasterRecovery(t *testing.T) {
	whole(t)
	ns := namespace(t)
	apply(t, ns, sleeper)
	waitReady(t, ns, "app=sleeper", 2)
	kubectl(t, "-n", ns, "create", "configmap", "kept", "--from-literal=k=v")
	const file = "/root/disaster.db"
	in(t, 1, "rm -f "+file+" && controld snapshot save "+file+" && controld snapshot inspect "+file)
	kubectl(t, "-n", ns, "create", "configmap", "lost", "--from-literal=k=v")
	before, err := status(1)
	if err != nil {
		t.Fatal(err)
	}

	for i := 1; i <= hosts; i++ {
		in(t, i, "systemctl stop controld")
	}
	for i := 1; i <= hosts; i++ {
		in(t, i, "rm -rf /var/lib/controld/raft")
	}
	if out, err := tryIn(1, "controld snapshot restore "+file); err == nil || !strings.Contains(err.Error(), "--yes") {
		t.Errorf("a restore that nobody confirmed: %v\n%s", err, out)
	}
	t.Log(in(t, 1, "controld snapshot restore --yes "+file))
	for i := 2; i <= hosts; i++ {
		in(t, i, "systemctl start controld")
	}
	eventually(t, 3*time.Minute, "all peers vote in the new cluster", func() error {
		st, err := status(1)
		if err != nil {
			return err
		}
		voters := 0
		for _, p := range st.Peers {
			if p.Voter && p.Reachable {
				voters++
			}
		}
		if voters != hosts {
			return fmt.Errorf("%d of %d peers vote", voters, hosts)
		}
		return nil
	})
	whole(t)
	after, err := status(1)
	if err != nil {
		t.Fatal(err)
	}
	if after.Revision <= before.Revision {
		t.Errorf("the revision went from %d to %d", before.Revision, after.Revision)
	}
	kubectl(t, "-n", ns, "get", "configmap", "kept")
	if out, err := tryKubectl("-n", ns, "get", "configmap", "lost"); err == nil {
		t.Errorf("what was made after the snapshot is there:\n%s", out)
	}
	waitReady(t, ns, "app=sleeper", 2)
	kubectl(t, "-n", ns, "scale", "deployment/sleeper", "--replicas=3")
	waitReady(t, ns, "app=sleeper", 3)
}

// TestRestoreUnderARunningCluster: a snapshot is restored on one peer while the others
// run. They learn that their cluster was replaced, and follow.
func TestRestoreUnderARunningCluster(t *testing.T) {
	whole(t)
	ns := namespace(t)
	kubectl(t, "-n", ns, "create", "configmap", "kept", "--from-literal=k=v")
	const file = "/root/running.db"
	in(t, 2, "rm -f "+file+" && controld snapshot save "+file)
	kubectl(t, "-n", ns, "create", "configmap", "lost", "--from-literal=k=v")
	t.Log(in(t, 2, "controld snapshot restore --yes "+file))
	eventually(t, 3*time.Minute, "all peers serve what was restored", func() error {
		for i := 1; i <= hosts; i++ {
			st, err := status(i)
			if err != nil {
				return err
			}
			if !st.Ready || len(st.Peers) != hosts {
				return fmt.Errorf("host %d: ready %t, %d peers", i, st.Ready, len(st.Peers))
			}
		}
		return nil
	})
	whole(t)
	kubectl(t, "-n", ns, "get", "configmap", "kept")
	if out, err := tryKubectl("-n", ns, "get", "configmap", "lost"); err == nil {
		t.Errorf("what was made after the snapshot is there:\n%s", out)
	}
}
