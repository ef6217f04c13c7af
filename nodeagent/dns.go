package nodeagent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
)

const (
	maxSearches = 32 // Kubernetes' limits of a pod's resolver configuration
	maxServers  = 3

	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// dnsConfig is the resolver configuration of a pod by its policy.
func (a *Agent) dnsConfig(pod *v1.Pod) (*runtimeapi.DNSConfig, error) {
	policy := pod.Spec.DNSPolicy
	if policy == "" {
		policy = v1.DNSClusterFirst
	}
	if policy == v1.DNSClusterFirst && pod.Spec.HostNetwork || len(a.cfg.ClusterDNS) == 0 && policy != v1.DNSNone {
		policy = v1.DNSDefault
	}
	out := &runtimeapi.DNSConfig{}
	switch policy {
	case v1.DNSNone:
	case v1.DNSDefault:
		host, err := hostResolver(a.cfg.ResolvConf)
		if err != nil {
			return nil, err
		}
		out = host
	default:
		host, err := hostResolver(a.cfg.ResolvConf)
		if err != nil {
			return nil, err
		}
		d := a.cfg.ClusterDomain
		out.Servers = slices.Clone(a.cfg.ClusterDNS)
		out.Searches = append([]string{pod.Namespace + ".svc." + d, "svc." + d, d}, host.Searches...)
		out.Options = []string{"ndots:5"}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		out.Servers = append(out.Servers, c.Nameservers...)
		out.Searches = append(out.Searches, c.Searches...)
		for _, o := range c.Options {
			out.Options = slices.DeleteFunc(out.Options, func(s string) bool {
				name, _, _ := strings.Cut(s, ":")
				return name == o.Name
			})
			s := o.Name
			if o.Value != nil && *o.Value != "" {
				s += ":" + *o.Value
			}
			out.Options = append(out.Options, s)
		}
	}
	out.Servers = unique(out.Servers, maxServers)
	out.Searches = unique(out.Searches, maxSearches)
	return out, nil
}

func unique(list []string, limit int) []string {
	var out []string
	for _, s := range list {
		if s != "" && !slices.Contains(out, s) && len(out) < limit {
			out = append(out, s)
		}
	}
	return out
}

// hostResolver reads the host's resolver configuration. A host without one is
// a host without names: that is not an error.
func hostResolver(path string) (*runtimeapi.DNSConfig, error) {
	if path == "" {
		path = "/etc/resolv.conf"
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "nameserver 127.0.0.53") {
			path = resolvedConf // the stub listens on the host's loopback only
		}
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return &runtimeapi.DNSConfig{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolver configuration of the host: %w", err)
	}
	defer f.Close()
	return parseResolver(f)
}

func parseResolver(r io.Reader) (*runtimeapi.DNSConfig, error) {
	out := &runtimeapi.DNSConfig{}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		f := strings.Fields(line)
		if len(f) < 2 || line[0] == '#' || line[0] == ';' {
			continue
		}
		switch f[0] {
		case "nameserver":
			out.Servers = append(out.Servers, f[1])
		case "search":
			out.Searches = nil // the last one counts
			for _, s := range f[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				out.Searches = append(out.Searches, s)
			}
		case "options":
			out.Options = append(out.Options, f[1:]...)
		}
	}
	return out, sc.Err()
}

// writeHosts writes the hosts file of a pod and returns its path.
func (a *Agent) writeHosts(pod *v1.Pod, ips []string) (string, error) {
	var b strings.Builder
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("hosts file of the host: %w", err)
		}
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(host)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		host, domain := cri.Hostname(pod, a.cfg.ClusterDomain)
		for _, ip := range ips {
			switch {
			case domain != "" && !strings.HasSuffix(host, domain):
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
			case domain != "":
				short, _, _ := strings.Cut(host, ".")
				fmt.Fprintf(&b, "%s\t%s\t%s\n", ip, host, short)
			default:
				fmt.Fprintf(&b, "%s\t%s\n", ip, host)
			}
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, h := range pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", h.IP, strings.Join(h.Hostnames, "\t"))
		}
	}
	path := filepath.Join(a.volumes.PodDir(pod.UID), "etc-hosts")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return "", fmt.Errorf("hosts file of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return path, os.Chmod(path, 0o644)
}
