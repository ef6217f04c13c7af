package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	minShares    = 2      // the kernel's least cpu.shares
	maxShares    = 262144 // the kernel's most
	defaultQuota = 100000 // microseconds, the kernel's own period
)

// WeightFromShares maps cpu.shares (2 to 262144) to cpu.weight (1 to 10000)
// linearly, as KEP-2254 and runc's older releases do.
func WeightFromShares(shares uint64) uint64 {
	if shares < minShares {
		shares = minShares
	}
	if shares > maxShares {
		shares = maxShares
	}
	return 1 + ((shares-minShares)*9999)/(maxShares-minShares)
}

func (m *Manager) ensureV1(p string, l Limits) error {
	for _, c := range []string{"cpu", "memory", "pids"} {
		root := m.v1[c]
		if root == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Join(root, p), 0o755); err != nil {
			return err
		}
	}
	shares := l.CPUShares
	if shares < minShares {
		shares = minShares
	}
	period := l.CPUPeriod
	if period == 0 {
		period = defaultQuota
	}
	quota, memory, pids := int64(-1), int64(-1), "max"
	if l.CPUQuota > 0 {
		quota = l.CPUQuota
	}
	if l.MemoryBytes > 0 {
		memory = l.MemoryBytes
	}
	if l.Pids > 0 {
		pids = strconv.FormatInt(l.Pids, 10)
	}
	cpu := filepath.Join(m.v1["cpu"], p)
	if err := write(cpu, "cpu.shares", strconv.FormatUint(shares, 10)); err != nil {
		return err
	}
	// A kernel without bandwidth control has no such files.
	if _, err := os.Stat(filepath.Join(cpu, "cpu.cfs_quota_us")); err == nil {
		if err := write(cpu, "cpu.cfs_period_us", strconv.FormatUint(period, 10)); err != nil {
			return err
		}
		if err := write(cpu, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(m.v1["memory"], p), "memory.limit_in_bytes", strconv.FormatInt(memory, 10)); err != nil {
		return err
	}
	if root := m.v1["pids"]; root != "" {
		return write(filepath.Join(root, p), "pids.max", pids)
	}
	return nil
}

func (m *Manager) ensureV2(p string, l Limits) error {
	dir := m.root
	for _, part := range strings.Split(strings.Trim(p, "/"), "/") {
		if err := enableControllers(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, part)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := enableControllers(dir); err != nil {
		return err
	}
	period := l.CPUPeriod
	if period == 0 {
		period = defaultQuota
	}
	quota, memory, pids := "max", "max", "max"
	if l.CPUQuota > 0 {
		quota = strconv.FormatInt(l.CPUQuota, 10)
	}
	if l.MemoryBytes > 0 {
		memory = strconv.FormatInt(l.MemoryBytes, 10)
	}
	if l.Pids > 0 {
		pids = strconv.FormatInt(l.Pids, 10)
	}
	for _, f := range [][2]string{
		{"cpu.weight", strconv.FormatUint(WeightFromShares(l.CPUShares), 10)},
		{"cpu.max", quota + " " + strconv.FormatUint(period, 10)},
		{"memory.max", memory},
		{"pids.max", pids},
	} {
		if err := write(dir, f[0], f[1]); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers gives the children of a v2 cgroup every controller it has
// itself, one at a time: one that is refused must not take the others along.
func enableControllers(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	on, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	enabled := strings.Fields(string(on))
	for _, c := range strings.Fields(string(have)) {
		if contains(enabled, c) {
			continue
		}
		err := write(dir, "cgroup.subtree_control", "+"+c)
		if err != nil && (c == "cpu" || c == "memory" || c == "pids") {
			return err
		}
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func write(dir, file, value string) error {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", file, value, err)
	}
	return nil
}
