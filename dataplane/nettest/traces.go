package nettest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
)

// Traces lists what of a service mode, iptables or ipvs, is in the kernel of the test's namespace, by means other than
// the backend's own: the chains that iptables-save would show, and of ipvs also its link, sets and virtual servers.
func Traces(t testing.TB, mode string) []string {
	t.Helper()
	var out []string
	c := &nftables.Conn{}
	chains, err := c.ListChains()
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range chains {
		if strings.HasPrefix(ch.Name, "KUBE-") && strings.HasPrefix(ch.Name, "KUBE-IPVS-") == (mode == "ipvs") {
			out = append(out, "chain "+ch.Table.Name+"/"+ch.Name)
		}
	}
	if mode != "ipvs" {
		return out
	}
	if _, err := netlink.LinkByName("kube-ipvs0"); err == nil {
		out = append(out, "link kube-ipvs0")
	}
	sets, err := netlink.IpsetListAll()
	if err == nil {
		for _, s := range sets {
			if strings.HasPrefix(s.SetName, "KUBE-") {
				out = append(out, "set "+s.SetName)
			}
		}
	}
	return append(out, VirtualServers(t)...)
}

// VirtualServers lists IPVS' virtual servers as "virtual server ADDRESS:PORT/PROTOCOL"; none where the kernel has no
// IPVS.
func VirtualServers(t testing.TB) []string {
	t.Helper()
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		return nil
	}
	h, err := ipvs.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	svcs, err := h.GetServices()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range svcs {
		out = append(out, fmt.Sprintf("virtual server %s:%d/%d", s.Address, s.Port, s.Protocol))
	}
	return out
}
