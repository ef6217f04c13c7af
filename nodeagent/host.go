package nodeagent

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// bootTime is when the kernel started, from its uptime.
func bootTime() time.Time {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(info.Uptime) * time.Second).Truncate(time.Second)
}

// hostUsage returns the host's CPU time used since boot in nanoseconds, and
// used and available memory in bytes, from /proc; 0 where it is not readable.
func hostUsage() (cpu, used, available uint64) {
	if b, err := os.ReadFile("/proc/stat"); err == nil {
		line, _, _ := bytes.Cut(b, []byte("\n"))
		f := strings.Fields(string(line))
		for i := 1; i < len(f) && i <= 8; i++ {
			if i == 4 || i == 5 { // idle, iowait
				continue
			}
			n, _ := strconv.ParseUint(f[i], 10, 64)
			cpu += n * uint64(time.Second/100) // USER_HZ is 100 on every architecture Linux exports it for
		}
	}
	m := meminfo()
	available = m["MemAvailable"]
	if total := m["MemTotal"]; total > available {
		used = total - available
	}
	return cpu, used, available
}

// meminfo returns /proc/meminfo in bytes.
func meminfo() map[string]uint64 {
	out := map[string]uint64{}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return out
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		k, v, _ := strings.Cut(sc.Text(), ":")
		n, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
		out[k] = n << 10
	}
	return out
}

func fsStats(path string, now metav1.Time) *statsapi.FsStats {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil
	}
	bs := uint64(st.Bsize)
	capacity, avail, used := st.Blocks*bs, st.Bavail*bs, (st.Blocks-st.Bfree)*bs
	inodes, free := st.Files, st.Ffree
	inUse := inodes - free
	return &statsapi.FsStats{Time: now, CapacityBytes: &capacity, AvailableBytes: &avail, UsedBytes: &used, Inodes: &inodes, InodesFree: &free, InodesUsed: &inUse}
}
