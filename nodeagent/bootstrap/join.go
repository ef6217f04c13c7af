package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/tripod-cluster/tripod/nodeagent/cgroups"
	"github.com/tripod-cluster/tripod/nodeagent/peers"
	"github.com/tripod-cluster/tripod/pki"
)

// newToken is what to do about a token that does not work.
const newToken = "get a new one with `controld token --role node` on a peer"

// approvalTimeout bounds the wait for the first certificate.
const approvalTimeout = 2 * time.Minute

// Options are what Join needs.
type Options struct {
	Token    pki.Token
	Server   string // HOST:PORT of a peer
	NodeName string
	Root     string // state directory, /var/lib/noded
	Force    bool   // join again, even where the host is a node already or its name seems taken

	ContainerdConfig string // default /etc/containerd/config.toml
	CRIEndpoint      string
	CNIBinDirs       []string
	CNIConfDir       string
	SandboxImage     string // default DefaultSandboxImage
	CgroupDriver     string // auto (default), cgroupfs, systemd
	APIAddress       string // where the node's API will listen, to see that it is free; default :10250
	HealthAddress    string // default 127.0.0.1:10248

	Unit         string        // started at the end; default noded.service; "-" starts nothing
	ReadyTimeout time.Duration // how long to wait for Ready, default 3 minutes
	Out          io.Writer     // progress, one line each
	Host         Host          // nil: this machine
}

// joiner is one run of Join.
type joiner struct {
	Options
	paths Paths
	set   *peers.Set
	ca    *x509.Certificate
}

// Join makes this host a node, as the package comment tells. It returns nil when
// the node is Ready, also if it was joined before.
func Join(ctx context.Context, o Options) error {
	if o.ContainerdConfig == "" {
		o.ContainerdConfig = "/etc/containerd/config.toml"
	}
	if o.CRIEndpoint == "" {
		o.CRIEndpoint = "unix:///run/containerd/containerd.sock"
	}
	if len(o.CNIBinDirs) == 0 {
		o.CNIBinDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}
	}
	if o.CNIConfDir == "" {
		o.CNIConfDir = "/etc/cni/net.d"
	}
	if o.APIAddress == "" {
		o.APIAddress = ":10250"
	}
	if o.HealthAddress == "" {
		o.HealthAddress = "127.0.0.1:10248"
	}
	if o.Unit == "" {
		o.Unit = "noded.service"
	}
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = 3 * time.Minute
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Host == nil {
		o.Host = machine{cri: o.CRIEndpoint, cniBinDirs: o.CNIBinDirs, cniConfDir: o.CNIConfDir}
	}
	j := &joiner{Options: o, paths: Paths{o.Root}}
	if o.Token.Role != pki.RoleNode {
		return fmt.Errorf("this token has the role %q: %s", o.Token.Role, newToken)
	}
	resumed, err := j.joined()
	if err != nil {
		return err
	}
	if err := j.preflight(ctx); err != nil {
		return err
	}
	if err := j.reach(ctx); err != nil {
		return err
	}
	if !resumed {
		if err := j.enroll(ctx); err != nil {
			return err
		}
	}
	if err := j.configureContainerd(ctx); err != nil {
		return err
	}
	if j.Unit == "-" {
		return nil
	}
	return j.start(ctx)
}

func (j *joiner) say(format string, args ...any) { fmt.Fprintf(j.Out, format+"\n", args...) }

// joined tells whether an earlier run already got the certificate for this
// cluster, so that only the rest is to be done.
func (j *joiner) joined() (bool, error) {
	pair, err := LoadPair(j.paths.ClientCert())
	if errors.Is(err, fs.ErrNotExist) || j.Force {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: join anew with --force", err)
	}
	_, cas, err := j.paths.LoadCA()
	if err != nil {
		return false, fmt.Errorf("%w: join anew with --force", err)
	}
	same := false
	for _, c := range cas {
		same = same || pki.HashCA(c) == j.Token.CAHash
	}
	name, err := NodeName(pair)
	switch {
	case err != nil:
		return false, err
	case !same:
		return false, fmt.Errorf("this host is node %s of another cluster: remove it there with `noded reset` first", name)
	case j.NodeName != name:
		return false, fmt.Errorf("this host joined this cluster as node %s, not %s: run `noded reset` first to give it another name", name, j.NodeName)
	case time.Now().After(pair.Leaf.NotAfter):
		j.say("the certificate of node %s has expired, asking for a new one", name)
		return false, nil
	}
	j.say("already joined as node %s; seeing to the rest", name)
	return true, nil
}

