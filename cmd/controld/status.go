package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/controlplane/peer"
)

// The exit codes of `controld status`.
const (
	exitError      = 1 // the command failed
	exitDegraded   = 2 // the peer serves, but something needs a look
	exitNotReady   = 3 // the peer runs, and waits
	exitNotRunning = 4 // no daemon on this host
)

// codeError carries an exit code.
type codeError struct {
	error
	code int
}

func exitCode(err error) int {
	var c codeError
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, peer.ErrNotRunning):
		return exitNotRunning
	}
	return exitError
}

func statusCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "status", Short: "Show the peers, the leader, the nodes", Args: cobra.NoArgs,
		Long: "status shows the cluster as this host's peer sees it.\n\nExit codes: 0 all is well; 1 the command failed; 2 something needs a look; 3 this peer\nruns but does not serve; 4 controld does not run on this host.",
		RunE: func(c *cobra.Command, _ []string) error {
			st, err := peer.NewAdmin(peer.AdminSocket).Status(c.Context())
			if err != nil {
				return err
			}
			switch output {
			case "json":
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(st)
			case "":
				err = printStatus(c.OutOrStdout(), st)
			default:
				return fmt.Errorf("-o %s is not known (known: json)", output)
			}
			if err != nil {
				return err
			}
			if !st.Ready {
				return codeError{fmt.Errorf("this peer does not serve: it waits for %s", st.Waiting), exitNotReady}
			}
			if w := worries(st); len(w) > 0 {
				return codeError{errors.Join(w...), exitDegraded}
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json")
	return c
}

// worries is what an operator should look at.
func worries(st peer.Status) []error {
	var w []error
	add := func(f string, a ...any) { w = append(w, fmt.Errorf(f, a...)) }
	if st.Leader == "" {
		add("no leader is known: writes wait; a majority of the peers must be up and reach each other")
	}
	for _, p := range st.Peers {
		switch {
		case p.Expected && !p.Reachable:
			add("peer %s (%s) of the cluster that was replaced has not come back: start controld there; where its data or certificates are lost, run `controld join --reset`; if it is gone for good, run `controld member remove %s` here", p.Name, p.Address, p.Name)
		case !p.Reachable:
			add("peer %s (%s) does not answer: see `systemctl status controld` there", p.Name, p.Address)
		case !p.Voter:
			add("peer %s (%s) does not vote yet: run `controld join` there again if it stays so", p.Name, p.Address)
		}
	}
	for _, n := range st.Nodes {
		if n.Ready != "True" {
			add("node %s is not ready (%s): see `kubectl describe node %s`", n.Name, n.Reason, n.Name)
		}
	}
	if st.NodesError != "" {
		add("nodes not listed: %s", st.NodesError)
	}
	for _, d := range st.Duties {
		if !d.Healthy {
			add("%s is not healthy: %s %s", d.Name, d.Message, d.LastError)
		}
	}
	for _, p := range st.Snapshots {
		if err := p.Problem(); err != nil {
			w = append(w, err)
		}
	}
	if st.Encryption != nil && st.Encryption.Problem != "" {
		add("%s", st.Encryption.Problem)
	}
	if left := time.Until(st.CertificatesExpire); !st.CertificatesExpire.IsZero() && left < 14*24*time.Hour {
		add("a certificate of this peer ends on %s and was not renewed: see `journalctl -u controld`", st.CertificatesExpire.Format("2006-01-02"))
	}
	return w
}

func printStatus(out io.Writer, st peer.Status) error {
	state := "serving"
	if !st.Ready {
		state = "waiting for " + st.Waiting
	}
	vip := ""
	if st.Cluster.VIP != "" {
		vip = ", virtual address " + st.Cluster.VIP
		if st.Leader != "" {
			vip += " at " + st.Leader
		}
	}
	fmt.Fprintf(out, "%s (%s): %s%s\nterm %d, revision %d, services %s, pods %s\n\n", st.Name, st.Address, state, vip, st.Term, st.Revision, st.Cluster.ServiceCIDR, st.Cluster.ClusterCIDR)
	if err := printPeers(out, st.Peers); err != nil {
		return err
	}
	if len(st.Snapshots) > 0 {
		fmt.Fprintln(out)
	}
	for _, p := range st.Snapshots {
		newest := "none"
		if !p.Newest.IsZero() {
			newest = p.Newest.Local().Format("2006-01-02 15:04")
		}
		fmt.Fprintf(out, "newest snapshot (%s): %s\n", p.Place, newest)
	}
	if st.Encryption != nil {
		for _, r := range st.Encryption.Rules {
			fmt.Fprintf(out, "encrypted at rest: %s\n", r)
		}
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "\nNODE\tADDRESS\tREADY\tREASON")
	for _, n := range st.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", n.Name, n.Address, n.Ready, n.Reason)
	}
	return t.Flush()
}
