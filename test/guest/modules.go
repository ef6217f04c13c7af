package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// wantedModules is what the tests need; those that a kernel has built in or not at all are passed over.
const wantedModules = "crc32c_generic virtio_rng dummy veth bridge br_netfilter vxlan tun overlay ipv6 " +
	"nf_conntrack nf_conntrack_netlink nf_nat nfnetlink " +
	"ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_wlc ip_vs_sh " +
	"ip_set ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_hash_net ip_set_bitmap_port " +
	"nf_tables nft_chain_nat nft_nat nft_masq nft_ct nft_reject_inet nft_fib_inet nft_compat nft_limit nft_log " +
	"ip_tables iptable_nat iptable_filter iptable_mangle ip6_tables ip6table_nat ip6table_filter " +
	"xt_tcpudp xt_sctp xt_comment xt_conntrack xt_mark xt_nat xt_MASQUERADE xt_REDIRECT xt_set xt_ipvs xt_multiport xt_addrtype " +
	"xt_statistic xt_recent xt_physdev xt_CT xt_limit ipt_REJECT ip6t_REJECT wireguard"

// moduleFiles finds the files of the wanted modules and of what they depend on, dependencies first.
func moduleFiles(dir string) ([]string, error) {
	byName := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".ko") {
			byName[moduleName(strings.TrimSuffix(filepath.Base(p), ".ko"))] = p
		}
		return err
	})
	if err != nil || len(byName) == 0 {
		return nil, fmt.Errorf("no modules in %s: %w", dir, err)
	}
	var out []string
	seen := map[string]bool{}
	var visit func(string) error
	visit = func(n string) error {
		n = moduleName(n)
		p := byName[n]
		if seen[n] || p == "" {
			return nil
		}
		seen[n] = true
		needs, err := dependencies(p)
		if err != nil {
			return err
		}
		for _, d := range needs {
			if err := visit(d); err != nil {
				return err
			}
		}
		out = append(out, p)
		return nil
	}
	for _, n := range strings.Fields(wantedModules) {
		if err := visit(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// dependencies reads a module's "depends" line from its .modinfo section.
func dependencies(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, nil
	}
	b, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	for _, line := range bytes.Split(b, []byte{0}) {
		if v, ok := strings.CutPrefix(string(line), "depends="); ok && v != "" {
			return strings.Split(v, ","), nil
		}
	}
	return nil, nil
}
