package flow

import (
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/tripod-cluster/tripod/dataplane/modes"
)

// traces lists what of a mode is in the kernel, by means other than the backend's own.
func traces(t *testing.T, mode string) []string {
	t.Helper()
	var out []string
	c := &nftables.Conn{}
	chains, err := c.ListChains()
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range chains {
		ipvs := strings.HasPrefix(ch.Name, "KUBE-IPVS-")
		if strings.HasPrefix(ch.Name, "KUBE-") && ipvs == (mode == modes.IPVS) {
			out = append(out, "chain "+ch.Table.Name+"/"+ch.Name)
		}
	}
	if mode != modes.IPVS {
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
	return append(out, virtualServers(t)...)
}
