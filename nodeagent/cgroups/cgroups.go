// Package cgroups makes, limits and removes the cgroups of pods.
//
// A pod's containers run below one cgroup, kubepods[/burstable|/besteffort]/podUID
// (or the slice names systemd wants for the same tree), which the runtime is
// given as the sandbox's parent. Cgroup v1 (and hybrid) and v2 are both known,
// each with the cgroupfs and the systemd driver.
package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Driver is who creates cgroups: the agent itself, or systemd on its behalf.
// It must be the runtime's driver too (containerd: SystemdCgroup).
type Driver string

// The two drivers.
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

// Detect returns the driver that fits this host: systemd where the host has
// only cgroup v2 and systemd is its init, where two writers of one tree would
// fight, and cgroupfs elsewhere. The configuration of the runtime must follow.
func Detect() Driver { return detect("/") }

func detect(root string) Driver {
	_, err := os.Stat(filepath.Join(root, "run/systemd/system"))
	if err == nil && unified(filepath.Join(root, "sys/fs/cgroup")) {
		return Systemd
	}
	return Cgroupfs
}

// unified says whether dir is a cgroup v2 tree with the controllers in it; a
// hybrid host's v2 tree is elsewhere and empty.
func unified(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.controllers"))
	return err == nil
}

// Limits of a pod's cgroup. Zero means no limit, for CPUShares the kernel's
// least.
type Limits struct {
	CPUShares   uint64 // cgroup v1's scale: 1024 is one CPU
	CPUQuota    int64  // microseconds in each period
	CPUPeriod   uint64 // microseconds
	MemoryBytes int64
	Pids        int64
}

// Manager makes the cgroups of one node's pods. It is safe for concurrent use
// on different pods.
type Manager struct {
	driver Driver
	v2     bool
	root   string            // of the v2 tree
	v1     map[string]string // controller to mount point
	units  unitManager
}

// New makes a Manager for this host with the given driver.
func New(driver Driver) (*Manager, error) {
	m := &Manager{driver: driver, root: "/sys/fs/cgroup", units: dbusUnits{}}
	if unified(m.root) {
		m.v2 = true
		return m, nil
	}
	mounts, err := v1Mounts("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	for _, c := range []string{"cpu", "memory"} {
		if mounts[c] == "" {
			return nil, fmt.Errorf("cgroups: no %s controller is mounted: mount cgroup v2 at /sys/fs/cgroup, or the v1 hierarchies below it", c)
		}
	}
	m.v1 = mounts
	return m, nil
}

// Driver returns the driver in use.
func (m *Manager) Driver() Driver { return m.driver }

// V2 says whether the host is on cgroup v2.
func (m *Manager) V2() bool { return m.v2 }

// hybrid is the name under which v1Mounts tells of a v2 tree beside the v1
// hierarchies. It has no controllers, but runtimes make their cgroups in it.
const hybrid = "unified"

// v1Mounts reads where each v1 controller is mounted.
func v1Mounts(mountinfo string) (map[string]string, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]string{}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		a, b := strings.Fields(before), strings.Fields(after)
		if !ok || len(a) < 5 || len(b) < 3 {
			continue
		}
		if b[0] == "cgroup2" && out[hybrid] == "" {
			out[hybrid] = a[4]
		}
		if b[0] != "cgroup" {
			continue
		}
		for _, c := range strings.Split(b[2], ",") {
			if c == "rw" || c == "ro" || c == "xattr" {
				continue
			}
			if _, seen := out[c]; !seen {
				out[c] = a[4]
			}
		}
	}
	return out, sc.Err()
}

// podPath is the pod's cgroup in the form of cgroupfs, from the root.
func podPath(uid types.UID, qos v1.PodQOSClass) string {
	switch qos {
	case v1.PodQOSGuaranteed:
		return path.Join("/kubepods", "pod"+string(uid))
	case v1.PodQOSBurstable:
		return path.Join("/kubepods/burstable", "pod"+string(uid))
	default:
		return path.Join("/kubepods/besteffort", "pod"+string(uid))
	}
}

