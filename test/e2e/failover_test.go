package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

const sleeper = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: sleeper}
spec:
  replicas: 2
  selector: {matchLabels: {app: sleeper}}
  template:
    metadata: {labels: {app: sleeper}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: tripod.local/client:1
        command: [sleep, infinity]
`

func addrs() []string {
	var a []string
	for i := 1; i <= hosts; i++ {
		a = append(a, cluster.Addr(i))
	}
	return a
}

// TestLeaderLoss: the leader's process is killed, and then a leader's host loses
// power. Writes resume through the other peers and through the virtual address,
// nothing acknowledged is lost, scheduler and controllers go on.
func TestLeaderLoss(t *testing.T) {
	for _, c := range []struct {
		name string
		hit  func(t *testing.T, i int)
		mend func(t *testing.T, i int)
	}{
		{"kill -9 of controld", func(t *testing.T, i int) {
			in(t, i, "systemctl kill -s KILL --kill-whom=main controld")
		}, func(*testing.T, int) {}}, // systemd starts it again
		{"power cut of its host", func(t *testing.T, i int) {
			if err := cluster.Kill(context.Background(), i); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, i int) {
			if err := cluster.Start(context.Background(), i); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole(t)
			ns := namespace(t)
			apply(t, ns, sleeper)
			waitReady(t, ns, "app=sleeper", 2)
			l := leader(t)
			peers := startWriter(t, ns, "peers", addrs()...)
			vip := startWriter(t, ns, "vip", "")
			peers.reset()
			vip.reset()
			c.hit(t, l)
			peers.advance(t, 20)
			vip.advance(t, 20)
			// The deciders go on: a new replica is made, placed and run by a host that lives.
			kubectl(t, "-n", ns, "scale", "deployment/sleeper", "--replicas=4")
			eventually(t, 3*time.Minute, "two more pods run", func() error {
				n := 0
				for _, p := range readyPods(t, client(t, ""), ns, "app=sleeper") {
					if p.Spec.NodeName != cluster.Host(l) {
						n++
					}
				}
				if n < 2 {
					return fmt.Errorf("%d run on the other hosts", n)
				}
				return nil
			})
			c.mend(t, l)
			whole(t)
			gap, n := peers.finish(t)
			gapVIP, nVIP := vip.finish(t)
			t.Logf("leader was host %d; longest time without an acknowledged write: %v through the peers (%d writes), %v through the virtual address (%d writes); none lost",
				l, gap.Round(time.Millisecond), n, gapVIP.Round(time.Millisecond), nVIP)
			waitReady(t, ns, "app=sleeper", 4)
		})
	}
}

// TestAllAtOnce: every peer is restarted at the same time, and then every host
// loses power at the same time. Nothing is lost and all comes back by itself.
func TestAllAtOnce(t *testing.T) {
	each := func(t *testing.T, what string, f func(i int) error) {
		t.Helper()
		errs := make(chan error, hosts)
		for i := 1; i <= hosts; i++ {
			go func() { errs <- f(i) }()
		}
		for range hosts {
			if err := <-errs; err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	for _, c := range []struct {
		name string
		hit  func(t *testing.T)
	}{
		{"restart of all peers", func(t *testing.T) {
			each(t, "restart", func(i int) error { _, err := tryIn(i, "systemctl restart controld"); return err })
		}},
		{"power cut of all hosts", func(t *testing.T) {
			each(t, "kill", func(i int) error { return cluster.Kill(context.Background(), i) })
			each(t, "start", func(i int) error { return cluster.Start(context.Background(), i) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole(t)
			ns := namespace(t)
			apply(t, ns, sleeper)
			waitReady(t, ns, "app=sleeper", 2)
			w := startWriter(t, ns, "w", addrs()...)
			w.advance(t, 50)
			w.reset()
			c.hit(t)
			w.advance(t, 20)
			whole(t)
			gap, n := w.finish(t)
			t.Logf("longest time without an acknowledged write: %v; %d writes, none lost", gap.Round(time.Millisecond), n)
			waitReady(t, ns, "app=sleeper", 2)
			waitReady(t, "default", "app=hello", 3)
			if out := in(t, 1, "curl -sS --max-time 10 --retry 5 --retry-all-errors http://"+cluster.Addr(2)+":30080"); !strings.Contains(out, "Tripod serves this page") {
				t.Errorf("the application answers %q", out)
			}
		})
	}
}