// preflight looks at everything on the host that would fail later.
func (j *joiner) preflight(ctx context.Context) error {
	if j.Host.UID() != 0 {
		return errors.New("noded join must run as root: use sudo")
	}
	if errs := validation.IsDNS1123Subdomain(j.NodeName); len(errs) > 0 {
		return fmt.Errorf("node name %q is not valid (%s): set a proper host name with hostnamectl, or give --node-name", j.NodeName, strings.Join(errs, "; "))
	}
	if j.Unit == "-" || !j.Host.ServiceActive(ctx, j.Unit) {
		for _, a := range []string{j.APIAddress, j.HealthAddress} {
			if err := j.Host.PortFree(a); err != nil {
				return fmt.Errorf("the node's API needs TCP %s: %w: find what has it with `ss -ltnp` and stop it", a, err)
			}
		}
	}
	if err := j.Host.CRI(ctx); err != nil {
		j.say("starting containerd")
		if serr := j.Host.Systemctl(ctx, "start", "containerd.service"); serr != nil {
			return fmt.Errorf("%w at %s (%w), and starting it failed: %w: install it with `apt install containerd`, or see `journalctl -u containerd`", errNoContainerd, j.CRIEndpoint, err, serr)
		}
		// Docker's package turns CRI off in its default configuration, which
		// is replaced below: only a missing containerd ends here.
	}
	return nil
}

// reach learns the cluster's CA from the server and compares the clocks.
func (j *joiner) reach(ctx context.Context) error {
	set, err := peers.New(j.Server)
	if err != nil {
		return err
	}
	j.set = set
	d := tls.Dialer{Config: pki.PinnedTLS(j.Token.CAHash, func(c *x509.Certificate) { j.ca = c })}
	d.Config.NextProtos = []string{"http/1.1"}
	rctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	conn, err := d.DialContext(rctx, "tcp", j.Server)
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, pki.ErrWrongCluster):
		return fmt.Errorf("%s: %w: %s", j.Server, err, newToken)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if serr := j.clock(ctx); serr != nil {
			return serr
		}
		return fmt.Errorf("the certificate of %s is not valid now: %w: renew it on that peer, see `controld status`", j.Server, err)
	case err != nil:
		return fmt.Errorf("reach the cluster at %s: %w: is controld running there (`systemctl status controld`), and is TCP 6443 open from here?", j.Server, err)
	}
	conn.Close()
	return j.clock(ctx)
}

// clockTolerance is how far the clocks may be apart: certificates and tokens
// are judged by both.
const clockTolerance = time.Minute

// clock compares this host's clock with the server's. The answer's time is not
// authenticated when the certificate could not be verified: it only words an error.
func (j *joiner) clock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	there, here, err := serverTime(ctx, j.Server)
	if err != nil {
		return fmt.Errorf("ask %s for its time: %w", j.Server, err)
	}
	if off := here.Sub(there); off > clockTolerance || off < -clockTolerance {
		return fmt.Errorf("the clocks differ by %s: here it is %s, at %s it is %s: set this host's clock (`timedatectl set-time`, or `timedatectl set-ntp true`; see `timedatectl status`) and run the same command again",
			off.Abs().Round(time.Second), here.UTC().Format(time.DateTime+" MST"), j.Server, there.UTC().Format(time.DateTime+" MST"))
	}
	return nil
}

