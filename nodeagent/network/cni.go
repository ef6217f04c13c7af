package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tripod-cluster/tripod/pki"
)

const (
	cniFile   = "10-tripod.conflist"
	cniBridge = "cni0"
	// ipamDir holds host-local's leases. It is gone after a reboot, as every
	// pod that had one is: a lease never outlives its pod by a power cut.
	ipamDir = "/run/tripod-cni"
)

// cniConfig is the configuration that the runtime hands to the CNI plugins
// (CNI specification 0.4.0, which the plugins of Debian 12 and later all speak).
func cniConfig(podCIDR netip.Prefix, mtu int) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "0.4.0",
		"name":       "tripod",
		"plugins": []any{
			map[string]any{
				"type":             "bridge",
				"bridge":           cniBridge,
				"isGateway":        true,
				"isDefaultGateway": true,
				"forceAddress":     true, // a node that was registered again has another pod CIDR
				"ipMasq":           false,
				"hairpinMode":      true,
				"mtu":              mtu,
				"ipam": map[string]any{
					"type":    "host-local",
					"dataDir": ipamDir,
					"ranges":  []any{[]any{map[string]any{"subnet": podCIDR.Masked().String()}}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}, "snat": true},
		},
	}
	b, err := json.MarshalIndent(conf, "", "  ")
	return append(b, '\n'), err
}

// foreignConfig finds a CNI configuration that is not ours, in the order in
// which a runtime would take it. Podman's own network does not count: it is
// there on many hosts and serves no pod of Kubernetes.
func foreignConfig(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for CNI configurations: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() == cniFile || strings.HasPrefix(e.Name(), "87-podman") {
			continue
		}
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			return e.Name(), nil
		}
	}
	return "", nil
}

// writeCNI puts the configuration in place if it differs, by rename: the runtime
// watches the directory and must never read half of it.
func writeCNI(dir string, conf []byte) (changed bool, err error) {
	path := filepath.Join(dir, cniFile)
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, conf) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read CNI configuration: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("make CNI configuration directory: %w", err)
	}
	if err := pki.WriteFile(path, conf, 0o600); err != nil {
		return false, fmt.Errorf("write CNI configuration: %w", err)
	}
	return true, nil
}

// missingPlugins names the plugins that our configuration needs and none of dirs has.
func missingPlugins(dirs []string) []string {
	var out []string
	for _, p := range []string{"bridge", "host-local", "portmap", "loopback"} {
		found := slices.ContainsFunc(dirs, func(d string) bool {
			st, err := os.Stat(filepath.Join(d, p))
			return err == nil && st.Mode()&0o111 != 0
		})
		if !found {
			out = append(out, p)
		}
	}
	return out
}
