package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/version"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/nodeagent/bootstrap"
	"github.com/tripod-cluster/tripod/nodeagent/config"
)

// statusSocket is where a running noded tells how it is; root alone may ask.
const statusSocket = "/run/noded/status.sock"

// nodeStatus is how a node is. Empty problem fields mean well.
type nodeStatus struct {
	Running        bool      `json:"running"`
	Joined         bool      `json:"joined"`
	Version        string    `json:"version"`
	Node           string    `json:"node"`
	IP             string    `json:"ip,omitempty"`
	Peer           string    `json:"apiPeer,omitempty"`
	Peers          []string  `json:"apiPeers,omitempty"`
	Ready          string    `json:"ready"` // the Node's Ready condition, as the cluster has it
	PodCIDR        string    `json:"podCIDR,omitempty"`
	Pods           int       `json:"pods"`
	PodsRunning    int       `json:"podsRunning"`
	SyncLoop       string    `json:"syncLoopProblem,omitempty"`
	Network        string    `json:"networkProblem,omitempty"`
	Runtime        string    `json:"runtime,omitempty"`
	RuntimeProblem string    `json:"runtimeProblem,omitempty"`
	ProxyMode      string    `json:"proxyMode,omitempty"`
	Services       int       `json:"services"`
	ServicesBad    int       `json:"servicesInError"`
	Proxy          string    `json:"proxyProblem,omitempty"`
	ClientCert     time.Time `json:"clientCertificateExpires"`
	ServingCert    time.Time `json:"servingCertificateExpires"`
}

func (s nodeStatus) problems() []string {
	var out []string
	for _, p := range []string{s.SyncLoop, s.RuntimeProblem, s.Network, s.Proxy} {
		if p != "" {
			out = append(out, p)
		}
	}
	if s.Running && s.Ready != "True" {
		out = append(out, "the cluster has this node's Ready condition at "+s.Ready)
	}
	if s.Running && s.ServingCert.IsZero() {
		out = append(out, "the serving certificate has not been issued: kubectl logs and exec do not work yet; see `kubectl get csr`")
	}
	return out
}

// status looks at every part; it asks nothing over the network.
func (d *daemon) status() nodeStatus {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	s := nodeStatus{Running: true, Joined: true, Version: version.Get().GitVersion, Node: d.name, IP: d.ip.String(),
		Peer: d.set.Current(), Peers: d.set.Candidates(), Ready: "Unknown",
		SyncLoop: text(d.agent.Healthy()), Network: text(d.net.Ready()), Proxy: text(d.plane.Healthy()), ProxyMode: d.plane.Mode(),
		ClientCert: d.certs.Expiry(), ServingCert: d.serving.Expiry()}
	if n, err := d.nodes.Core().V1().Nodes().Lister().Get(d.name); err == nil {
		s.PodCIDR = n.Spec.PodCIDR
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				s.Ready = string(c.Status)
				if c.Status != v1.ConditionTrue {
					s.Ready += " (" + c.Reason + ": " + c.Message + ")"
				}
			}
		}
		s.Runtime = n.Status.NodeInfo.ContainerRuntimeVersion
	}
	for _, p := range d.agent.Pods().AllPods() {
		s.Pods++
		if p.Status.Phase == v1.PodRunning {
			s.PodsRunning++
		}
	}
	for _, sv := range d.plane.Status() {
		s.Services++
		if sv.State == dataplane.Error {
			s.ServicesBad++
		}
	}
	return s
}

func listenStatus() (net.Listener, error) {
	if err := os.MkdirAll("/run/noded", 0o700); err != nil {
		return nil, fmt.Errorf("make /run/noded: %w", err)
	}
	if err := os.Remove(statusSocket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old status socket: %w", err)
	}
	l, err := net.Listen("unix", statusSocket)
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	if err := os.Chmod(statusSocket, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("status socket: %w", err)
	}
	return l, nil
}

func (d *daemon) serveStatus(ctx context.Context, l net.Listener) error {
	srv := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		s := d.status()
		if v, err := d.agent.Pods().Runtime().Version(ctx, ""); err != nil {
			s.RuntimeProblem = "containerd does not answer: " + err.Error()
		} else {
			s.Runtime = v.RuntimeName + "://" + v.RuntimeVersion
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s)
	})}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	return srv.Serve(l)
}

func statusCommand(load func() (config.Config, error)) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Shows how this node is; exit status 0 well, 1 with problems, 2 not joined or not running",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("-o %s is not known: use -o json", output)
			}
			s, err := askStatus(cmd.Context())
			var problems []string
			if err != nil {
				s, problems = offline(load, err)
			}
			problems = append(problems, s.problems()...)
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				if err := enc.Encode(struct {
					nodeStatus
					Problems []string `json:"problems"`
				}{s, problems}); err != nil {
					return err
				}
			} else {
				printStatus(cmd.OutOrStdout(), s, problems)
			}
			switch {
			case !s.Running:
				return exitCode(2)
			case len(problems) > 0:
				return exitCode(1)
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json")
	return c
}

func askStatus(ctx context.Context) (s nodeStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", statusSocket)
	}}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://noded/status", nil)
	if err != nil {
		return s, err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&s)
}

// offline says what the disk tells of a node whose noded does not answer.
func offline(load func() (config.Config, error), cause error) (nodeStatus, []string) {
	s := nodeStatus{Version: version.Get().GitVersion, Ready: "Unknown"}
	if errors.Is(cause, fs.ErrPermission) {
		return s, []string{"only root may ask noded: use sudo"}
	}
	cfg, err := load()
	if err != nil {
		return s, []string{err.Error()}
	}
	paths := bootstrap.Paths{Root: cfg.StateDir}
	pair, err := bootstrap.LoadPair(paths.ClientCert())
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return s, []string{"this host has not joined a cluster: run `noded join TOKEN@HOST`"}
		}
		return s, []string{err.Error()}
	}
	s.Joined, s.ClientCert = true, pair.Leaf.NotAfter
	s.Node, _ = bootstrap.NodeName(pair)
	if serving, err := bootstrap.LoadPair(paths.ServingCert()); err == nil {
		s.ServingCert = serving.Leaf.NotAfter
	}
	return s, []string{"noded does not run: `systemctl start noded`, and see `journalctl -u noded`"}
}

func printStatus(out io.Writer, s nodeStatus, problems []string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(k, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", k, fmt.Sprintf(format, args...)) }
	if s.Node != "" {
		row("node", "%s (%s)", s.Node, orDash(s.IP))
	}
	row("version", "%s", s.Version)
	if s.Running {
		row("ready", "%s", s.Ready)
		row("API peer", "%s (known: %v)", orDash(s.Peer), s.Peers)
		row("runtime", "%s", orDash(s.Runtime))
		row("pods", "%d running of %d, from %s", s.PodsRunning, s.Pods, orDash(s.PodCIDR))
		row("services", "%d by %s, %d in error", s.Services, s.ProxyMode, s.ServicesBad)
	}
	if s.Joined {
		row("certificates", "client until %s, serving until %s", day(s.ClientCert), day(s.ServingCert))
	}
	w.Flush()
	for _, p := range problems {
		fmt.Fprintf(out, "! %s\n", p)
	}
	if len(problems) == 0 {
		fmt.Fprintln(out, "all is well")
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func day(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04 MST")
}