// clientset makes a client of the joined peers. Without a certificate it is the
// bootstrap token's user.
func (j *joiner) clientset(cert *tls.Certificate) (kubernetes.Interface, error) {
	pool := x509.NewCertPool()
	pool.AddCert(j.ca)
	cc := peers.ClientConfig{Set: j.set, Roots: pool}
	if cert != nil {
		cc.Certificate = func() (*tls.Certificate, error) { return cert, nil }
	}
	cfg := peers.NewClient(cc).Config("noded-join")
	if cert == nil {
		cfg.BearerToken = j.Token.Bearer()
	}
	return kubernetes.NewForConfig(cfg)
}

// enroll gets the certificate, looks whether the name is free, and writes.
func (j *joiner) enroll(ctx context.Context) error {
	boot, err := j.clientset(nil)
	if err != nil {
		return err
	}
	j.say("asking the cluster for the certificate of node %s", j.NodeName)
	actx, cancel := context.WithTimeout(ctx, approvalTimeout)
	defer cancel()
	pair, err := request(actx, boot, certificateRequest{signer: certificatesv1.KubeAPIServerClientKubeletSignerName, node: j.NodeName}, func(s string) { j.say("%s", s) })
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the cluster does not accept this join token: it is wrong, has expired or was revoked: %s", newToken)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("this join token may not ask for a node's certificate: %w: %s", err, newToken)
	case err != nil:
		return fmt.Errorf("join as node %s: %w", j.NodeName, err)
	}
	cert, err := ParsePair(pair)
	if err != nil {
		return err
	}
	node, err := j.clientset(cert)
	if err != nil {
		return err
	}
	if !j.Force {
		if err := nameFree(ctx, node, j.NodeName, j.Host.MachineID(), time.Now()); err != nil {
			return err
		}
	}
	known := j.learnPeers(ctx, node)

	// From here on the host changes.
	if err := os.MkdirAll(filepath.Join(j.Root, "pki"), 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: j.ca.Raw})
	if j.Force {
		for _, p := range []string{j.paths.Peers(), j.paths.ServingCert()} {
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove old state: %w", err)
			}
		}
	}
	if err := pki.WriteFile(j.paths.CA(), caPEM, 0o600); err != nil {
		return err
	}
	set, err := peers.Open(j.paths.Peers(), j.Server)
	if err != nil {
		return err
	}
	if err := errors.Join(set.Update(known), set.Save()); err != nil {
		return err
	}
	// The certificate comes last: it is what makes the host a node.
	return writePair(j.paths.ClientCert(), pair)
}

// nameFree refuses a name that belongs to another living host. It is asked with
// the node's own certificate, which may read its own Node and Lease.
func nameFree(ctx context.Context, c kubernetes.Interface, name, machineID string, now time.Time) error {
	n, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("see whether the name %s is free: %w", name, err)
	}
	if machineID != "" && n.Status.NodeInfo.MachineID == machineID {
		return nil // this very host, joining again
	}
	alive := ""
	lease, err := c.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && lease.Spec.RenewTime != nil:
		valid := 40 * time.Second
		if lease.Spec.LeaseDurationSeconds != nil {
			valid = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
		}
		if age := now.Sub(lease.Spec.RenewTime.Time); age < valid {
			alive = fmt.Sprintf("it was heard of %s ago", max(age, 0).Round(time.Second))
		}
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("see whether node %s is alive: %w", name, err)
	}
	if alive == "" {
		for _, cond := range n.Status.Conditions {
			if cond.Type == v1.NodeReady && cond.Status == v1.ConditionTrue {
				alive = "it is Ready"
			}
		}
	}
	if alive == "" {
		return nil // a dead node's name: its replacement
	}
	addr := ""
	for _, a := range n.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			addr = " (" + a.Address + ")"
		}
	}
	return fmt.Errorf("the name %s is taken by another host%s, %s: give this host another name with hostnamectl or --node-name; if that host is gone, `kubectl delete node %s` first", name, addr, alive, name)
}

// learnPeers asks for the addresses of the API. Not getting them is no failure:
// noded learns them while it runs, and has the one it joined through.
func (j *joiner) learnPeers(ctx context.Context, c kubernetes.Interface) []string {
	list, err := c.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		return nil
	}
	var out []string
	for i := range list.Items {
		out = append(out, peers.FromSlice(&list.Items[i])...)
	}
	return out
}

