package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
)

// Reset removes everything that the package ever makes on a host, but sysctls.
// Pods must be gone: the bridge they hang on is removed. cniConfDir "" means
// /etc/cni/net.d. What is already gone is no error.
func Reset(cniConfDir string) error {
	if cniConfDir == "" {
		cniConfDir = "/etc/cni/net.d"
	}
	var errs []error
	if err := os.Remove(filepath.Join(cniConfDir, cniFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove CNI configuration: %w", err))
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		errs = append(errs, fmt.Errorf("list routes: %w", err))
	}
	for _, r := range routes {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", r.Dst, err))
		}
	}
	for _, name := range []string{tunnelName, serviceBridge, cniBridge} {
		l, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil {
			err = netlink.LinkDel(l)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", name, err))
		}
	}
	errs = append(errs, (&firewall{}).remove())
	if err := os.RemoveAll(ipamDir); err != nil {
		errs = append(errs, fmt.Errorf("remove pod address leases: %w", err))
	}
	return errors.Join(errs...)
}
