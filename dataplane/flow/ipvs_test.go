package flow

import (
	"fmt"
	"os"
	"testing"

	"github.com/moby/ipvs"
)

// virtualServers lists IPVS' virtual servers; none where the kernel has no IPVS.
func virtualServers(t *testing.T) []string {
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