// configureContainerd writes its configuration and restarts it if that changed.
func (j *joiner) configureContainerd(ctx context.Context) error {
	s, err := j.Host.ContainerdSettings(ctx)
	if err != nil {
		return err
	}
	if j.SandboxImage != "" {
		s.SandboxImage = j.SandboxImage
	}
	switch cgroups.Driver(j.CgroupDriver) {
	case cgroups.Cgroupfs:
		s.SystemdCgroup = false
	case cgroups.Systemd:
		s.SystemdCgroup = true
	}
	conf, err := containerdConfig(s)
	if err != nil {
		return err
	}
	changed, err := writeContainerdConfig(j.ContainerdConfig, conf, j.Host.PackageDefault)
	if errors.Is(err, ErrForeignConfig) {
		j.say("leaving %s as it is, since you changed it; see that it has sandbox_image %q, SystemdCgroup = %v, restrict_oom_score_adj = %v and the CNI bin_dir %q",
			j.ContainerdConfig, s.SandboxImage, s.SystemdCgroup, s.RestrictOOM, s.CNIBinDir)
	} else if err != nil {
		return err
	}
	if changed {
		j.say("restarting containerd with noded's configuration")
		if err := j.Host.Systemctl(ctx, "restart", "containerd.service"); err != nil {
			return fmt.Errorf("restart containerd: %w: see `journalctl -u containerd`; its configuration before is in %s.tripod-backup", err, j.ContainerdConfig)
		}
	}
	return j.await(ctx, 30*time.Second, "containerd to answer on "+j.CRIEndpoint, func(ctx context.Context) (bool, string, error) {
		err := j.Host.CRI(ctx)
		if err == nil {
			return true, "", nil
		}
		return false, err.Error() + ": see `journalctl -u containerd`", nil
	})
}

// start starts noded and waits until the cluster sees the node ready.
func (j *joiner) start(ctx context.Context) error {
	cert, err := LoadPair(j.paths.ClientCert())
	if err != nil {
		return err
	}
	client, err := j.clientset(cert)
	if err != nil {
		return err
	}
	verb := []string{"enable", "--now", j.Unit}
	if j.Host.ServiceActive(ctx, j.Unit) {
		verb = []string{"restart", j.Unit}
		if !j.Force {
			verb = []string{"enable", j.Unit}
		}
	}
	if err := j.Host.Systemctl(ctx, verb...); err != nil {
		return fmt.Errorf("start noded: %w: see `journalctl -u noded -n 30`, then run the same command again", err)
	}
	j.say("noded is started; waiting for node %s to be Ready", j.NodeName)
	err = j.await(ctx, j.ReadyTimeout, "node "+j.NodeName+" to be Ready", func(ctx context.Context) (bool, string, error) {
		n, err := client.CoreV1().Nodes().Get(ctx, j.NodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, "not registered yet", nil
		}
		if err != nil {
			return false, err.Error(), nil
		}
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				return c.Status == v1.ConditionTrue, c.Reason + ": " + c.Message, nil
			}
		}
		return false, "registered, no status yet", nil
	})
	if err != nil {
		return fmt.Errorf("%w: see `journalctl -u noded -n 30` and `noded status`; the host is joined, and the same command goes on from here", err)
	}
	j.say("node %s is Ready", j.NodeName)
	return nil
}

// await looks each half second until done, and says every five what it waits for.
func (j *joiner) await(ctx context.Context, limit time.Duration, what string, look func(context.Context) (done bool, state string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began, said := time.Now(), time.Now()
	state := ""
	for {
		done, s, err := look(ctx)
		if err != nil {
			return err
		}
		if done {
			return nil
		}
		if s != "" && ctx.Err() == nil {
			state = s
		}
		if time.Since(said) > sayAfter {
			said = time.Now()
			j.say("waiting for %s (%s so far): %s", what, time.Since(began).Round(time.Second), state)
		}
		if !sleep(ctx, 500*time.Millisecond) {
			return fmt.Errorf("waited %s for %s: %s", time.Since(began).Round(time.Second), what, state)
		}
	}
}