// sliceName turns a cgroupfs path into the systemd slice of the same place:
// /kubepods/burstable/podA-B is kubepods-burstable-podA_B.slice.
func sliceName(p string) string {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "-", "_")
	}
	return strings.Join(parts, "-") + ".slice"
}

// slicePath is where systemd puts a slice in the tree.
func slicePath(slice string) string {
	out, prefix := "", ""
	for _, part := range strings.Split(strings.TrimSuffix(slice, ".slice"), "-") {
		if prefix != "" {
			prefix += "-"
		}
		prefix += part
		out += "/" + prefix + ".slice"
	}
	return out
}

// Parent returns what the runtime must be told as the pod's cgroup parent.
func (m *Manager) Parent(uid types.UID, qos v1.PodQOSClass) string {
	if m.driver == Systemd {
		return sliceName(podPath(uid, qos))
	}
	return podPath(uid, qos)
}

// dir is the pod's cgroup below a hierarchy's mount point.
func (m *Manager) dir(uid types.UID, qos v1.PodQOSClass) string {
	p := podPath(uid, qos)
	if m.driver == Systemd {
		return slicePath(sliceName(p))
	}
	return p
}

// Ensure makes the pod's cgroup with its limits; calling it again changes the
// limits.
func (m *Manager) Ensure(uid types.UID, qos v1.PodQOSClass, l Limits) error {
	var err error
	switch {
	case m.driver == Systemd:
		err = m.ensureSlice(sliceName(podPath(uid, qos)), l)
	case m.v2:
		err = m.ensureV2(podPath(uid, qos), l)
	default:
		err = m.ensureV1(podPath(uid, qos), l)
	}
	if err != nil {
		return fmt.Errorf("cgroup of pod %s: %w", uid, err)
	}
	return nil
}

// Remove removes the pod's cgroup in every hierarchy, with the cgroups left in
// it. It fails while processes are in it.
func (m *Manager) Remove(uid types.UID) error {
	var errs []error
	for _, qos := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		dir := m.dir(uid, qos)
		found := false
		for _, root := range m.roots() {
			if _, err := os.Stat(filepath.Join(root, dir)); err == nil {
				found = true
			}
		}
		if !found {
			continue
		}
		if m.driver == Systemd {
			if err := m.units.stop(sliceName(podPath(uid, qos))); err != nil {
				errs = append(errs, err)
			}
		}
		for _, root := range m.roots() {
			if err := removeTree(filepath.Join(root, dir)); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove cgroup of pod %s: %w", uid, err)
	}
	return nil
}

// Pods returns the UIDs that have a cgroup, so those left by a crash are found.
func (m *Manager) Pods() []types.UID {
	seen := map[types.UID]bool{}
	for _, root := range m.roots() {
		for _, qos := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
			dir := path.Dir(m.dir("x", qos))
			entries, _ := os.ReadDir(filepath.Join(root, dir))
			for _, e := range entries {
				name := e.Name()
				if m.driver == Systemd {
					name = strings.TrimSuffix(name[strings.LastIndex(name, "-")+1:], ".slice")
				}
				if uid, ok := strings.CutPrefix(name, "pod"); ok && e.IsDir() && uid != "" {
					if m.driver == Systemd {
						uid = strings.ReplaceAll(uid, "_", "-")
					}
					seen[types.UID(uid)] = true
				}
			}
		}
	}
	out := make([]types.UID, 0, len(seen))
	for u := range seen {
		out = append(out, u)
	}
	return out
}

// roots are the mount points of all hierarchies, each once.
func (m *Manager) roots() []string {
	if m.v2 {
		return []string{m.root}
	}
	seen := map[string]bool{}
	var out []string
	for _, p := range m.v1 {
		// /sys/fs/cgroup has both names of a joint hierarchy, as links.
		if r, err := filepath.EvalSymlinks(p); err == nil && !seen[r] {
			seen[r] = true
			out = append(out, r)
		}
	}
	return out
}

// removeTree removes a cgroup and those below it, the deepest first. Only
// directories can be removed in a cgroup tree.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("rmdir %s: %w", dir, err)
	}
	return nil
}
