package xtables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// kernel is what the tables hold, as far as a Writer cares.
type kernel struct {
	generation uint32
	tables     map[string]bool
	chains     map[chainKey]*kernelChain
}

type kernelChain struct {
	base   bool // hooked
	accept bool // its policy
	rules  []kernelRule
}

type kernelRule struct {
	handle uint64
	print  fingerprint // zero: not ours
	jump   string      // the chain it jumps to
}

// read lists tables nat and filter.
func (w *Writer) read() (*kernel, error) {
	k := &kernel{tables: map[string]bool{}, chains: map[chainKey]*kernelChain{}}
	var err error
	if k.generation, err = w.c.generation(); err != nil {
		return nil, err
	}
	err = w.c.dump(unix.NFT_MSG_GETTABLE, w.family, nil, func(b []byte) {
		attributes(b, func(typ uint16, data []byte) {
			if typ == unix.NFTA_TABLE_NAME {
				k.tables[cstring(data)] = true
			}
		})
	})
	if err != nil {
		return nil, err
	}
	err = w.c.dump(unix.NFT_MSG_GETCHAIN, w.family, nil, func(b []byte) {
		var key chainKey
		c := &kernelChain{accept: true}
		attributes(b, func(typ uint16, data []byte) {
			switch typ {
			case unix.NFTA_CHAIN_TABLE:
				key.table = cstring(data)
			case unix.NFTA_CHAIN_NAME:
				key.name = cstring(data)
			case unix.NFTA_CHAIN_HOOK:
				c.base = true
			case unix.NFTA_CHAIN_POLICY:
				c.accept = len(data) == 4 && binary.BigEndian.Uint32(data) == 1
			}
		})
		k.chains[key] = c
	})
	if err != nil {
		return nil, err
	}
	for _, t := range []string{"nat", "filter"} {
		if !k.tables[t] {
			continue
		}
		var sel buffer
		sel.str(unix.NFTA_RULE_TABLE, t)
		err := w.c.dump(unix.NFT_MSG_GETRULE, w.family, sel.b, func(b []byte) { k.addRule(b) })
		if err != nil {
			return nil, err
		}
	}
	return k, nil
}

func (k *kernel) addRule(b []byte) {
	var key chainKey
	var r kernelRule
	attributes(b, func(typ uint16, data []byte) {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			key.table = cstring(data)
		case unix.NFTA_RULE_CHAIN:
			key.name = cstring(data)
		case unix.NFTA_RULE_HANDLE:
			r.handle = handleOf(data)
		case unix.NFTA_RULE_USERDATA:
			r.print, _ = printOf(data)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.jump = jumpOf(data)
		}
	})
	if c := k.chains[key]; c != nil {
		c.rules = append(c.rules, r)
	}
}

func handleOf(data []byte) uint64 {
	if len(data) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(data)
}

// jumpOf finds the chain that a rule's verdict names.
func jumpOf(exprs []byte) (chain string) {
	attributes(exprs, func(_ uint16, elem []byte) {
		var name string
		attributes(elem, func(typ uint16, data []byte) {
			switch {
			case typ == unix.NFTA_EXPR_NAME:
				name = cstring(data)
			case typ == unix.NFTA_EXPR_DATA && name == "immediate":
				attributes(data, func(typ uint16, data []byte) {
					if typ != unix.NFTA_IMMEDIATE_DATA {
						return
					}
					attributes(data, func(typ uint16, data []byte) {
						if typ != unix.NFTA_DATA_VERDICT {
							return
						}
						attributes(data, func(typ uint16, data []byte) {
							if typ == unix.NFTA_VERDICT_CHAIN {
								chain = cstring(data)
							}
						})
					})
				})
			}
		})
	})
	return chain
}
