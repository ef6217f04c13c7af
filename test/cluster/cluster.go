// Package cluster reaches a cluster that `make up` made, for tests and benchmarks: its hosts by the fleet script, its
// API with client-go and kubectl. The machine's own network is never used: connections are opened inside the network
// namespaces of the fleet.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/test/fleet"
)

// Hosts is how many hosts `make up` boots; every one runs controld and noded.
const Hosts = 3

// patience bounds every command, so that a hung one ends with what it said.
const patience = 5 * time.Minute

// Cluster is a fleet with a cluster on it. Methods may be called at the same time.
type Cluster struct {
	fleet.Fleet
	State string // directory in which `make up` left the kubeconfig
}

// FromEnv is the cluster of `make up`. FLEET_DIR, FLEET_NET and FLEET_PREFIX in the environment choose another fleet,
// TRIPOD_STATE the .tripod of another checkout. It is an error if there is no kubeconfig.
func FromEnv() (Cluster, error) {
	c := Cluster{
		Fleet: fleet.Fleet{Dir: os.Getenv("FLEET_DIR"), Net: os.Getenv("FLEET_NET"), Prefix: os.Getenv("FLEET_PREFIX")},
		State: os.Getenv("TRIPOD_STATE"),
	}
	if c.State == "" {
		c.State = filepath.Join(fleet.Top(), ".tripod")
	}
	if _, err := os.Stat(c.Kubeconfig()); err != nil {
		return c, fmt.Errorf("no cluster (%w): run `make up` first, or `make e2e` or `make bench`, which do", err)
	}
	return c, nil
}

// Kubeconfig is the path of the administrator's, whose server is the virtual address.
func (c Cluster) Kubeconfig() string { return filepath.Join(c.State, "kubeconfig") }

// Switch is the network namespace outside the hosts, where clients stand; a host's namespace is named as the host is.
func (c Cluster) Switch() string { return strings.TrimSuffix(c.Host(0), "0") + "sw" }

// Gateway is the address of the switch, which hosts reach.
func (c Cluster) Gateway() string { return strings.TrimSuffix(c.Addr(0), ".10") + ".1" }

// Inside runs f in a network namespace of the fleet, on a thread of its own that ends with it. Sockets stay in the
// namespace in which f opened them.
func (c Cluster) Inside(ns string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		h, err := netns.GetFromName(ns)
		if err != nil {
			done <- fmt.Errorf("network namespace %s of the fleet: %w", ns, err)
			return
		}
		err = netns.Set(h)
		h.Close()
		if err != nil {
			done <- fmt.Errorf("enter network namespace %s of the fleet: %w", ns, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Dial opens a connection from the switch.
func (c Cluster) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := c.Inside(c.Switch(), func() (err error) {
		// Fallback would dial from another thread, in the machine's own namespace.
		conn, err = (&net.Dialer{Timeout: 5 * time.Second, FallbackDelay: -1}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Listen opens a TCP port on the switch, which hosts reach at the listener's address.
func (c Cluster) Listen() (net.Listener, error) {
	var l net.Listener
	err := c.Inside(c.Switch(), func() (err error) {
		l, err = net.Listen("tcp4", c.Gateway()+":0")
		return err
	})
	return l, err
}

// RESTConfig is the administrator's, through the virtual address; with an address, through the peer there. Each has
// connections of its own, and no client-side rate limit.
func (c Cluster) RESTConfig(addr string) (*rest.Config, error) {
	r, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	r.Dial = c.Dial
	r.QPS = -1
	if addr != "" {
		r.Host = "https://" + addr + ":6443"
	}
	return r, nil
}

// Client is client-go's over RESTConfig.
func (c Cluster) Client(addr string) (*kubernetes.Clientset, error) {
	r, err := c.RESTConfig(addr)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(r)
}

// Kubectl runs the real kubectl through the virtual address and returns its standard output.
func (c Cluster) Kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.Run(ctx, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig()}, args...)...)
}

// Apply applies a manifest from text, and returns what kubectl printed.
func (c Cluster) Apply(namespace, manifest string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.Command(ctx, "run", "kubectl", "--kubeconfig", c.Kubeconfig(), "-n", namespace, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, errs.String())
	}
	return string(out), nil
}

// Script runs a shell script in host i and returns its standard output.
func (c Cluster) Script(i int, script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.Sh(ctx, i, script)
}

// Status is what `controld status` says on host i.
func (c Cluster) Status(i int) (peer.Status, error) {
	var s peer.Status
	// The exit code tells what the JSON says too.
	out, err := c.Script(i, "timeout 10 controld status -o json || test $? -le 3")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return s, fmt.Errorf("controld status on host %d: %w: %q", i, err, out)
	}
	return s, nil
}

// Leader is the number of the host whose controld leads, as the first peer that knows one says.
func (c Cluster) Leader() (int, error) {
	err := fmt.Errorf("no peer knows a leader")
	for i := 1; i <= Hosts; i++ {
		s, serr := c.Status(i)
		if serr != nil {
			err = serr
			continue
		}
		for k := 1; k <= Hosts; k++ {
			if s.Leader == c.Host(k) {
				return k, nil
			}
		}
	}
	return 0, err
}

// Whole says by an error what is missing: every peer votes, answers and serves, and every node is ready.
func (c Cluster) Whole() error {
	for i := 1; i <= Hosts; i++ {
		s, err := c.Status(i)
		if err != nil {
			return err
		}
		if !s.Ready {
			return fmt.Errorf("host %d waits for %s", i, s.Waiting)
		}
		up := 0
		for _, p := range s.Peers {
			if p.Voter && p.Reachable {
				up++
			}
		}
		ready := 0
		for _, n := range s.Nodes {
			if n.Ready == "True" {
				ready++
			}
		}
		if up != Hosts || ready != Hosts {
			return fmt.Errorf("host %d sees %d voters up and %d nodes ready", i, up, ready)
		}
	}
	return nil
}
