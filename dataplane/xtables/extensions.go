package xtables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

var native = binary.NativeEndian

// matches appends the rule's extension matches.
func (r *Rule) matches(w *buffer) {
	for i := range r.Sets {
		w.xt("match", "set", 1, setInfo(&r.Sets[i]))
	}
	if r.DPort != 0 {
		switch r.Proto {
		case unix.IPPROTO_TCP: // struct xt_tcp: source range, destination range, option, flags mask, flags, inverse
			b := portRanges(r.DPort)
			w.xt("match", "tcp", 0, append(b, 0, 0, 0, 0))
		case unix.IPPROTO_UDP: // struct xt_udp
			w.xt("match", "udp", 0, append(portRanges(r.DPort), 0, 0))
		case unix.IPPROTO_SCTP: // struct xt_sctp_info: destination range comes first
			b := make([]byte, 292)
			native.PutUint16(b[0:], r.DPort)
			native.PutUint16(b[2:], r.DPort)
			native.PutUint16(b[6:], 0xffff)
			native.PutUint32(b[284:], 2) // flags: XT_SCTP_DEST_PORTS
			w.xt("match", "sctp", 0, b)
		}
	}
	if r.SrcLocal || r.DstLocal { // struct xt_addrtype_info_v1: source, dest, flags
		const local = 1 << 2 // XT_ADDRTYPE_LOCAL
		b := make([]byte, 8)
		if r.SrcLocal {
			native.PutUint16(b[0:], local)
		}
		if r.DstLocal {
			native.PutUint16(b[2:], local)
		}
		w.xt("match", "addrtype", 1, b)
	}
	if m := r.Mark; m != nil { // struct xt_mark_mtinfo1: mark, mask, invert
		b := make([]byte, 12)
		native.PutUint32(b[0:], m.Value)
		native.PutUint32(b[4:], m.Mask)
		b[8] = boolByte(m.Not)
		w.xt("match", "mark", 1, b)
	}
	if r.CTState != 0 { // struct xt_conntrack_mtinfo3
		b := make([]byte, 164)
		native.PutUint16(b[146:], 1) // match_flags: XT_CONNTRACK_STATE
		native.PutUint16(b[150:], uint16(r.CTState))
		w.xt("match", "conntrack", 3, b)
	}
	if c := r.Recent; c != nil { // struct xt_recent_mtinfo_v1
		const check, set, reap = 1 << 0, 1 << 1, 1 << 5
		b := make([]byte, 228)
		if c.Set {
			b[8] = set
		} else {
			native.PutUint32(b[0:], c.Seconds)
			b[8] = check | reap
		}
		copy(b[10:10+199], c.Name)
		for i := 212; i < 228; i++ {
			b[i] = 0xff // mask: the whole address
		}
		w.xt("match", "recent", 1, b)
	}
	if r.Chance != 0 { // struct xt_statistic_info: mode random, flags, probability of 2^31, pointer
		b := make([]byte, 24)
		native.PutUint32(b[4:], uint32(r.Chance*0x80000000))
		w.xt("match", "statistic", 0, b)
	}
}

// action appends what the rule does.
func (r *Rule) action(f Family, w *buffer) {
	switch r.Do.Verb {
	case Jump:
		w.verdict(unix.NFT_JUMP, r.Do.Chain)
	case Accept:
		w.verdict(1, "") // NF_ACCEPT
	case Drop:
		w.verdict(0, "") // NF_DROP
	case Return:
		w.verdict(unix.NFT_RETURN, "")
	case DNAT: // struct nf_nat_range2: flags, lowest and highest address, lowest, highest and base port
		const mapIPs, protoSpecified = 1, 2
		b := make([]byte, 44)
		native.PutUint32(b[0:], mapIPs|protoSpecified)
		a := r.Do.To.Addr().AsSlice()
		copy(b[4:20], a)
		copy(b[20:36], a)
		binary.BigEndian.PutUint16(b[36:], r.Do.To.Port())
		binary.BigEndian.PutUint16(b[38:], r.Do.To.Port())
		w.xt("target", "DNAT", 2, b)
	case Masquerade:
		const randomFully = 1 << 4
		if f == IPv6 { // struct nf_nat_range
			b := make([]byte, 40)
			native.PutUint32(b[0:], randomFully)
			w.xt("target", "MASQUERADE", 0, b)
			return
		}
		b := make([]byte, 20) // struct nf_nat_ipv4_multi_range_compat: one range of flags, addresses, ports
		native.PutUint32(b[0:], 1)
		native.PutUint32(b[4:], randomFully)
		w.xt("target", "MASQUERADE", 0, b)
	case OrMark: // struct xt_mark_tginfo2: mark, mask; the new mark is (old &^ mask) ^ mark
		w.xt("target", "MARK", 2, markInfo(r.Do.Mark, r.Do.Mark))
	case XorMark:
		w.xt("target", "MARK", 2, markInfo(r.Do.Mark, 0))
	case Reject:
		with := uint32(3) // IPT_ICMP_PORT_UNREACHABLE
		if f == IPv6 {
			with = 4 // IP6T_ICMP6_PORT_UNREACH
		}
		b := make([]byte, 4)
		native.PutUint32(b, with)
		w.xt("target", "REJECT", 0, b)
	}
}

func markInfo(mark, mask uint32) []byte {
	b := make([]byte, 8)
	native.PutUint32(b[0:], mark)
	native.PutUint32(b[4:], mask)
	return b
}

func portRanges(dport uint16) []byte {
	b := make([]byte, 8, 16)
	native.PutUint16(b[2:], 0xffff)
	native.PutUint16(b[4:], dport)
	native.PutUint16(b[6:], dport)
	return b
}

// setInfo is struct xt_set_info: index, dimensions, and flags where bit 0 inverts and bit n says that dimension n is
// looked up by source (enum ip_set_dim, linux/netfilter/xt_set.h).
func setInfo(s *SetMatch) []byte {
	b := make([]byte, 4, 8)
	native.PutUint16(b[0:], s.Index)
	b[2] = byte(len(s.Dirs))
	b[3] = boolByte(s.Not)
	for i, d := range s.Dirs {
		if d == "src" {
			b[3] |= 2 << i
		}
	}
	return b
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
