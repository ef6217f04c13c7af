package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
)

// errFull means that every block is in use.
var errFull = errors.New("no pod network block is left")

// pool hands out the blocks of a network. It is not safe for concurrent use.
type pool struct {
	network netip.Prefix
	bits    int // length of a block's prefix
	size    int // number of blocks
	used    map[int]string
	byNode  map[string]int
	next    int // where the search begins, so that a freed block is not reused at once
}

// maxBlocks bounds the size of a pool, hence of a cluster.
const maxBlocks = 1 << 16

func newPool(network netip.Prefix, bits int) (*pool, error) {
	if !network.IsValid() {
		return nil, errors.New("pod network is not set")
	}
	network = network.Masked()
	n := bits - network.Bits()
	if n < 0 || bits > network.Addr().BitLen() {
		return nil, fmt.Errorf("pod network %s holds no block of /%d: choose a longer block prefix or a larger network", network, bits)
	}
	if n > 16 {
		return nil, fmt.Errorf("pod network %s holds more than %d blocks of /%d: choose a shorter block prefix", network, maxBlocks, bits)
	}
	return &pool{network: network, bits: bits, size: 1 << n, used: map[int]string{}, byNode: map[string]int{}}, nil
}

// index returns which block p lies in. ok is false when it is not of this pool.
func (p *pool) index(prefix netip.Prefix) (int, bool) {
	if !p.network.Overlaps(prefix) || prefix.Bits() < p.bits {
		return 0, false
	}
	a := prefix.Addr().AsSlice()
	i := 0
	for bit := p.network.Bits(); bit < p.bits; bit++ {
		i = i<<1 | int(a[bit/8]>>(7-bit%8)&1)
	}
	return i, true
}

// block returns block i.
func (p *pool) block(i int) netip.Prefix {
	a := p.network.Addr().AsSlice()
	for bit := p.bits - 1; bit >= p.network.Bits(); bit-- {
		a[bit/8] |= byte(i&1) << (7 - bit%8)
		i >>= 1
	}
	addr, _ := netip.AddrFromSlice(a)
	return netip.PrefixFrom(addr, p.bits)
}

// occupy notes that node has prefix. An error names the other node that has it.
func (p *pool) occupy(node string, prefix netip.Prefix) error {
	i, ok := p.index(prefix)
	if !ok {
		return nil // given by somebody else from another network; it takes nothing of ours
	}
	if other, taken := p.used[i]; taken && other != node {
		return fmt.Errorf("block %s of node %s belongs to node %s too: delete one of the nodes and let it join again", prefix, node, other)
	}
	if old, had := p.byNode[node]; had && old != i {
		delete(p.used, old)
	}
	p.used[i], p.byNode[node] = node, i
	return nil
}

// take reserves a block for node, the same one when it has one already.
func (p *pool) take(node string) (netip.Prefix, error) {
	if i, ok := p.byNode[node]; ok {
		return p.block(i), nil
	}
	for k := range p.size {
		i := (p.next + k) % p.size
		if _, taken := p.used[i]; !taken {
			p.used[i], p.byNode[node] = node, i
			p.next = i + 1
			return p.block(i), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w: %s has %d of /%d", errFull, p.network, p.size, p.bits)
}

// release frees node's block.
func (p *pool) release(node string) {
	if i, ok := p.byNode[node]; ok {
		delete(p.used, i)
		delete(p.byNode, node)
	}
}
