package cgroups

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func file(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func put(t *testing.T, p, s string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDetect(t *testing.T) {
	v1host, v2host, plain := t.TempDir(), t.TempDir(), t.TempDir()
	for _, r := range []string{v1host, v2host} {
		if err := os.MkdirAll(r+"/run/systemd/system", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, v1host+"/sys/fs/cgroup/unified/cgroup.controllers", "")
	put(t, v2host+"/sys/fs/cgroup/cgroup.controllers", "cpu memory")
	put(t, plain+"/sys/fs/cgroup/cgroup.controllers", "cpu memory")
	for root, want := range map[string]Driver{v1host: Cgroupfs, v2host: Systemd, plain: Cgroupfs} {
		if got := detect(root); got != want {
			t.Errorf("%s: %s, want %s", root, got, want)
		}
	}
}

func TestParentNames(t *testing.T) {
	fs, sd := &Manager{driver: Cgroupfs}, &Manager{driver: Systemd}
	for _, c := range []struct {
		qos      v1.PodQOSClass
		fs, unit string
		dir      string
	}{
		{v1.PodQOSGuaranteed, "/kubepods/poda-b", "kubepods-poda_b.slice", "/kubepods.slice/kubepods-poda_b.slice"},
		{v1.PodQOSBurstable, "/kubepods/burstable/poda-b", "kubepods-burstable-poda_b.slice", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice"},
		{v1.PodQOSBestEffort, "/kubepods/besteffort/poda-b", "kubepods-besteffort-poda_b.slice", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"},
	} {
		if got := fs.Parent("a-b", c.qos); got != c.fs {
			t.Errorf("cgroupfs %s: %s", c.qos, got)
		}
		if got := sd.Parent("a-b", c.qos); got != c.unit {
			t.Errorf("systemd %s: %s", c.qos, got)
		}
		if got := sd.dir("a-b", c.qos); got != c.dir {
			t.Errorf("place of %s: %s", c.unit, got)
		}
	}
}

func TestV2LimitsAndControllers(t *testing.T) {
	root := t.TempDir()
	put(t, root+"/cgroup.controllers", "cpu memory pids")
	put(t, root+"/cgroup.subtree_control", "")
	m := &Manager{driver: Cgroupfs, v2: true, root: root}
	if err := m.Ensure("u", v1.PodQOSBurstable, Limits{CPUShares: 1024, CPUQuota: 50000, CPUPeriod: 100000, MemoryBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	dir := root + "/kubepods/burstable/podu/"
	for f, want := range map[string]string{"cpu.weight": "39", "cpu.max": "50000 100000", "memory.max": "1048576", "pids.max": "max"} {
		if got := file(t, dir+f); got != want {
			t.Errorf("%s is %q, want %q", f, got, want)
		}
	}
	if got := file(t, root+"/cgroup.subtree_control"); got != "+pids" { // a plain file keeps the last of +cpu +memory +pids
		t.Errorf("controllers of children: %q", got)
	}
	if err := m.Ensure("u", v1.PodQOSBurstable, Limits{}); err != nil {
		t.Fatal(err)
	}
	if got := file(t, dir+"memory.max"); got != "max" {
		t.Errorf("limit taken back: %q", got)
	}
	if got := m.Pods(); !slices.Equal(got, []types.UID{"u"}) {
		t.Errorf("pods: %v", got)
	}
}

func TestV1Limits(t *testing.T) {
	root := t.TempDir()
	m := &Manager{driver: Cgroupfs, v1: map[string]string{"cpu": root + "/cpu", "memory": root + "/memory", "pids": root + "/pids", "blkio": root + "/blkio"}}
	for _, d := range m.v1 {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, root+"/cpu/kubepods/podu/cpu.cfs_quota_us", "-1")
	if err := m.Ensure("u", v1.PodQOSGuaranteed, Limits{CPUShares: 512, CPUQuota: 20000, CPUPeriod: 100000, MemoryBytes: 4096}); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]string{"cpu/kubepods/podu/cpu.shares": "512", "cpu/kubepods/podu/cpu.cfs_quota_us": "20000",
		"cpu/kubepods/podu/cpu.cfs_period_us": "100000", "memory/kubepods/podu/memory.limit_in_bytes": "4096", "pids/kubepods/podu/pids.max": "max"} {
		if got := file(t, filepath.Join(root, f)); got != want {
			t.Errorf("%s is %q, want %q", f, got, want)
		}
	}
}

func TestRemoveTakesEveryHierarchy(t *testing.T) {
	root := t.TempDir()
	m := &Manager{driver: Cgroupfs, v1: map[string]string{"cpu": root + "/cpu", "memory": root + "/memory", hybrid: root + "/unified"}}
	for _, h := range m.v1 {
		if err := os.MkdirAll(h+"/kubepods/besteffort/podu/container", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Remove("u"); err != nil {
		t.Fatal(err)
	}
	for _, h := range m.v1 {
		if _, err := os.Stat(h + "/kubepods/besteffort/podu"); err == nil {
			t.Errorf("left in %s", h)
		}
	}
	if err := m.Remove("u"); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestMountsOfV1AndHybrid(t *testing.T) {
	info := filepath.Join(t.TempDir(), "mountinfo")
	put(t, info, strings.Join([]string{
		"30 20 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw",
		"31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:5 - cgroup cgroup rw,cpu,cpuacct",
		"32 20 0:28 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory",
		"33 20 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd",
		"34 20 0:30 / /tmp rw - tmpfs tmpfs rw",
	}, "\n"))
	got, err := v1Mounts(info)
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range map[string]string{"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct", "memory": "/sys/fs/cgroup/memory",
		"name=systemd": "/sys/fs/cgroup/systemd", hybrid: "/sys/fs/cgroup/unified", "xattr": ""} {
		if got[c] != want {
			t.Errorf("%s at %q, want %q", c, got[c], want)
		}
	}
}

func TestWeights(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 30: 10000} {
		if got := WeightFromShares(shares); got != want {
			t.Errorf("%d shares weigh %d, want %d", shares, got, want)
		}
	}
}

type fakeUnits struct{ started map[string]map[string]any }

func (f *fakeUnits) start(name string, props []systemd.Property) error {
	m := map[string]any{}
	for _, p := range props {
		m[p.Name] = p.Value.Value()
	}
	f.started[name] = m
	return nil
}

func (f *fakeUnits) stop(name string) error { delete(f.started, name); return nil }

func TestSlices(t *testing.T) {
	u := &fakeUnits{started: map[string]map[string]any{}}
	m := &Manager{driver: Systemd, v2: true, root: t.TempDir(), units: u}
	if err := m.Ensure("u-1", v1.PodQOSBurstable, Limits{CPUShares: 1024, CPUQuota: 12345, CPUPeriod: 100000, MemoryBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	p := u.started["kubepods-burstable-podu_1.slice"]
	if p["CPUWeight"] != uint64(39) || p["MemoryMax"] != uint64(1<<20) || p["CPUQuotaPerSecUSec"] != uint64(130000) || p["TasksMax"] != ^uint64(0) {
		t.Errorf("properties: %v", p)
	}
	for _, parent := range []string{"kubepods.slice", "kubepods-burstable.slice"} {
		if u.started[parent]["MemoryAccounting"] != true {
			t.Errorf("%s has no accounting: %v", parent, u.started[parent])
		}
	}
	if err := os.MkdirAll(m.root+m.dir("u-1", v1.PodQOSBurstable), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := m.Pods(); !slices.Equal(got, []types.UID{"u-1"}) {
		t.Errorf("pods: %v", got)
	}
	if err := m.Remove("u-1"); err != nil {
		t.Fatal(err)
	}
	if _, ok := u.started["kubepods-burstable-podu_1.slice"]; ok {
		t.Error("the slice was not stopped")
	}
}
