package xtables

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// fingerprint tells rules apart by content.
type fingerprint [8]byte

// encoded is a rule as the kernel takes it: the attributes that follow table and chain in NFT_MSG_NEWRULE.
type encoded struct {
	attrs []byte
	print fingerprint
}

// The tag of our fingerprint among a rule's user data (type, length, value; nft and iptables skip types they do not
// know), and the one of the comment (NFTNL_UDATA_RULE_COMMENT).
const (
	udataComment     = 0
	udataFingerprint = 0x54
	maxUserData      = 256 // NFT_USERDATA_MAXLEN
)

// buffer builds netlink attributes.
type buffer struct{ b []byte }

// attr appends one attribute.
func (w *buffer) attr(typ uint16, data []byte) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(4+len(data)))
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = append(w.b, data...)
	w.pad()
}

func (w *buffer) pad() {
	for len(w.b)%4 != 0 {
		w.b = append(w.b, 0)
	}
}

func (w *buffer) str(typ uint16, s string) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(5+len(s)))
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = append(append(w.b, s...), 0)
	w.pad()
}

func (w *buffer) u32(typ uint16, v uint32) {
	w.b = binary.NativeEndian.AppendUint16(w.b, 8)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = binary.BigEndian.AppendUint32(w.b, v)
}

func (w *buffer) u64(typ uint16, v uint64) {
	w.b = binary.NativeEndian.AppendUint16(w.b, 12)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = binary.BigEndian.AppendUint64(w.b, v)
}

// nest opens a nested attribute; the returned function closes it.
func (w *buffer) nest(typ uint16) func() {
	at := len(w.b)
	w.b = append(w.b, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(w.b[at+2:], typ|unix.NLA_F_NESTED)
	return func() { binary.NativeEndian.PutUint16(w.b[at:], uint16(len(w.b)-at)) }
}

// expr appends one expression of a rule.
func (w *buffer) expr(name string, data func()) {
	elem := w.nest(unix.NFTA_LIST_ELEM)
	w.str(unix.NFTA_EXPR_NAME, name)
	end := w.nest(unix.NFTA_EXPR_DATA)
	data()
	end()
	elem()
}

// xt appends an iptables match or target; info is padded to 8 bytes as XT_ALIGN asks.
func (w *buffer) xt(kind, name string, rev uint32, info []byte) {
	for len(info)%8 != 0 {
		info = append(info, 0)
	}
	w.expr(kind, func() { // NFTA_MATCH_* and NFTA_TARGET_* have the same numbers
		w.str(unix.NFTA_MATCH_NAME, name)
		w.u32(unix.NFTA_MATCH_REV, rev)
		w.attr(unix.NFTA_MATCH_INFO, info)
	})
}

func (w *buffer) cmp(op uint32, data []byte) {
	w.expr("cmp", func() {
		w.u32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		w.u32(unix.NFTA_CMP_OP, op)
		end := w.nest(unix.NFTA_CMP_DATA)
		w.attr(unix.NFTA_DATA_VALUE, data)
		end()
	})
}

// addr compares the packet's source or destination with a prefix.
func (w *buffer) addr(f Family, dst bool, p netip.Prefix, not bool) {
	size, off := uint32(4), uint32(12)
	if f == IPv6 {
		size, off = 16, 8
	}
	if dst {
		off += size
	}
	w.expr("payload", func() {
		w.u32(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
		w.u32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
		w.u32(unix.NFTA_PAYLOAD_OFFSET, off)
		w.u32(unix.NFTA_PAYLOAD_LEN, size)
	})
	if p.Bits() < int(size)*8 {
		mask := make([]byte, size)
		for i := range p.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		w.expr("bitwise", func() {
			w.u32(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1)
			w.u32(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1)
			w.u32(unix.NFTA_BITWISE_LEN, size)
			end := w.nest(unix.NFTA_BITWISE_MASK)
			w.attr(unix.NFTA_DATA_VALUE, mask)
			end()
			end = w.nest(unix.NFTA_BITWISE_XOR)
			w.attr(unix.NFTA_DATA_VALUE, make([]byte, size))
			end()
		})
	}
	op := uint32(unix.NFT_CMP_EQ)
	if not {
		op = unix.NFT_CMP_NEQ
	}
	w.cmp(op, p.Masked().Addr().AsSlice())
}

func (w *buffer) verdict(code int32, chain string) {
	w.expr("immediate", func() {
		w.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		data := w.nest(unix.NFTA_IMMEDIATE_DATA)
		v := w.nest(unix.NFTA_DATA_VERDICT)
		w.u32(unix.NFTA_VERDICT_CODE, uint32(code))
		if chain != "" {
			w.str(unix.NFTA_VERDICT_CHAIN, chain)
		}
		v()
		data()
	})
}

// encode renders a rule for a family. The order of matches is the one iptables prints best.
func (r *Rule) encode(f Family) encoded {
	w := buffer{b: make([]byte, 0, 768)}
	list := w.nest(unix.NFTA_RULE_EXPRESSIONS)
	if r.Src.IsValid() {
		w.addr(f, false, r.Src, r.NotSrc)
	}
	if r.Dst.IsValid() {
		w.addr(f, true, r.Dst, false)
	}
	if r.NotDstNet.IsValid() {
		w.addr(f, true, r.NotDstNet, true)
	}
	if r.Proto != 0 {
		w.expr("meta", func() {
			w.u32(unix.NFTA_META_DREG, unix.NFT_REG_1)
			w.u32(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
		})
		w.cmp(unix.NFT_CMP_EQ, []byte{r.Proto})
	}
	r.matches(&w)
	w.expr("counter", func() {
		w.u64(unix.NFTA_COUNTER_BYTES, 0)
		w.u64(unix.NFTA_COUNTER_PACKETS, 0)
	})
	r.action(f, &w)
	list()
	if r.Proto != 0 {
		end := w.nest(unix.NFTA_RULE_COMPAT)
		w.u32(unix.NFTA_RULE_COMPAT_PROTO, uint32(r.Proto))
		w.u32(unix.NFTA_RULE_COMPAT_FLAGS, 0)
		end()
	}
	sum := sha256.New()
	sum.Write(w.b)
	sum.Write([]byte(r.Comment))
	var e encoded
	copy(e.print[:], sum.Sum(nil))
	w.attr(unix.NFTA_RULE_USERDATA, userData(r.Comment, e.print))
	e.attrs = w.b
	return e
}

func userData(comment string, print fingerprint) []byte {
	// The fingerprint takes 10 bytes, the comment 2 and a final zero.
	if most := maxUserData - 13; len(comment) > most {
		comment = comment[:most]
	}
	var b []byte
	if comment != "" {
		b = append(b, udataComment, byte(len(comment)+1))
		b = append(append(b, comment...), 0)
	}
	b = append(b, udataFingerprint, byte(len(print)))
	return append(b, print[:]...)
}

// printOf finds a rule's fingerprint in its user data.
func printOf(udata []byte) (p fingerprint, ok bool) {
	for len(udata) >= 2 {
		typ, n := udata[0], int(udata[1])
		if len(udata) < 2+n {
			break
		}
		if typ == udataFingerprint && n == len(p) {
			copy(p[:], udata[2:])
			return p, true
		}
		udata = udata[2+n:]
	}
	return p, false
}
