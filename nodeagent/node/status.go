package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	maxImages     = 50 // in the status, the largest
	maxImageNames = 5  // of each

	memoryLow = 100 << 20 // bytes available below which there is memory pressure
	diskLow   = 10        // percent available below which there is disk pressure
	pidsLow   = 5         // percent of the kernel's PIDs left below which there is PID pressure
)

// measure reads what the host has.
func measure(rootDir string, maxPods int) (v1.ResourceList, error) {
	mem, err := meminfo("MemTotal")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(rootDir, 0o755); err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(rootDir, &st); err != nil {
		return nil, fmt.Errorf("file system of %s: %w", rootDir, err)
	}
	out := v1.ResourceList{
		v1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(mem, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(int64(st.Blocks)*st.Bsize, resource.BinarySI),
	}
	pages, _ := os.ReadDir("/sys/kernel/mm/hugepages")
	for _, p := range pages {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(p.Name(), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		size := resource.NewQuantity(kb<<10, resource.BinarySI)
		n := int64(0)
		if b, err := os.ReadFile("/sys/kernel/mm/hugepages/" + p.Name() + "/nr_hugepages"); err == nil {
			n, _ = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		}
		out[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(n*kb<<10, resource.BinarySI)
	}
	return out, nil
}

// meminfo returns a field of /proc/meminfo in bytes.
func meminfo(field string) (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for _, l := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(l, field+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", field)
}

// status fills in n's status from the host.
func (m *Manager) status(ctx context.Context, n *v1.Node) {
	s := &n.Status
	capacity, allocatable := m.capacity.DeepCopy(), m.Allocatable()
	for name, q := range s.Capacity {
		if strings.Contains(string(name), "/") { // an extended resource, which someone else put there
			capacity[name] = q
			allocatable[name] = q
			if a, ok := s.Allocatable[name]; ok {
				allocatable[name] = a
			}
		}
	}
	s.Capacity, s.Allocatable = capacity, allocatable
	s.DaemonEndpoints.KubeletEndpoint.Port = m.cfg.DaemonPort
	s.Addresses = nil
	for _, ip := range m.cfg.IPs() {
		s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
	}
	s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: hostname(m.cfg.Name)})
	m.info(ctx, s)
	m.images(ctx, s)
	m.conditions(ctx, s)
}

func hostname(fallback string) string {
	if h, err := os.Hostname(); err == nil && h != "" {
		return strings.ToLower(h)
	}
	return fallback
}

func (m *Manager) info(ctx context.Context, s *v1.NodeStatus) {
	var u unix.Utsname
	_ = unix.Uname(&u) // cannot fail on a valid pointer
	old := s.NodeInfo.ContainerRuntimeVersion
	s.NodeInfo = v1.NodeSystemInfo{
		MachineID:               line("/etc/machine-id"),
		SystemUUID:              line("/sys/class/dmi/id/product_uuid"),
		BootID:                  line("/proc/sys/kernel/random/boot_id"),
		KernelVersion:           unix.ByteSliceToString(u.Release[:]),
		OSImage:                 osImage(),
		KubeletVersion:          Version,
		OperatingSystem:         runtime.GOOS,
		Architecture:            runtime.GOARCH,
		ContainerRuntimeVersion: old,
	}
	if s.NodeInfo.SystemUUID == "" {
		s.NodeInfo.SystemUUID = s.NodeInfo.MachineID
	}
	if v, err := m.cfg.Runtime.Version(ctx, ""); err == nil {
		s.NodeInfo.ContainerRuntimeVersion = v.RuntimeName + "://" + v.RuntimeVersion
	}
}

func line(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func osImage() string {
	for _, l := range strings.Split(line("/etc/os-release"), "\n") {
		if v, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return "Linux"
}

func (m *Manager) images(ctx context.Context, s *v1.NodeStatus) {
	list, err := m.cfg.Runtime.ListImages(ctx, nil)
	if err != nil {
		return // what was told stays
	}
	slices.SortFunc(list, func(a, b *runtimeapi.Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Id, b.Id))
	})
	s.Images = nil
	for _, im := range list[:min(len(list), maxImages)] {
		names := append(append([]string{}, im.RepoDigests...), im.RepoTags...)
		s.Images = append(s.Images, v1.ContainerImage{Names: names[:min(len(names), maxImageNames)], SizeBytes: int64(im.Size)})
	}
}

func (m *Manager) conditions(ctx context.Context, s *v1.NodeStatus) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	set := func(t v1.NodeConditionType, on bool, reason, msg string) {
		c := v1.NodeCondition{Type: t, Status: v1.ConditionFalse, Reason: reason, Message: msg, LastHeartbeatTime: now, LastTransitionTime: now}
		if on {
			c.Status = v1.ConditionTrue
		}
		for i := range s.Conditions {
			if s.Conditions[i].Type == t {
				if s.Conditions[i].Status == c.Status {
					c.LastTransitionTime = s.Conditions[i].LastTransitionTime
				}
				s.Conditions[i] = c
				return
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	if avail, err := meminfo("MemAvailable"); err == nil && avail < memoryLow {
		set(v1.NodeMemoryPressure, true, "KubeletHasInsufficientMemory", "node has insufficient memory available")
	} else {
		set(v1.NodeMemoryPressure, false, "KubeletHasSufficientMemory", "node has sufficient memory available")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.cfg.RootDir, &st); err == nil && st.Blocks > 0 && st.Bavail*100 < st.Blocks*diskLow {
		set(v1.NodeDiskPressure, true, "KubeletHasDiskPressure", "node has disk pressure: less than 10% of the file system of "+m.cfg.RootDir+" is free")
	} else {
		set(v1.NodeDiskPressure, false, "KubeletHasNoDiskPressure", "node has no disk pressure")
	}
	if pidsExhausted() {
		set(v1.NodePIDPressure, true, "KubeletHasInsufficientPID", "node has insufficient PID available")
	} else {
		set(v1.NodePIDPressure, false, "KubeletHasSufficientPID", "node has sufficient PID available")
	}
	if err := m.ready(ctx, s); err != nil {
		set(v1.NodeReady, false, "KubeletNotReady", err.Error())
	} else {
		set(v1.NodeReady, true, "KubeletReady", "noded is posting ready status")
	}
}

// ready says why pods cannot run on this host.
func (m *Manager) ready(ctx context.Context, s *v1.NodeStatus) error {
	var errs []error
	if m.cfg.Health != nil {
		errs = append(errs, m.cfg.Health())
	}
	st, err := m.cfg.Runtime.Status(ctx, false)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("container runtime is down: %w", err))...)
	}
	s.RuntimeHandlers = handlers(st)
	for _, c := range st.GetStatus().GetConditions() {
		if c.Status {
			continue
		}
		switch c.Type {
		case runtimeapi.RuntimeReady:
			errs = append(errs, fmt.Errorf("container runtime is not ready: %s %s", c.Reason, c.Message))
		case runtimeapi.NetworkReady:
			errs = append(errs, fmt.Errorf("container runtime network not ready: %s %s", c.Reason, c.Message))
		}
	}
	if m.cfg.Network != nil {
		if err := m.cfg.Network(); err != nil {
			errs = append(errs, fmt.Errorf("pod network not ready: %w", err))
		}
	}
	return errors.Join(errs...)
}

func handlers(st *runtimeapi.StatusResponse) []v1.NodeRuntimeHandler {
	var out []v1.NodeRuntimeHandler
	for _, h := range st.RuntimeHandlers {
		rro, userns := h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
		out = append(out, v1.NodeRuntimeHandler{Name: h.Name, Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &rro, UserNamespaces: &userns}})
	}
	slices.SortFunc(out, func(a, b v1.NodeRuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func pidsExhausted() bool {
	most, err := strconv.Atoi(line("/proc/sys/kernel/pid_max"))
	if err != nil || most == 0 {
		return false
	}
	f := strings.Fields(line("/proc/loadavg"))
	if len(f) < 4 {
		return false
	}
	_, all, _ := strings.Cut(f[3], "/")
	used, err := strconv.Atoi(all)
	return err == nil && (most-used)*100 < most*pidsLow
}
